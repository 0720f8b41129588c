"""What goes wrong in real life: the right exit code, one clear sentence, nothing lost."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import stentor
from run_events import LONG, events, wait_for

SOURCE = Path(stentor.__file__).parent.parent


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_saves_and_exits_75(tiny, start, cli, tmp_path, number):
    config = tiny()
    folder = tmp_path / "runs" / "run"
    process = start("train", config, *LONG, "train.save_every=400")
    wait_for(folder / "metrics.jsonl", '"step": 3,', process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Run the same command to resume" in err and "Traceback" not in err
    [stopped] = events(folder, "stopped")
    latest = (folder / "checkpoints" / "latest").read_text().strip()
    assert latest == f"step-{stopped['step']:06d}"
    done = cli("train", config, *LONG, "train.save_every=400", f"train.steps={stopped['step'] + 2}")
    assert f"Resuming from step {stopped['step']}" in done.stdout
    assert len(events(folder, "finished")) == 1


STOPS = "import os, signal\nos.kill(os.getpid(), signal.{})\n"
LISTS = """
from typing import Literal
from stentor.sources.manifest import Jsonl

class Stops(Jsonl):
    type: Literal["stops"] = "stops"
    def records(self):
        import os, signal
        yield from super().records()
        os.kill(os.getpid(), signal.{})
"""


@pytest.mark.parametrize(
    ("when", "number"),
    [
        pytest.param("importing the command line", "SIGTERM", marks=pytest.mark.slow),
        pytest.param("importing a plug-in", "SIGINT", marks=pytest.mark.slow),
        ("listing the data", "SIGTERM"),
    ],
)
def test_signal_before_training_exits_75(tiny, start, tmp_path, when, number):
    """The signal comes exactly while something is imported or read."""
    early = when == "importing the command line"
    (plugin := tmp_path / ("typer.py" if early else "plugin.py")).write_text(
        (LISTS if when == "listing the data" else STOPS).format(number)
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(SOURCE))])
    settings = [] if early else ["--plugin", plugin]
    config = tiny()
    if when == "listing the data":
        config.write_text(config.read_text().replace("train: [{type: jsonl", "train: [{type: stops"))
    process = start("train", config, *settings, **({} if when == "listing the data" else {"PYTHONPATH": path}))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert err == "stentor: Stopped by a signal. Nothing is lost: run the same command to resume.\n"


SLOW_SCORES = '''
import time
from pathlib import Path
from typing import Literal
from stentor.tasks.transcribe import Transcribe

class Slow(Transcribe):
    """Transcribes, and scores for as long as the file `scoring` is there."""
    type: Literal["slow"] = "slow"
    flag: str
    def score(self, predictions):
        if Path(self.flag).exists():
            Path(self.flag).write_text("now")
            time.sleep(120)
        return super().score(predictions)
'''


def test_signal_after_training_exits_75(tiny, start, cli, tmp_path):
    (plugin := tmp_path / "slow.py").write_text(SLOW_SCORES)
    (flag := tmp_path / "scoring").write_text("")
    config = tiny()
    config.write_text(config.read_text().replace("  eval: {dev", "  test: {dev"))
    settings = ["--plugin", plugin, f"task={{type: slow, flag: '{flag}'}}"]
    process = start("train", config, *settings)
    wait_for(flag, "now", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "Training is done and saved: run the same command to resume" in err and "Traceback" not in err
    flag.unlink()
    cli("train", config, *settings)
    folder = tmp_path / "runs" / "run"
    assert json.loads((folder / "results.json").read_text())["steps"] == 6 and not events(folder, "failed")


@pytest.mark.slow
def test_sigterm_to_all_processes_of_a_launcher(tiny, start, cli, tmp_path):
    """A launcher's SIGTERM reaches data workers too; they must not die before the training process has saved."""
    config = tiny()
    folder = tmp_path / "runs" / "run"
    settings = [*LONG, "train.save_every=400", "data.workers=1"]
    process = start("train", config, *settings)
    wait_for(folder / "metrics.jsonl", '"step": 3,', process)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert len(events(folder, "stopped")) == 1 and not events(folder, "failed")


def test_damaged_newest_checkpoint_falls_back(tiny, cli, tmp_path):
    config = tiny()
    folder = tmp_path / "runs" / "run"
    cli("train", config, "train.steps=6")
    newest = folder / "checkpoints" / "step-000006" / "resume" / "weights.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[-5] ^= 1  # one flipped bit, which safetensors itself does not notice
    newest.write_bytes(raw)
    done = cli("train", config, "train.steps=8")
    assert "step-000006 is damaged (resume/weights.safetensors is not as it was written)" in done.stdout
    assert "Resuming from step 4" in done.stdout
    assert (folder / "results.json").exists()


def test_full_disk_while_saving(tiny, cli, tmp_path):
    """A tiny file system stands for the full disk; where none can be mounted, a file size limit does."""
    config = tiny()
    runs = tmp_path / "runs"
    runs.mkdir()
    small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(runs)], capture_output=True)
    if small.returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        done = cli("train", config, "train.steps=40", "train.save_every=2", "train.keep=40", check=False)
        assert done.returncode == 1
        assert "could not be written" in done.stderr and "Free disk space" in done.stderr
        assert "Traceback" not in done.stderr
        folder = runs / "run" / "checkpoints"
        checkpoints = sorted(p.name for p in folder.iterdir() if p.name.startswith("step-"))
        assert checkpoints and (folder / "latest").read_text().strip() == checkpoints[-1]
        assert not list(folder.glob(".step*"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(runs)], check=True)
        again = cli("train", config, f"train.steps={int(checkpoints[-1][5:]) + 2}", "train.keep=40")
        assert f"Resuming from step {int(checkpoints[-1][5:])}" in again.stdout
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


PLUGIN = '''
import torch
from typing import Literal
from stentor.engine.callback import Callback
from stentor.losses.base import Loss
from stentor.losses.token import CrossEntropy

class Poisoned(CrossEntropy):
    """Not a number from the fourth call on, `times` times."""
    type: Literal["poisoned"] = "poisoned"
    times: int = 1
    _calls: int = 0
    def sum(self, **prediction):
        self._calls += 1
        value = super().sum(**prediction)
        return value * float("nan") if 4 <= self._calls < 4 + self.times else value

class KillWorker(Callback):
    type: Literal["kill_worker"] = "kill_worker"
    def on_step(self, trainer):
        import multiprocessing, os, signal
        if trainer.step == 3:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

'''


def test_one_nan_loss_is_skipped_and_named(tiny, cli, tmp_path):
    (plugin := tmp_path / "nan_plugin.py").write_text(PLUGIN)
    cli("train", tiny(), "--plugin", plugin, "losses.text={type: poisoned}", "train.dry_run=false")
    folder = tmp_path / "runs" / "run"
    [skipped] = events(folder, "skipped_step")
    assert skipped["step"] == 3 and skipped["ids"] and all(i.startswith("train") for i in skipped["ids"])
    assert "the update was skipped" in (folder / "log.txt").read_text()
    assert (folder / "results.json").exists()


def test_nan_loss_without_end_stops(tiny, cli, tmp_path):
    (plugin := tmp_path / "nan_plugin.py").write_text(PLUGIN)
    done = cli(
        "train",
        tiny(),
        "--plugin",
        plugin,
        "losses.text={type: poisoned, times: 1000}",
        "train.max_skipped=3",
        "train.steps=30",
        check=False,
    )
    assert done.returncode == 1
    assert "steps in a row had a loss or gradient that was not finite" in done.stderr
    folder = tmp_path / "runs" / "run"
    assert len(events(folder, "failed")) == 1 and not (folder / "checkpoints" / "latest").exists()


@pytest.mark.long
def test_worker_that_dies(tiny, cli, tmp_path):
    (plugin := tmp_path / "kill_plugin.py").write_text(PLUGIN)
    settings = ["data.workers=1", "data.prefetch=1", "train.steps=40", "train.save_every=40"]
    done = cli("train", tiny(), "--plugin", plugin, "callbacks=[{type: kill_worker}]", *settings, check=False)
    assert done.returncode == 1
    assert "A data worker process died" in done.stderr and "Traceback" not in done.stderr
    folder = tmp_path / "runs" / "run"
    assert (folder / "checkpoints" / "latest").exists(), "the steps before the failure are saved"
    again = cli("train", tiny(), *settings)
    assert "Resuming from step" in again.stdout


@pytest.fixture
def broken_corpus(corpus: Path, tmp_path: Path):
    """A corpus of 200 records of which every `every`-th has a file that cannot be decoded."""

    def make(every: int) -> Path:
        folder = tmp_path / f"broken{every}"
        folder.mkdir()
        lines = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
        records = []
        for i in range(200):
            record = {**lines[i % 16], "id": f"r{i}", "audio_path": str(corpus / lines[i % 16]["audio_path"])}
            if i % every == every - 1:
                bad = folder / f"bad{i}.wav"
                bad.write_bytes(b"RIFF\x00\x00\x00\x00WAVEjunk")
                record |= {"audio_path": str(bad), "duration": 0.8}
            records.append(json.dumps(record))
        (folder / "train.jsonl").write_text("\n".join(records))
        return folder / "train.jsonl"

    return make


def test_one_percent_broken_files_are_listed(tiny, cli, tmp_path, broken_corpus):
    path = broken_corpus(100)
    done = cli(
        "train",
        tiny(),
        f"data.train.0.path={path}",
        "data.max_items=16",
        "data.batch_tokens=2000",
        "train.steps=20",
        "train.eval_every=20",
    )
    folder = tmp_path / "runs" / "run"
    results = json.loads((folder / "results.json").read_text())
    assert results["data"]["dropped"] == {"unreadable": 2} and results["data"]["used"] == 198
    assert "The first record dropped while training (unreadable): r" in done.stdout
    assert "Dropped in all 2 (unreadable): r" in done.stdout
    assert {e["id"] for e in events(folder, "bad_audio")} == {"r99", "r199"}
    assert any("bad99.wav" in line for line in results["data"]["named"]["unreadable"]), done.stdout


def test_ten_percent_broken_files_stop_the_run(tiny, cli, tmp_path, broken_corpus):
    path = broken_corpus(10)
    done = cli(
        "train",
        tiny(),
        f"data.train.0.path={path}",
        "data.max_items=16",
        "data.batch_tokens=2000",
        "train.steps=50",
        check=False,
    )
    assert done.returncode == 3
    assert "more than `data.max_bad` allows (1.0%)" in done.stderr and re.search(r"bad\d+9\.wav", done.stderr)
    assert "Traceback" not in done.stderr
    assert len(events(tmp_path / "runs" / "run", "failed")) == 1


def test_tracker_that_raises_does_not_stop(tiny, cli, tmp_path):
    """TensorBoard's folder is a file, so that its writer raises."""
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "tensorboard").write_text("in the way")
    done = cli("train", tiny(), "callbacks=[{type: tracking, tensorboard: true}]", "train.steps=2")
    assert (folder / "results.json").exists()
    assert "tensorboard" in done.stdout.lower()
