"""Prepare commands that are killed in the middle: what was done stays, nothing outlives the command, and the same
command ends with what a straight run makes."""

import json
import os
import signal
from pathlib import Path

import pytest

from process_group import lives, wait_for

pytestmark = pytest.mark.slow

SLOWLY = """\
import contextlib
import time
from typing import Literal
import stentor.pipeline.runner as runner
from stentor.engine.callback import Callback

class Slow(Callback):
    type: Literal["slow"] = "slow"

runner.progress = lambda title, unit: contextlib.nullcontext(lambda done, total: time.sleep(0.3))
"""
"""A command that takes its time after each group; a plug-in has to register something."""
MIXTURES = "type=conversation,source={{type: jsonl, path: {many}}},count=24,seconds=4,speakers=2,turn=[0.2, 3]"
VERBS = {
    "words": ("words {many} --engine ctc --model {ctc} --device cpu --to {to}/words.jsonl", "words.jsonl.part"),
    "segments": ("segments {many} --audio --device cpu --stage duplicates --to {to}", "pass-2.jsonl.part"),
    "tokens": ("tokens {many} --codec none --to {to}", "tokens.part"),
    "features": ("features {many} --option num_mel_bins=20 --to {to}", "*.jsonl"),
    "mixtures": ("mixtures {mixtures} --to {to}", "manifest.jsonl.part"),
}
"""Command, and the files with a line for each record or group that is done."""


@pytest.fixture
def many(corpus, tmp_path) -> Path:
    """A manifest of 96 records of the corpus's 16 files, by two speakers."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    changes = [{"id": f"{r['id']}-{i}", "audio_path": str(corpus / r["audio_path"])} for i in range(6) for r in records]
    lines = [{**r, **c, "speaker": "ab"[n % 2]} for n, (r, c) in enumerate(zip(records * 6, changes, strict=True))]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "many.jsonl"


def made(folder: Path) -> dict[str, bytes] | list[str]:
    """The files of a folder, but for what SIGKILL may leave beside them. Of features, of which each process writes
    files of its own, the records."""
    if list(folder.glob("*.bin")):
        return sorted(json.loads(line)["id"] for file in folder.glob("*.jsonl") for line in file.open())
    files = {str(f.relative_to(folder)): f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".")}
    return {name: file.read_bytes().replace(str(folder).encode(), b"TO") for name, file in files.items()}


@pytest.mark.parametrize(("verb", "jobs"), [("words", 1), *((verb, 2) for verb in VERBS)])
def test_killed_and_started_again_it_makes_the_same(verb, jobs, many, ctc_model, tmp_path, start, here):
    slowly, to = tmp_path / "slowly.py", tmp_path / "to"
    slowly.write_text(SLOWLY)
    text, part = VERBS[verb]

    def command(folder: Path) -> list[str]:
        places = {"many": many, "ctc": ctc_model, "to": folder, "mixtures": MIXTURES.format(many=many)}
        return ["prepare", *(word.format(**places) for word in text.split())]

    def done() -> int:
        return sum(file.read_bytes().count(b"\n") for file in to.glob(part))

    slow = [*command(to), "--plugin", slowly, "--jobs", jobs]
    process = start(*slow)
    wait_for(lambda: done() > 3, process)
    process.send_signal(signal.SIGKILL)  # the command alone: its processes end by themselves
    process.wait()
    wait_for(lambda: not lives(process.pid))
    killed = done()
    process = start(*slow)
    wait_for(lambda: done() > killed + 1, process)
    os.killpg(process.pid, signal.SIGTERM)  # as a batch system does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75 and "Stopped by SIGTERM; " in errors and "Run the same command to resume." in errors
    assert killed < done()
    assert "were" in (told := here(*command(to))) and "before" in told
    here(*command(tmp_path / "straight"))
    assert made(to) == made(tmp_path / "straight")
    assert not [path for path in to.glob("*.part") if not path.name.startswith(".")]
