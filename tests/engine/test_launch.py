"""`--processes`: the same run as under torchrun, with the exit code and the words of the process that failed."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from stentor.engine import launch


def started(folder) -> bool:
    return (folder / "metrics.jsonl").exists() and "train/loss" in (folder / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_the_same_run_under_every_launcher(tiny, cli, rows, tmp_path):
    """`--processes`, torchrun and `accelerate launch`, as docs/multi_gpu.md has them."""
    config = tiny()
    cli("train", config, "name=ours", "--processes", "2")
    cli("train", config, "name=torchrun", processes=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", str(port)]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "stentor", "train", str(config), "name=accelerate"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ours, *others = (rows(tmp_path / "runs" / name) for name in ("ours", "torchrun", "accelerate"))
    assert len(ours) == 6
    for theirs in others:
        assert [r["train/loss"] for r in theirs] == [r["train/loss"] for r in ours]
    for name in ("ours", "torchrun", "accelerate"):
        assert "2 processes (DDP)" in (tmp_path / "runs" / name / "log.txt").read_text()


def test_a_signal_stops_all_after_saving(tiny, start, cli, tmp_path):
    folder = tmp_path / "runs" / "stopped"
    process = start("train", tiny(), "name=stopped", "train.steps=100000", "--processes", "2")
    while not started(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert list((folder / "checkpoints").glob("step*")), errors


@pytest.mark.slow
def test_when_the_launcher_is_killed_its_processes_end(tiny, start, tmp_path):
    folder = tmp_path / "runs" / "orphans"
    process = start("train", tiny(), "name=orphans", "train.steps=100000", "--processes", "2")
    while not started(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.wait()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("processes outlived their launcher")


def test_a_process_that_dies_is_named(tmp_path, monkeypatch, capsys):
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport os, signal, time\n"
        "if os.environ['RANK'] == '1':\n    print('what went wrong', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(fake))
    monkeypatch.setattr(launch, "GRACE", 0.1)
    assert launch.launch(2, ["train"]) == 1
    errors = capsys.readouterr().err
    assert "process 1 of 2 failed" in errors and "what went wrong" in errors
    assert "signal 9 (often: out of memory)" in errors


def test_bad_input_is_said_once_with_its_exit_code(tiny, cli):
    done = cli("train", tiny(), "optim.lr=high", "--processes", "2", check=False)
    assert done.returncode == 2 and done.stderr.count("stentor: ") == 1
    done = cli("train", tiny(), "data.train.0.path=gone.jsonl", "--processes", "2", check=False)
    assert done.returncode == 3 and done.stderr.count("stentor: ") == 1, done.stderr


def test_not_within_another_launcher(tiny, cli):
    done = cli("train", tiny(), "--processes", "2", check=False, WORLD_SIZE="4", RANK="0")
    assert done.returncode == 2 and "started 4: leave it out" in done.stderr
