"""docs/from-universal.md leaves no key of the universal pipeline out, and names only what there is."""

import re
import shlex
from pathlib import Path

import pytest

from stentor.config.convert import universal
from stentor.config.document import Mistakes
from stentor.config.load import load

PAGE = (Path(__file__).parents[2] / "docs" / "from-universal.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split(" | ", 1) for line in PAGE.splitlines() if re.match(r"\| (?!universal)", line)]
LEFT, RIGHT = (re.findall(r"`([^`]+)`", "\n".join(side)) for side in zip(*ROWS, strict=True))
RUN = """\
task: {type: diarize}
model: {type: transformer, encoder: {d_model: 32}}
data: {train: [{type: corpus, name: ami}], eval: {dev: {type: corpus, name: ami}}}
losses: {speakers: pit_bce, norm_reg: norm_reg}
"""


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
    named = r"name|output|(model|data|optim|schedule|train|losses|task)\.[\w.]+"
    found = {text for text in RIGHT if re.fullmatch(named, text)}
    return sorted({f"{key}=null" for key in found} | {t.replace(": ", "=", 1) for t in RIGHT if "callbacks: " in t})


def test_there_are_keys():
    assert len(keys()) > 50 and "losses.speakers.label_smoothing=null" in keys()


@pytest.mark.parametrize("override", keys())
def test_every_key_that_is_named_exists(tmp_path, override):
    """Null may be a wrong value, but not of an unknown key."""
    (tmp_path / "run.yaml").write_text(RUN)
    try:
        load(tmp_path / "run.yaml", [override])
    except Mistakes as error:
        assert override.endswith("=null"), error
        elsewhere = "is a key of type 'transcribe'" in str(error)  # as the page says of `task.beams`
        assert elsewhere or ("unknown key" not in str(error) and "there is no" not in str(error))


def test_a_key_that_does_not_exist_would_be_noticed(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    for wrong in ("optim.learning=null", "losses.speakers.smoothing=null", "model.features.mels=null"):
        with pytest.raises(Mistakes, match="unknown key"):
            load(tmp_path / "run.yaml", [wrong])


def test_the_commands_are_named_as_the_conversion_names_files(tmp_path):
    (tmp_path / "full_experiment.yml").write_text("model: {model_type: encoder_decoder, name: speech_translator}\n")
    name = universal.convert(tmp_path / "full_experiment.yml").name
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    lines = [shlex.split(line) for line in block.splitlines()]
    assert all(line[2] == f"runs.d/{name}.yaml" for line in lines if line[1] == "train")
