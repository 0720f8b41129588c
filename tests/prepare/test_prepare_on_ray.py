"""Prepare commands on a Ray cluster: what they make is what one machine makes, in a folder and at an address."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.cli import main
from stentor.commands.prepare.tokens import plan
from stentor.data.storage import as_path

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tokens(corpus, codec, tmp_path, monkeypatch):
    """The command, of seventeen records of which one cannot be read, in groups of two."""
    monkeypatch.setattr(plan, "GROUP_ITEMS", 2)
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    records = [{**record, "audio_path": str(corpus / record["audio_path"])} for record in records]
    (tmp_path / "broken.wav").write_bytes(b"RIFF this is no audio")
    records.insert(5, {"id": "broken", "audio_path": "broken.wav", "duration": 1.0, "text": "one"})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--codec", str(codec), "--min-shards", "3", "--device", "cpu"]
    return ["prepare", "tokens", str(tmp_path / "data.jsonl"), *options, "--to"]


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """The address of a bucket of an S3 stand-in."""
    for package, extra in (("s3fs", "s3"), ("moto.server", "test-cluster")):
        pytest.importorskip(package, reason=f"needs the extra `{extra}`: pip install 'stentor[{extra}]'")
    import s3fs

    from s3_stand_in import StandIn

    server = StandIn()
    for name, value in {**server.environment(), "STENTOR_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://bucket"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


def contents(folder):
    """All files by their names, without the name of the folder."""
    return {
        path.name: path.read_bytes().replace(str(folder).encode(), b"TO") for path in folder.iterdir() if path.is_file()
    }


def test_shards_are_those_of_this_machine(tokens, ray_cluster, tmp_path):
    assert main([*tokens, str(tmp_path / "local")]) == 3
    assert main([*tokens, str(tmp_path / "ray"), "--ray", ray_cluster]) == 3
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert b'"id": "broken"' in (tmp_path / "ray" / "errors.jsonl").read_bytes()


def test_shards_at_an_address_go_on_elsewhere(tokens, bucket, tmp_path, monkeypatch):
    """Killed in the second shard; then another machine goes on, which has nothing of the first one's."""
    from stentor.commands.prepare.tokens.worker import TokensWorker

    assert main([*tokens, str(tmp_path / "local")]) == 3
    done, real = [], TokensWorker.process

    def process(self, group):
        if len(done) == 5:
            raise KeyError("killed")
        done.append(group.id)
        return real(self, group)

    to = as_path(f"{bucket}/out")
    monkeypatch.setattr(TokensWorker, "process", process)
    assert main([*tokens, str(to)]) == 1
    assert sorted(path.name for path in to.iterdir() if path.name.startswith("shard")) == [
        "shard-000000.jsonl",
        "shard-000000.tar",
    ]
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr(TokensWorker, "process", lambda self, group: done.append(group.id) or real(self, group))
    del done[5:]
    assert main([*tokens, str(to)]) == 3
    assert done[5][0] == "1" and contents(to) == contents(tmp_path / "local")
    assert main([*tokens, str(to)]) == 0  # complete


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--s3"]])
def test_a_node_and_the_command_are_killed(options):
    pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'stentor[ray]'")
    if options:
        pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[server]'")
    command = [sys.executable, str(BENCHMARKS), "ray_trials", "--trials", "1", "--seed", "7", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert "1 of 1 trials equal" in done.stdout, done.stdout + done.stderr


SPEECH = "texts={kind: digits},voices=[en-us, en-us+f3],count=40"
MIXTURES = "type=conversation,source={type: synth, texts: {kind: digits}, count: 8},count=4,seconds=4,speakers=1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (["mixtures", MIXTURES], ""),
        (["words", f"type=synth,{SPEECH}", "--engine", "voice"], "words.jsonl"),
        (["check", f"type=synth,{SPEECH}"], ""),
        (["speech", f"type=synth,{SPEECH}"], ""),
    ],
)
def test_other_commands_make_the_same(verb, name, ray_cluster, tmp_path):
    made = []
    for where, more in (("local", ["--jobs", "1"]), ("ray", ["--ray", ray_cluster])):
        folder = tmp_path / where / "to"
        folder.mkdir(parents=True)
        assert main(["prepare", *verb, "--to", str(folder / name if name else folder), *more]) == 0
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        files.pop("check.html", None)  # it says when it was made
        made.append({name: content.replace(str(folder).encode(), b"TO") for name, content in files.items()})
    assert made[0] == made[1] and made[0]


@pytest.mark.slow
def test_features_are_stored_by_the_workers(corpus, ray_cluster, tmp_path, capsys):
    command = ["prepare", "features", str(corpus / "train.jsonl"), "--option", "num_mel_bins=20", "--to", str(tmp_path)]
    assert main([*command, "--ray", ray_cluster]) == 0
    assert "features of 16 records" in capsys.readouterr().out
    assert main(command) == 0  # on this machine: nothing remains
    assert "16 of 16 records were stored before" in capsys.readouterr().out
