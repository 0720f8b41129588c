"""docs/from-omnivoice.md leaves no field of OmniVoice's configs out, and names only what there is."""

import re
from pathlib import Path

import pytest

from conversion_page import KEY, columns, is_unknown, mistakes, rows, text_of
from stentor.cli import build
from stentor.config.convert import omnivoice

PAGE = text_of("from-omnivoice.md")
ROWS = rows(PAGE, "OmniVoice")
LEFT, RIGHT = columns(PAGE, "OmniVoice")
RUN = """\
task: {type: speak}
model: {type: omnivoice, llm: {from: Qwen/Qwen3-0.6B}, lora: {}}
data: {train: [{type: shards, path: data.lst}], eval: {dev: {type: shards, path: dev.lst}}}
losses: {codes: codebook}
"""


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


def test_every_row_has_an_answer():
    assert len(ROWS) > 50 and all(row[1].strip() for row in ROWS)


def test_every_key_that_is_converted_is_told(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    known = omnivoice.convert(tmp_path / "empty.json").known
    assert len(known) > 40
    assert {*known, *omnivoice._ENTRY, "train", "dev"} <= {name.split()[0] for name in LEFT}


def keys() -> list[str]:
    matches = {text.split()[0] for text in RIGHT if re.fullmatch(KEY, text.split()[0])}
    return sorted(key for key in matches if not key.endswith(".lst"))


def test_there_are_keys():
    assert len(keys()) > 40 and "losses.codes.weights" in keys() and "model.entries" in keys()


@pytest.mark.parametrize("key", keys())
def test_every_key_that_is_named_exists(run, key):
    """Null may be a wrong value, but not of an unknown key."""
    assert not is_unknown(mistakes(run, f"{key}=null"))


@pytest.mark.parametrize("wrong", ["optim.learning", "task.mask_ratio", "model.lora.r"])
def test_a_key_that_does_not_exist_would_be_noticed(run, wrong):
    assert "unknown key" in mistakes(run, f"{wrong}=null")


def options(*verbs: str) -> set[str]:
    command = build()
    for verb in verbs:
        command = command.commands[verb]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_that_is_named_exists():
    known = options("prepare", "tokens") | options("train") | options("evaluate") | options("speak")
    named = {option for text in RIGHT for option in re.findall(r"--[a-z-]+", text)}
    assert len(named) > 15 and not named - known
