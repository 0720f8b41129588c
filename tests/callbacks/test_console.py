"""The console in processes of its own: on a terminal, in a pipe, in a pipe that nobody reads, and with none at all."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from conftest_callbacks import FakeTrainer
from pathlib import Path
from stentor.callbacks.console import Console
from stentor.metrics.score import Score

trainer, console = FakeTrainer(Path(sys.argv[1]).parent), Console()
trainer.say = lambda text: console._guard(lambda: print(text, flush=True))
console.on_start(trainer)
for trainer.step in range(1, 101):
    console.on_step(trainer)
    if trainer.step % 25 == 0:
        row = {{"step": trainer.step, "train/loss": 1 / trainer.step, "lr": 1e-3, "audio_seconds_per_second": 321.0}}
        console.on_metrics(trainer, row)
        console.on_metrics(trainer, {{"step": trainer.step, "memory_gb": 1.0}})
console.on_evaluate(trainer, "dev", {{"wer": Score(0.0361, 72, 2000, 0.029, 0.0441), "cer": Score(0.012)}}, [])
console.on_end(trainer, None)
print("after", flush=True)
open(sys.argv[1], "w").write("done")
"""


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    # The fake trainer lives in conftest.py, which the process imports under a name of its own.
    (tmp_path / "conftest_callbacks.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    return [sys.executable, "-c", SCRIPT.format(here=str(tmp_path)), str(tmp_path / "done")]


def environment(**extra: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLORTERM")}
    return {**inherited, "TERM": "xterm-256color", "COLUMNS": "100", **extra}


def on_terminal(command: list[str], **extra: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment(**extra))
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: the other end is gone
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def test_plain_lines_in_a_pipe(script):
    done = subprocess.run(script, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [f"step {n}/100" for n in (25, 50, 75, 100)]
    assert "loss 0.04  lr 1.00e-03  321 audio s/s" in lines[0]
    assert lines[4] == "step 100  dev: wer 3.61 % (72/2000, 95 %: 2.90–4.41 %)  cer 1.20 %"
    assert "\x1b" not in done.stdout


def test_a_bar_on_a_terminal(script):
    shown = on_terminal(script)
    assert "100/100" in shown
    assert "\x1b[" in shown
    assert "loss 0.01" in shown
    assert "step 25/100" not in shown  # the bar says it
    assert "dev: wer 3.61 %" in shown
    assert "after" in shown


def test_no_color_is_obeyed(script):
    shown = on_terminal(script, NO_COLOR="1")
    assert "100/100" in shown
    assert "\x1b[38" not in shown
    assert "\x1b[3" not in shown


def test_a_reader_that_leaves_does_not_end_the_run(script, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(script, stdout=write, stderr=subprocess.PIPE, text=True, env=environment())
    os.close(write)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (tmp_path / "done").exists()


def test_no_stdout_at_all(script, tmp_path):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *script]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").exists()


def test_the_time_left_goes_by_the_steps_alone(trainer, monkeypatch):
    """Scoring the base model for 500 s before the first step, or for 50 s between two, says nothing of the steps."""
    from types import SimpleNamespace

    from stentor.callbacks import console

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(console, "_on_terminal", lambda: False)
    callback = console.Console()
    callback.on_start(trainer)
    clock.now += 500.0
    for trainer.step in range(1, 41):
        clock.now += 2.0
        callback.on_step(trainer)
        if trainer.step % 10 == 0:
            clock.now += 50.0
            callback.on_evaluate(trainer, "dev", {}, [])
    callback.on_metrics(trainer, {"step": 40, "train/loss": 1.0})
    assert trainer.messages[-1].endswith("  2 min 00 s left")
