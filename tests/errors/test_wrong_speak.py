"""Golden messages of `stentor speak`: each command of wrong_speak.txt is answered with the exit code and the text below
it, and writes nothing.

After a change of a message, write the texts again and read the difference:

    .venv/bin/python tests/errors/test_wrong_speak.py
"""

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))
sys.path.insert(0, str(Path(__file__).parent))
from speaking import RATE, make_codec, make_model, voiced
from world import answer

GOLDEN = Path(__file__).with_name("wrong_speak.txt")
CASES = dict(case.split("\n", 1) for case in GOLDEN.read_text(encoding="utf-8").split("$ ")[1:])
"""Command -> answer."""


def build(folder: Path) -> None:
    """What the commands name."""
    import torch

    from stentor.audio.io import write
    from stentor.inference.speak.voice import Voice, save_voice
    from stentor.models.codecs.base import open_codec

    make_model(folder / "model")
    make_model(folder / "published", published=True)
    write(folder / "anna.wav", voiced(2), RATE)
    write(folder / "short.wav", voiced(0.1), RATE)
    write(folder / "long.wav", voiced(180), RATE)
    write(folder / "hour.wav", np.tile(voiced(10), 360), RATE)
    write(folder / "silent.wav", np.zeros(RATE, np.float32), RATE)
    other = make_codec(seed=7)
    save_voice(Voice(other.encode([voiced(2)])[0], "one"), folder / "other", other)
    codec = open_codec(str(folder / "model"))
    save_voice(Voice(codec.encode([voiced(2)])[0], "one"), folder / "model" / "voices" / "anna", codec)
    for name in ("half", "damaged"):
        save_voice(Voice(codec.encode([voiced(2)])[0], "one"), folder / name, codec)
    (folder / "half.safetensors").unlink()
    (folder / "damaged.json").write_text("{")
    prompt = {"format_version": 1, "ref_audio_tokens": torch.zeros(8, 50, dtype=torch.int64)}
    torch.save({**prompt, "ref_text": "a", "ref_rms": 0.1}, folder / "theirs.pt")
    (folder / "cut.pt").write_bytes((folder / "theirs.pt").read_bytes()[:900])
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "weights.pt")
    (folder / "text.pt").write_text("Hello.")
    (folder / "empty.pt").write_text("")
    shutil.copytree(folder / "model", folder / "hears")
    (folder / "hears" / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    shutil.copytree(folder / "model", folder / "mute", ignore=shutil.ignore_patterns("audio_tokenizer"))
    told(folder, "named", ["anna", "ben"], instruct_from="speaker")
    told(folder, "undescribed", [])
    (folder / "afile").write_text("")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "folder").mkdir()


def told(folder: Path, name: str, instructs: list[str], **task) -> None:
    """A model whose training records had these instructs."""
    copy = shutil.copytree(folder / "model", folder / name)
    for file, key, change in (("stentor.json", None, {"instructs": instructs}), ("training_config.json", "task", task)):
        values = json.loads((copy / file).read_text())
        (values if key is None else values[key]).update(change)
        (copy / file).write_text(json.dumps(values))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("unicode_rbnf")
    folder = tmp_path_factory.mktemp("world")
    build(folder)
    return folder


def run(command: str) -> str:
    """The golden text of a command in the current folder."""
    code, stderr = answer(*shlex.split(command)[1:])
    return f"exit {code}\n{stderr.strip()}\n"


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_command_is_answered_with_the_golden_text(command, world, monkeypatch):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    assert run(command) == CASES[command].rstrip("\n") + "\n"
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize("command", CASES)
def test_golden_texts_speak_plainly(command):
    code, first, *_ = CASES[command].splitlines()
    assert code in ("exit 2", "exit 3") and first.startswith("stentor: ")
    assert not any(word in CASES[command] for word in ("Traceback", "Error:", "NoneType", "unexpected failure", "/tmp"))


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        build(Path(scratch))
        os.chdir(scratch)
        GOLDEN.write_text("".join(f"$ {c}\n{run(c)}\n" for c in CASES), encoding="utf-8")
