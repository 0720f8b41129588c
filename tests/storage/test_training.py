"""Training from and into object storage, through the command line."""

import json
import shutil

import pytest
import yaml

from stentor.commands.remote_run import local_run
from stentor.data.storage import as_path
from stentor.errors import StentorError

FACTS = ("train/loss", "lr", "grad_norm")


@pytest.fixture(params=[False, True], ids=["listed", "streamed"])
def stream(request):
    return request.param


@pytest.fixture
def shards(corpus, here, tmp_path):
    """The corpus as token shards that hold audio."""
    here(
        *("prepare", "tokens", corpus / "train.jsonl", "--codec", "none", "--rate", 16000),
        *("--to", tmp_path / "shards", "--samples-per-shard", 4, "--min-shards", 4),
    )
    return tmp_path / "shards"


def losses(folder, rows):
    return [[row[fact] for fact in FACTS] for row in rows(folder)]


def test_training_from_s3_is_training_from_disk(s3, through, corpus, shards, tiny, here, rows, stream):
    """Shards, labels and lists, the manifest of the evaluation set and its recordings."""
    lists = s3.put_folder("shards", shards)
    s3.put_folder("corpus", corpus)
    keys = ["data.train.0.type=shards", f"data.train.0.stream={str(stream).lower()}", "data.workers=1"]
    keys += ["train.steps=3", "train.save_every=null", "train.eval_every=3", "data.lanes=2"]
    keys += ["data.augment.noise={paths: [PLACE/dev0.wav], p: 1.0}"]
    here("train", tiny(), f"data.train.0.path={shards}", "name=disk", *[k.replace("PLACE", str(corpus)) for k in keys])
    proxy = through(cut_after=200_000)
    place = s3.url("corpus")
    dev = f"data.eval.dev.path={place}/dev.jsonl"
    here("train", tiny(), f"data.train.0.path={lists}", "name=s3", dev, *[k.replace("PLACE", place) for k in keys])
    runs = shards.parent / "runs"
    assert len(losses(runs / "s3", rows)) == 3 and losses(runs / "s3", rows) == losses(runs / "disk", rows)
    disk, s3_run = (json.loads((runs / name / "results.json").read_text()) for name in ("disk", "s3"))
    assert disk["eval"] == s3_run["eval"] and disk["data"] == s3_run["data"]
    tars = [path for path in proxy.requests if path.startswith("GET") and path.endswith(".tar")]
    assert sorted(proxy.requests[path] for path in tars) == [1, 1, 1, 1]  # not one for each of 16 samples


def test_a_run_folder_on_s3_goes_on_elsewhere(s3, tiny, here, rows, tmp_path, cache):
    straight = tmp_path / "runs" / "straight"
    here("train", tiny(), "name=straight")
    run_file = s3.put("run.yaml", tiny().read_bytes())
    keys = (f"output={s3.url()}", "name=moved", "train.keep=2")
    out = here("train", run_file, *keys)
    assert f"The run folder is at {s3.url()}/moved" in out
    (local,) = (cache / "runs").glob("*/moved")
    names = {str(p.relative_to(local)) for p in local.rglob("*") if p.is_file()} - {".lock"}
    prefix = "moved"
    assert {name.removeprefix("moved/") for name in s3.names(prefix)} == names >= {"report.html", "results.json"}
    assert "checkpoints/step-000002/meta.json" not in names  # pruned, there too
    assert s3.get(f"{prefix}/checkpoints/latest") == b"step-000006\n"

    # The machine is lost while step 6 was uploaded.
    shutil.rmtree(cache)
    for name in ("checkpoints/step-000006/meta.json", "checkpoints/latest", "results.json", "export"):
        s3.delete(f"{prefix}/{name}")
    out = here("train", run_file, *keys)
    assert f"{s3.url(prefix)}/checkpoints/step-000006 was not uploaded completely: it is passed over." in out
    assert f"Bringing {s3.url(prefix)}/checkpoints/step-000004" in out
    (local,) = (cache / "runs").glob("*/moved")
    assert losses(local, rows) == losses(straight, rows)
    weights = "export/model.safetensors"
    assert (local / weights).read_bytes() == (straight / weights).read_bytes() == s3.get(f"{prefix}/{weights}")
    assert "is finished" in here("train", run_file, *keys)

    # What others do with it.
    shutil.rmtree(cache)
    manifest = straight.parent.parent / "tiny.yaml"
    data = yaml.safe_load(manifest.read_text())["data"]["eval"]["dev"]["path"]
    scores = s3.url("scores.json")
    here("evaluate", s3.url(prefix), "--data", data, "--json", scores)
    here("evaluate", straight, "--data", data, "--json", tmp_path / "scores.json")
    assert json.loads(s3.get("scores.json")) == json.loads((tmp_path / "scores.json").read_text()) | {
        "model": s3.url(prefix)
    }
    here("export", s3.url(prefix), "--to", s3.url("copy"))
    assert s3.get("copy/model.safetensors") == (straight / weights).read_bytes()
    assert not list((cache / "outputs").glob("*"))


def test_a_damaged_checkpoint_on_s3_is_passed_over(s3, tiny, here, rows, tmp_path, cache):
    keys = (tiny(), f"output={s3.url()}", "name=run", "train.eval_every=null")
    here("train", *keys, "train.steps=4")
    prefix = "run/checkpoints/step-000004"
    name = next(n for n in s3.names(prefix) if n.endswith(".safetensors"))
    s3.put(name, s3.get(name)[:-1] + b"x")
    shutil.rmtree(cache)
    out = here("train", *keys, "train.steps=6")
    assert "Checkpoint step-000004 is damaged" in out
    (local,) = (cache / "runs").glob("*/run")
    assert [row["step"] for row in rows(local)][-4:] == [3, 4, 5, 6]


def test_an_upload_that_fails_is_said_and_nothing_is_lost(s3, cache, tmp_path):
    with pytest.raises(StentorError, match=r"not all of it could be uploaded.*no-such-bucket"):
        with local_run(as_path("s3://no-such-bucket/run")) as folder:
            folder.mkdir()
            (folder / "log.txt").write_text("kept")
    assert (folder / "log.txt").read_text() == "kept"


def test_an_index_lies_beside_its_manifest_on_s3(s3, corpus, tiny, here, rows, tmp_path):
    s3.put_folder("corpus", corpus)
    place = s3.url("corpus")
    here("prepare", "index", f"{place}/train.jsonl")
    on_disk = shutil.copytree(corpus, tmp_path / "corpus")  # that of all tests stays without an index
    here("prepare", "index", on_disk / "train.jsonl")
    for name, folder in (("s3", place), ("disk", on_disk)):
        here("train", tiny(), f"name={name}", f"data.train.0.path={folder}/train.jsonl", "train.steps=3")
    runs = tmp_path / "runs"
    assert "has an index" in (runs / "s3" / "log.txt").read_text()
    assert len(losses(runs / "s3", rows)) == 3 and losses(runs / "s3", rows) == losses(runs / "disk", rows)
