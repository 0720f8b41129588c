"""Golden messages of `stentor evaluate` on evaluation lists: each command of wrong_lists.txt is answered with the exit
code and the text below it.

After a change of a message, write the texts again and read the difference:

    .venv/bin/python tests/errors/test_wrong_lists.py
"""

import os
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))
from speaking import RATE, make_model, voiced
from world import answer

GOLDEN = Path(__file__).with_name("wrong_lists.txt")
CASES = dict(case.split("\n", 1) for case in GOLDEN.read_text(encoding="utf-8").split("$ ")[1:])
"""Command -> answer."""
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
    "columns.tsv": "u1\ta prompt\tanna.wav\n",
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


def build(folder: Path) -> None:
    """What the commands name."""
    from stentor.audio.io import write

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


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    build(folder)
    return folder


def run(command: str) -> str:
    """The golden text of a command in the current folder."""
    code, stderr = answer(*shlex.split(command)[1:])
    return f"exit {code}\n{stderr.strip()}\n".replace(f"{Path.cwd()}/", "")


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_list_is_answered_with_the_golden_text(command, world, monkeypatch):
    monkeypatch.chdir(world)
    assert run(command) == CASES[command].rstrip("\n") + "\n"


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
