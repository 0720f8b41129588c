"""Run folders as people leave them: started twice, copied about, edited by hand, on disks that fail."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from run_events import LONG, events, wait_for
from stentor.engine.checkpoint import hash_of


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_second_start_of_a_run_is_refused(tiny, start, cli, rows, tmp_path, processes):
    config = tiny()
    folder = tmp_path / "runs" / "run"
    first = start("train", config, *LONG, "train.steps=100000", "train.save_every=50")
    wait_for(folder / "metrics.jsonl", '"step": 3,', first)
    second = cli("train", config, *LONG, "optim.lr=0.5", "--processes", processes, check=False)
    assert second.returncode == 2 and "Traceback" not in second.stderr, second.stderr
    assert f"is already being trained by process {first.pid} on {socket.gethostname()} since" in second.stderr
    assert first.poll() is None and "lr: 0.5" not in (folder / "resolved.yaml").read_text()
    wait_for(folder / "checkpoints" / "latest", "step-", first)
    first.send_signal(signal.SIGKILL)  # its lock ends with it
    first.wait()
    saved = int((folder / "checkpoints" / "latest").read_text()[5:])
    done = cli("train", config, *LONG, f"train.steps={saved + 2}")
    assert f"Resuming from step {saved}" in done.stdout
    assert [row["step"] for row in rows(folder)] == list(range(1, saved + 3))


@pytest.fixture(scope="module")
def finished(corpus, tiny_text, warm, tmp_path_factory):
    """Folder of runs with a finished one of six steps."""
    runs = tmp_path_factory.mktemp("finished")
    (config := runs / "tiny.yaml").write_text(tiny_text.format(folder=corpus, runs=runs, dropout=0.0))
    assert warm([["train", str(config)]], 1).returncode == 0
    return runs


@pytest.fixture
def run(finished, tiny, tmp_path):
    """A copy of the finished run: its config and its folder."""
    folder = Path(shutil.copytree(finished / "run", tmp_path / "runs" / "run"))
    resolved = folder / "resolved.yaml"
    resolved.write_text(resolved.read_text().replace(str(finished), str(tmp_path / "runs")))
    return tiny(), folder


def test_copies_and_broken_rows_are_tolerated(run, cli, rows):
    config, folder = run
    checkpoint = folder / "checkpoints" / "step-000006"
    shutil.copytree(checkpoint, folder / "checkpoints" / "step-000006.old")
    metrics = (folder / "metrics.jsonl").read_text().splitlines()
    broken = ["what is this", "[1, 2]", '{"step": "two"}', '{"step": 1, "stage": nul', "\udcff\udcfe"]
    text = "\n".join([metrics[0], *broken, *metrics[1:]]) + "\n"
    (folder / "metrics.jsonl").write_text(text, errors="surrogateescape")
    done = cli("train", config, "train.steps=8")
    assert (
        "Resuming from step 6" in done.stdout and "metrics.jsonl:2 is not a valid row ('what is this')" in done.stdout
    )
    assert [row["step"] for row in rows(folder)] == list(range(1, 9))
    assert (folder / "checkpoints" / "step-000006.old").is_dir()


@pytest.mark.parametrize("lost", ["meter", "position", None])
def test_a_state_of_another_version_is_refused(run, cli, lost):
    config, folder = run
    checkpoint = folder / "checkpoints" / "step-000006"
    state, meta = checkpoint / "resume" / "state.json", json.loads((checkpoint / "meta.json").read_text())
    if lost is None:
        meta["format"] = 7
    else:
        state.write_text(json.dumps({k: v for k, v in json.loads(state.read_text()).items() if k != lost}))
    meta["files"]["resume/state.json"] = hash_of(state)
    (checkpoint / "meta.json").write_text(json.dumps(meta))
    done = cli("train", config, "train.steps=8", check=False)
    assert done.returncode == 2 and "start a new run under another `name`" in done.stderr, done.stderr
    assert (f"'{lost}'" if lost else "format 7") in done.stderr
    assert checkpoint.is_dir(), "it is not damaged"


def test_when_all_checkpoints_are_damaged_nothing_is_trained(run, cli):
    config, folder = run
    for weights in folder.glob("checkpoints/step-*/resume/weights.safetensors"):
        os.truncate(weights, 100)
    for _ in range(2):
        done = cli("train", config, "train.steps=8", check=False)
        assert done.returncode == 3 and "All checkpoints in" in done.stderr and "start again at step 0" in done.stderr
    assert len(events(folder, "started")) == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file that refuses to be read")
def test_a_disk_that_fails_for_a_while(run, cli):
    config, folder = run
    weights = folder / "checkpoints" / "step-000006" / "resume" / "weights.safetensors"
    weights.rename(weights.with_suffix(".aside"))
    weights.symlink_to("/proc/self/mem")  # Linux answers EIO to a read at address 0
    done = cli("train", config, "train.steps=8", check=False)
    assert done.returncode == 1 and "cannot be read (Input/output error). Nothing was changed" in done.stderr
    weights.unlink()
    weights.with_suffix(".aside").rename(weights)
    assert "Resuming from step 6" in cli("train", config, "train.steps=8").stdout


def test_a_finished_run_with_a_damaged_export_makes_it_again(run, cli):
    config, folder = run
    weights = folder / "export" / "model.safetensors"
    before = weights.read_bytes()
    assert "is finished" in cli("train", config).stdout
    damaged = bytearray(before)
    damaged[-5] ^= 1
    weights.write_bytes(damaged)
    done = cli("train", config)
    assert "is damaged (model.safetensors is not as it was written)" in done.stdout
    assert "Resuming from step 6 of 6" in done.stdout and weights.read_bytes() == before
    assert (folder / "export-damaged" / "model.safetensors").read_bytes() == bytes(damaged)
    (folder / "results.json").write_text('{"eval": ')
    assert "results.json cannot be read" in cli("train", config).stdout
    assert "is finished" in cli("train", config).stdout
    weights.unlink()
    shutil.rmtree(folder / "checkpoints")
    done = cli("train", config, check=False)
    assert done.returncode == 3 and "no checkpoint to make its export from" in done.stderr


def test_a_run_that_was_trained_longer_is_whole(run, cli):
    config, _ = run
    cli("train", config, "train.steps=8")
    done = cli("train", config, "train.steps=8")
    assert "is finished" in done.stdout and "damaged" not in done.stdout


@pytest.mark.long
def test_changed_audio_behind_the_same_ids_is_named(tiny, corpus, cli, tmp_path):
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    config = tiny()
    config.write_text(config.read_text().replace(str(corpus), str(data)))
    folder = tmp_path / "runs" / "run"
    cli("train", config)
    assert "Warning: the audio" not in cli("train", config, "train.steps=8").stdout
    for name in ("train3", "train5"):
        audio = bytearray((data / f"{name}.wav").read_bytes())
        audio[len(audio) // 2] ^= 1
        (data / f"{name}.wav").write_bytes(audio)
    done = cli("train", config, "train.steps=10")
    assert "the audio of 2 of 16 sampled training records has changed since this run started" in done.stdout
    [event] = events(folder, "changed_audio")
    assert event["ids"] == ["train3", "train5"] and event["sampled"] == 16
    assert "Warning: the audio" not in cli("train", config, "train.steps=12").stdout, "said once"
