"""docs/from-universal.md leaves no key of the universal pipeline out, and names only what there is."""

import re
import shlex
from pathlib import Path

import pytest

from conversion_page import KEY, columns, is_unknown, mistakes, rows, text_of
from stentor.config.convert import universal

PAGE = text_of("from-universal.md")
ROWS = rows(PAGE, "universal")
LEFT, RIGHT = columns(PAGE, "universal")
RUN = """\
task: {type: diarize}
model: {type: transformer, encoder: {d_model: 32}}
data: {train: [{type: corpus, name: ami}], eval: {dev: {type: corpus, name: ami}}}
losses: {speakers: pit_bce, norm_reg: norm_reg}
"""


@pytest.fixture
def run(tmp_path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


def test_every_row_has_an_answer():
    assert len(ROWS) > 60 and all(row[1].strip() for row in ROWS)


def test_every_key_that_is_converted_is_told(tmp_path):
    """By its own name, its last two or last parts, or by the section it stands in."""
    (tmp_path / "empty.yaml").write_text("training: {epochs: 1}")
    known = universal.convert(tmp_path / "empty.yaml").known
    assert len(known) > 150
    for key in known:
        parts = key.split(".")
        names = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        assert names & {*LEFT}, key


def keys():
    matches = {text for text in RIGHT if re.fullmatch(KEY, text)}
    return sorted({f"{key}=null" for key in matches} | {t.replace(": ", "=", 1) for t in RIGHT if "callbacks: " in t})


def test_there_are_keys():
    assert len(keys()) > 50 and "losses.speakers.label_smoothing=null" in keys()


@pytest.mark.parametrize("override", keys())
def test_every_key_that_is_named_exists(run, override):
    """Null may be a wrong value, but not of an unknown key."""
    message = mistakes(run, override)
    assert not message or override.endswith("=null"), message
    elsewhere = "is a key of type 'transcribe'" in message  # as the page says of `task.beams`
    assert elsewhere or not is_unknown(message)


@pytest.mark.parametrize("wrong", ["optim.learning", "losses.speakers.smoothing", "model.features.mels"])
def test_a_key_that_does_not_exist_would_be_noticed(run, wrong):
    assert "unknown key" in mistakes(run, f"{wrong}=null")


def test_the_commands_are_named_as_the_conversion_names_files(tmp_path):
    (tmp_path / "full_experiment.yml").write_text("model: {model_type: encoder_decoder, name: speech_translator}\n")
    name = universal.convert(tmp_path / "full_experiment.yml").name
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert all(line[2] == f"runs.d/{name}.yaml" for line in lines if line[1] == "train")
