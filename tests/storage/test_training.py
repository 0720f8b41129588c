"""Training from and into object storage, through the command line."""

import json
import os
import shutil
import signal
import time

import pytest
import yaml

from stentor.commands import remote_run
from stentor.commands.remote_run import local_run
from stentor.data import file_system
from stentor.data.storage import as_path
from stentor.engine import run_lock
from stentor.errors import StentorError

FACTS = ("train/loss", "lr", "grad_norm")


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["listed", "streamed"])
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


@pytest.mark.long
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


@pytest.mark.long
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
    here("publish", "model", s3.url(prefix), "--dry-run", tmp_path / "published")
    card = (tmp_path / "published" / "README.md").read_text("utf-8")
    assert "wer" in card.lower() and (tmp_path / "published" / "train_results.json").is_file()
    assert "s3://" not in (tmp_path / "published" / "training_config.json").read_text()
    assert not list((cache / "outputs").glob("*"))


@pytest.mark.long
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


@pytest.mark.long
def test_an_upload_that_fails_is_said_and_nothing_is_lost(s3, cache, through, no_waits, monkeypatch):
    monkeypatch.setattr(file_system, "ATTEMPTS", 2)  # of s3fs there are five in each
    with pytest.raises(StentorError, match=r"not all of it could be uploaded.*2 times in a row"):
        with local_run(as_path(s3.url("run"))) as folder:
            (folder / "log.txt").write_text("kept")
            through(cut_after=0)
    assert (folder / "log.txt").read_text() == "kept" and "run/log.txt" not in s3.names()
    with pytest.raises(StentorError, match="no-such-bucket"), local_run(as_path("s3://no-such-bucket/run")):
        pytest.fail("it is said before anything is trained")


@pytest.fixture
def quick_locks(monkeypatch):
    """The stand-in answers in milliseconds."""
    monkeypatch.setattr(run_lock, "RENEWED_EVERY", 0.1)
    monkeypatch.setattr(run_lock, "PATIENCE", 1.5)


def test_one_machine_trains_into_a_run_folder(s3, cache, tiny, attempt, quick_locks, monkeypatch, tmp_path):
    """The other machine is another cache; its process is this one, too."""
    with local_run(as_path(s3.url("run"))):
        monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "other"))
        code, said = attempt("train", tiny(), f"output={s3.url()}", "name=run")
        assert code == 2 and f"{s3.url('run')} is already being trained by process {os.getpid()} on" in said
        monkeypatch.setenv("STENTOR_CACHE", str(cache))
    assert "run/.lock" not in s3.names()


@pytest.mark.parametrize("age", [5, 5000, None])
def test_the_lock_of_a_machine_that_was_lost_does_not_stay(s3, cache, quick_locks, capsys, age):
    lock = json.dumps({"holder": "process 7 on lost", "time": time.time() - (age or 0)})
    s3.put("run/.lock", lock.encode()[: None if age else 20])
    with local_run(as_path(s3.url("run"))):
        assert json.loads(s3.get("run/.lock"))["holder"].startswith(f"process {os.getpid()} on")
    assert ("is locked by process 7 on lost: waiting" in capsys.readouterr().out) == (age == 5)


def test_a_restart_on_the_same_machine_does_not_wait(s3, cache, quick_locks, capsys):
    with local_run(as_path(s3.url("run"))):
        lock = s3.get("run/.lock")
    (copy,) = (cache / "runs").glob("*/address.lock")
    copy.write_bytes(lock)
    s3.put("run/.lock", lock)  # as after a kill
    with local_run(as_path(s3.url("run"))):
        assert s3.get("run/.lock") != lock
    assert "waiting" not in capsys.readouterr().out


def test_a_machine_whose_run_was_taken_over_stops_and_uploads_nothing(s3, cache, quick_locks, capsys):
    signals = []
    before = signal.signal(signal.SIGTERM, lambda *_: signals.append("TERM"))
    try:
        with pytest.raises(StentorError, match=r"could be uploaded: .* was taken over by process 8 on other"):
            with local_run(as_path(s3.url("run"))) as folder:
                (folder / "log.txt").write_text("mine")
                s3.put("run/.lock", json.dumps({"holder": "process 8 on other", "time": time.time()}).encode())
                deadline = time.monotonic() + 30
                while not signals and time.monotonic() < deadline:
                    time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signals == ["TERM"] and s3.names("run/") == ["run/.lock"]


def test_what_was_half_uploaded_is_made_whole_or_deleted(s3, cache, monkeypatch):
    """Checkpoints without a meta.json at the address: one that is here, and one of a machine that was lost."""
    s3.put("run/checkpoints/step-000002/resume/state.json", b"half")
    s3.put("run/checkpoints/step-000004/resume/state.json", b"half")
    monkeypatch.setattr(remote_run, "EVERY", 1000.0)
    with local_run(as_path(s3.url("run"))) as folder:
        for name in ("resume/state.json", "meta.json"):
            path = folder / "checkpoints" / "step-000004" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        (folder / "checkpoints" / "latest").write_text("step-000004\n")
    checkpoint = "run/checkpoints/step-000004"
    assert s3.names("run/") == ["run/checkpoints/latest", f"{checkpoint}/meta.json", f"{checkpoint}/resume/state.json"]
    assert s3.get(f"{checkpoint}/resume/state.json") == b"{}"


@pytest.mark.long
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
