"""Golden messages of `stentor speak` and of `stentor evaluate` on evaluation lists: each command of wrong_speak.txt and
wrong_lists.txt is answered with the exit code and the text below it, and writes nothing.

After a change of a message, write the texts again and read the difference:

    .venv/bin/python tests/errors/test_wrong_commands.py
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
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))
sys.path.insert(0, str(Path(__file__).parent))
from speaking import RATE, make_codec, make_model, voiced
from world import answer, speaks_plainly

from stentor.audio.io import write
from stentor.inference.speak.voice import Voice, save_voice
from stentor.models.codecs.base import open_codec

LISTS = {
    "gone.lst": "u1|a prompt|nobody.wav|one two\n",
    "empty.lst": "u1|a prompt|anna.wav|\n",
    "columns.lst": "u1|a prompt|anna.wav|one two|anna.wav|six\n",
    "twice.lst": "u1|a prompt|anna.wav|one\nu1|a prompt|anna.wav|two\n",
    "brief.lst": "u1|a prompt|brief.wav|one two\n",
    "hour.lst": "u1|a prompt|hour.wav|one two\n",
    "silent.lst": "u1|a prompt|silent.wav|one two\n",
    "textless.lst": "u1|one two|anna.wav\n",
    "letters.lst": "u1|a prompt|anna.wav|你好\n",
    "good.lst": "u1|a prompt|anna.wav|one two\nu2|a prompt|anna.wav|three\n",
    "blank.lst": "|\n",
    "gone.tsv": "u1\ta prompt\tnobody.wav\tone two\n",
    "empty.tsv": "u1\ta prompt\tanna.wav\t\n",
    "columns.tsv": "u1\ta prompt\tanna.wav\tone\nu2\ta prompt\tanna.wav\n",
    "gone.pc.lst": "1-2-0001\t2.0\ta prompt\t1-3-0001\t2.0\tone two\n",
    "utterance.pc.lst": "anna\t2.0\ta prompt\tben\t2.0\tone two\n",
    "empty.pc.lst": "1-2-0001\t2.0\ta prompt\t1-3-0001\t2.0\t \n",
    "columns.pc.lst": "1-2-0001\t2.0\ta prompt\t1-3-0001\tone two\n",
    "minimax/text/english.txt": "english_male|one two\n",
    "minimax/text/empty.txt": "anna|\n",
    "minimax/text/columns.txt": "anna|one|two\n",
    "gone.jsonl": '{"id": "u1", "text": "one two", "ref_audio": "nobody.wav", "ref_text": "a prompt"}\n',
    "empty.jsonl": '{"id": "u1", "text": "", "ref_audio": "anna.wav", "ref_text": "a prompt"}\n',
    "number.jsonl": '{"id": "u1", "text": "one", "reference": "anna.wav", "reference_text": 1}\n',
    "broken.jsonl": '{"id": "u1", "text": "one", "ref_audio": "anna.wav"}\n{"id": "u2", "text"\n',
    "brief.tsv": "u1\ta prompt\tbrief.wav\tone two\n",
    "hour.tsv": "u1\ta prompt\thour.wav\tone two\n",
    "brief.pc.lst": "1-8-0001\t0.1\ta prompt\t1-3-0001\t2.0\tone two\n",
    "hour.pc.lst": "1-9-0001\t3600.0\ta prompt\t1-3-0001\t2.0\tone two\n",
    "minimax/speaker/prompt_text.txt": "brief.wav|a prompt\nhour.wav|a prompt\n",
    "minimax/text/brief.txt": "brief|one two\n",
    "minimax/text/hour.txt": "hour|one two\n",
    "brief.jsonl": '{"id": "u1", "text": "one", "reference": "brief.wav", "reference_text": "a prompt"}\n',
    "hour.jsonl": '{"id": "u1", "text": "one", "reference": "hour.wav", "reference_text": "a prompt"}\n',
    "plain.lst": "one two\n",
}


def build_lists(folder: Path) -> None:
    """Evaluation lists in every format, and the recordings that they name."""
    make_model(folder / "model")
    for name, text in LISTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write(folder / "anna.wav", voiced(2), RATE)
    for name in ("brief.wav", "1/8/1-8-0001.flac", "minimax/speaker/brief.wav"):
        write(folder / name, voiced(0.1), RATE)
    for name in ("hour.wav", "1/9/1-9-0001.flac", "minimax/speaker/hour.wav"):
        write(folder / name, np.full(3600 * 1000, 0.1, np.float32), 1000)
    write(folder / "silent.wav", np.zeros(RATE, np.float32), RATE)
    write(folder / "minimax" / "speaker" / "anna.wav", voiced(2), RATE)
    write(folder / "made" / "u1.wav", voiced(2), RATE)


def build_speak(folder: Path) -> None:
    """Models that speak, voices and recordings, each with one thing about it."""
    make_model(folder / "model")
    make_model(folder / "published", published=True)
    write(folder / "anna.wav", voiced(2), RATE)
    write(folder / "short.wav", voiced(0.1), RATE)
    write(folder / "long.wav", voiced(180), RATE)
    write(folder / "hour.wav", np.full(3600 * 1000, 0.1, np.float32), 1000)
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


WORLDS = {"wrong_lists.txt": build_lists, "wrong_speak.txt": build_speak}
"""Folders that the commands of each file name."""
GOLDEN = {
    name: dict(case.split("\n", 1) for case in Path(__file__).with_name(name).read_text("utf-8").split("$ ")[1:])
    for name in WORLDS
}
"""File -> command -> answer."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    pytest.importorskip("unicode_rbnf")
    folders = {name: tmp_path_factory.mktemp("world") for name in WORLDS}
    for name, build in WORLDS.items():
        build(folders[name])
    return folders


def run(command: str) -> str:
    """The golden text of a command in the current folder."""
    code, stderr = answer(*shlex.split(command)[1:])
    return f"exit {code}\n{stderr.strip()}\n".replace(f"{Path.cwd()}/", "")


@pytest.mark.parametrize(("name", "command"), [(name, command) for name in GOLDEN for command in GOLDEN[name]])
def test_a_wrong_command_is_answered_with_the_golden_text(name, command, worlds, monkeypatch):
    golden = GOLDEN[name][command].rstrip("\n") + "\n"
    monkeypatch.chdir(worlds[name])
    before = sorted(worlds[name].rglob("*"))
    assert run(command) == golden
    assert sorted(worlds[name].rglob("*")) == before
    assert speaks_plainly(golden)


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    for name, commands in GOLDEN.items():
        with tempfile.TemporaryDirectory() as scratch:
            WORLDS[name](Path(scratch))
            os.chdir(scratch)
            texts = "".join(f"$ {command}\n{run(command)}\n" for command in commands)
            Path(__file__).with_name(name).write_text(texts, encoding="utf-8")
