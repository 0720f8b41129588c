"""docs/from-omnivoice.md leaves no field of OmniVoice's configs out, and names only what there is."""

import re
from pathlib import Path

import pytest
import typer

from stentor.cli import build
from stentor.config.convert import omnivoice
from stentor.config.document import Mistakes
from stentor.config.load import load

PAGE = (Path(__file__).parents[2] / "docs" / "from-omnivoice.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split(" | ", 1) for line in PAGE.splitlines() if re.match(r"\| (?!OmniVoice)", line)]
LEFT, RIGHT = (re.findall(r"`([^`]+)`", "\n".join(side)) for side in zip(*ROWS, strict=True))
RUN = """\
task: {type: speak}
model: {type: omnivoice, llm: {from: Qwen/Qwen3-0.6B}, lora: {}}
data: {train: [{type: shards, path: data.lst}], eval: {dev: {type: shards, path: dev.lst}}}
losses: {codes: codebook}
"""


def test_every_row_has_an_answer():
    assert len(ROWS) > 50 and all(row[1].strip() for row in ROWS)


def test_every_key_that_is_converted_is_told(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    known = omnivoice.convert(tmp_path / "empty.json").known
    assert len(known) > 40
    assert {*known, *omnivoice._ENTRY, "train", "dev"} <= {name.split()[0] for name in LEFT}


def keys() -> list[str]:
    named = r"name|output|(model|data|optim|schedule|train|losses|task)\.[\w.]+"
    found = {text.split()[0] for text in RIGHT if re.fullmatch(named, text.split()[0])}
    return sorted(key for key in found if not key.endswith(".lst"))


def test_there_are_keys():
    assert len(keys()) > 40 and "losses.codes.weights" in keys() and "model.entries" in keys()


@pytest.mark.parametrize("key", keys())
def test_every_key_that_is_named_exists(tmp_path, key):
    """Null may be a wrong value, but not of an unknown key."""
    (tmp_path / "run.yaml").write_text(RUN)
    try:
        load(tmp_path / "run.yaml", [f"{key}=null"])
    except Mistakes as error:
        assert "unknown key" not in str(error) and "there is no" not in str(error)


def test_a_key_that_does_not_exist_would_be_noticed(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    for wrong in ("optim.learning=null", "task.mask_ratio=null", "model.lora.r=null"):
        with pytest.raises(Mistakes, match="unknown key"):
            load(tmp_path / "run.yaml", [wrong])


def options(*verbs: str) -> set[str]:
    command = typer.main.get_command(build())
    for verb in verbs:
        command = command.commands[verb]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_that_is_named_exists():
    known = options("prepare", "tokens") | options("train") | options("evaluate") | options("speak")
    named = {option for text in RIGHT for option in re.findall(r"--[a-z-]+", text)}
    assert len(named) > 15 and not named - known
