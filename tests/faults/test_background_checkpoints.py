"""What goes wrong while a checkpoint is written beside the training loses that checkpoint and nothing else."""

import json
import signal

import pytest
from safetensors.torch import load_file

from run_events import events, wait_for

PLUGIN = """
import json, os, signal, threading, time
from pathlib import Path
from typing import Literal
from stentor.engine.callback import Callback
from stentor.engine import checkpoint_writer

save_shards = checkpoint_writer.save_shards
stepped = threading.Event()

def troubled(folder, kind, shards, rank=0, world=1):
    path = save_shards(folder, kind, shards, rank, world)
    if folder.parent.name == ".step-000004.tmp" and kind == "optimizer" and rank == world - 1:
        {}
    return path

checkpoint_writer.save_shards = troubled
to_host = checkpoint_writer._to_host

def late(*arguments, **options):
    time.sleep(0.3)  # in which training would take several steps
    to_host(*arguments, **options)

checkpoint_writer._to_host = late

class Watch(Callback):
    type: Literal["watch"] = "watch"
    log: str
    def on_start(self, trainer):
        def uploaded(folder):
            latest = (folder.parent / "latest").read_text().strip()
            with open(self.log + "-uploads", "a") as file:
                print(latest, threading.current_thread().name, file=file)
        trainer.after_checkpoint = uploaded
    def on_step(self, trainer):
        if trainer.step == 6:
            stepped.set()
    def on_save(self, trainer, folder):
        with open(self.log, "a") as file:
            names = sorted(p.name for p in folder.iterdir())
            file.write(json.dumps([trainer.rank, trainer.step, folder.name, names]) + "\\n")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
FULL = "raise OSError(28, 'No space left on device')"
WAIT = "assert stepped.wait(120), 'training does not go on'"
SLOW = "Path(os.environ['STENTOR_TEST_FLAG']).touch(); time.sleep(2)"


@pytest.fixture
def troubled(tmp_path):
    """Options of a run for which a statement is executed when most of the checkpoint of step 4 is written."""

    def options(statement: str) -> list[object]:
        (plugin := tmp_path / "trouble.py").write_text(PLUGIN.format(statement))
        return ["--plugin", plugin, f"callbacks=[{{type: watch, log: '{tmp_path / 'saves'}'}}]"]

    return options


def saves(tmp_path) -> list[list]:
    return [json.loads(line) for line in (tmp_path / "saves").read_text().splitlines()]


def checkpoints(folder) -> set[str]:
    return {p.name for p in (folder / "checkpoints").iterdir()}


def test_training_goes_on_beside_the_write(tiny, cli, troubled, tmp_path):
    """The write of step 4 ends after step 6 has been trained, and holds step 4: a run that goes on from it is the
    straight one. Callbacks are told when it is complete."""
    settings = ["train.save_every=4", "train.eval_every=8", "train.steps=8", "train.ema=0.9"]
    cli("train", tiny(), *settings, *troubled(WAIT))
    done = {s[2]: s for s in saves(tmp_path)}
    assert done["step-000004"][1] >= 6 and done["step-000008"][1] == 8
    assert all(s[3] == ["export", "meta.json", "resume"] for s in done.values())
    uploads = (tmp_path / "saves-uploads").read_text().splitlines()
    assert uploads == ["step-000004 checkpoint", "step-000008 checkpoint"], "in the thread that wrote them"
    folder = tmp_path / "runs" / "run"
    assert [e["step"] for e in events(folder, "saved")] == [4, 8]
    straight = load_file(folder / "export" / "model.safetensors")
    for name in ("results.json", "checkpoints/step-000008/meta.json"):
        (folder / name).unlink()
    again = cli("train", tiny(), *settings)
    assert "Resuming from step 4" in again.stdout
    resumed = load_file(folder / "export" / "model.safetensors")
    assert resumed.keys() == straight.keys() and all(resumed[n].equal(straight[n]) for n in straight)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_while_it_is_written(tiny, cli, troubled, tmp_path, processes):
    config = tiny()
    done = cli("train", config, *troubled(KILL), "--processes", processes, check=False)
    assert done.returncode != 0
    if processes > 1:
        assert "process 1 of 2 was ended by signal 9" in done.stderr
    folder = tmp_path / "runs" / "run"
    assert {n for n in checkpoints(folder) if n.startswith("step")} == {"step-000002"}
    assert (folder / "checkpoints" / "latest").read_text() == "step-000002\n"
    again = cli("train", config, "train.save_every=3", "--processes", processes)
    assert "Resuming from step 2" in again.stdout
    assert checkpoints(folder) >= {"step-000006"} and not list(folder.rglob(".step*"))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_is_said_by_all(tiny, cli, troubled, tmp_path, processes):
    """Of several processes the last one has no room; the first one says it."""
    done = cli("train", tiny(), *troubled(FULL), "--processes", processes, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "The checkpoint of step 4 could not be written to" in done.stderr
    assert "No space left on device" in done.stderr and "the newest complete checkpoint is step-000002" in done.stderr
    folder = tmp_path / "runs" / "run"
    assert checkpoints(folder) == {"step-000002", "latest"}
    [failed] = events(folder, "failed")
    assert "could not be written" in failed["error"] and [e["step"] for e in events(folder, "saved")] == [2]


@pytest.mark.long
def test_a_signal_waits_for_the_write(tiny, start, troubled, tmp_path):
    flag = tmp_path / "writing"
    process = start("train", tiny(), "train.steps=400", *troubled(SLOW), STENTOR_TEST_FLAG=str(flag))
    wait_for(flag, "", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    folder = tmp_path / "runs" / "run"
    [stopped] = events(folder, "stopped")
    assert (folder / "checkpoints" / "latest").read_text() == f"step-{stopped['step']:06d}\n"
    assert "step-000004" in {s[2] for s in saves(tmp_path)} and not list(folder.rglob(".step*"))


def test_a_damaged_shard_falls_back(tiny, cli, tmp_path):
    config, folder = tiny(), tmp_path / "runs" / "run"
    cli("train", config, "train.steps=4", processes=2)
    shard = folder / "checkpoints" / "step-000004" / "resume" / "optimizer-00002-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-5] ^= 1
    shard.write_bytes(raw)
    done = cli("train", config, "train.steps=6")
    assert "(resume/optimizer-00002-of-00002.safetensors is not as it was written)" in done.stdout
    assert "Resuming from step 2" in done.stdout and (folder / "results.json").exists()
