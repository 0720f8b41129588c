"""The form is the schema's: labels, help and limits come from it, and what it changes in a run file loads."""

import re

import pytest

from stentor.config.load import load_text
from stentor.config.reference import keys
from stentor.config.yaml_writer import dump
from stentor.errors import ConfigError
from stentor.studio.runs.form import BASIC, changed, form, form_of, plain, sections, shown, value_of

FILE = dump(
    {
        "task": {"type": "transcribe"},
        "model": {"type": "seq2seq", "from": "openai/whisper-tiny", "lora": {}},
        "data": {"train": [{"type": "jsonl", "path": "train.jsonl"}]},
        "optim": {"lr": 1e-5},
    }
)


def row(key, text=FILE):
    return next(row for row in form_of(text)[0] if row.key == key)


def test_every_row_is_a_key_of_the_schema_with_its_documentation():
    known = {key.replace("[transcribe]", "").replace("[seq2seq]", "") for key, *_ in keys()}
    rows = form("transcribe", "seq2seq")
    assert {row.key for row in rows if not (row.basic and row.basic.off)} <= known
    assert {"task.beams", "model.lora.rank", "optim.lr", "train.steps", "data.augment.speed"} <= {r.key for r in rows}
    assert not [row.key for row in rows if not row.label or f"`{row.key}`" not in row.help]
    assert len({row.key for row in rows}) == len(rows)
    assert {row.section for row in rows} <= set(sections())


@pytest.mark.parametrize("family", ["speech_llm", "audio_llm", "seq2seq"])
def test_help_keeps_its_marks_and_its_words(family):
    """The patterns are Gradio's."""
    from stentor.studio.steps.shared import literal

    for help in [row.help for row in form("transcribe", family)]:
        page = literal(help)
        for pattern in (r"\*[^\n\r\u2028]+?\*", r"__[^\n\r\u2028]+?__", r"(?<!\w)_[^\n\r\u2028]+?_(?!\w)", r"\]\("):
            assert not re.search(pattern, page), page
        assert re.sub("[\u2028\u2060]", "", page).replace("\r", " ") == help
        assert "\r" not in re.sub(r"\S*[*_]\S*\r", "", page)  # what is searched in the page is found


def test_basic_rows_come_first_and_exist_for_some_family():
    rows = form("transcribe", "seq2seq")
    basic = [row.basic is not None for row in rows]
    assert basic == sorted(basic, reverse=True)
    assert {row.key for row in rows if row.basic} == {basic.key for basic in BASIC}


def test_limits_and_choices_are_the_schemas():
    rows = {row.key: row for row in form("transcribe", "seq2seq")}
    assert rows["train.precision"].kind == "choice"
    assert rows["train.precision"].options == ("auto", "fp32", "bf16", "fp16")
    assert (rows["optim.momentum"].least, rows["optim.momentum"].most) == (0.0, 1.0)
    assert rows["train.steps"].kind == "integer" and rows["train.steps"].optional
    assert rows["train.compile"].kind == "switch"
    assert rows["callbacks"].kind == "yaml"


def test_a_widget_shows_what_the_file_says():
    _, tree = form_of(FILE)
    assert shown(row("optim.lr"), tree) == "1.0e-05"
    assert shown(row("model.from"), tree) == "openai/whisper-tiny"
    assert shown(row("train.compile"), tree) is False
    assert shown(row("train.clip"), {"train": {"clip": None}}) == "null"
    assert shown(row("train.steps"), tree) == ""
    assert value_of(row("model.lora.rank"), tree) == 16


def test_changes_are_written_into_the_file_and_load():
    text = FILE
    for key, value in {
        "train.epochs": "20",
        "optim.lr": "1e-4",
        "model.lora.rank": "4",
        "train.clip": "null",
        "data.augment.speed": "[0.9, 1.1]",
        "train.precision": "auto",
    }.items():
        text = changed(text, row(key), value)
    config = load_text(text).config
    assert (config.train.epochs, config.optim.lr, config.model.lora.rank) == (20, 1e-4, 4)
    assert config.train.clip is None and list(config.data.augment.speed) == [0.9, 1.1]
    assert "precision" not in text, "a default need not be written"
    assert "epochs: 20\n" in text, "as it was typed"
    assert changed(changed(FILE, row("train.epochs"), "3"), row("train.epochs"), "") == FILE


@pytest.mark.parametrize("key", [r.key for r in form("transcribe", "seq2seq")])
def test_what_a_widget_shows_changes_nothing(key):
    """So an event that nobody caused does no harm."""
    one = row(key)
    assert plain(changed(FILE, one, shown(one, plain(FILE)))) == plain(FILE)


def test_what_a_person_wrote_by_hand_stays():
    text = FILE + "schedule:\n  type: linear\nnotes_that_are_wrong: 1\n"
    new = changed(text, row("train.epochs"), "5")
    assert plain(new)["schedule"] == {"type": "linear"} and "notes_that_are_wrong" in new


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.steps", "0", "outside of its limits"),
        ("optim.lr", "much", "not a number"),
        ("optim.lr", "", "'' is not a number"),
        ("train.keep", "1.5", "whole number"),
        ("callbacks", "[a", "YAML"),
        ("optim.lr", "nan", "finite"),
        ("optim.lr", "1e999", "finite"),
        ("train.device", "tpu", "none of"),
    ],
)
def test_wrong_values_are_told_with_their_key(key, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        changed(FILE, row(key), value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no `type` of its task"),
        ("task: transcribe\n\tmodel: x\n", r"run\.yaml:2"),
        ("- a", "keys with values"),
        ("model: whisper", "no `type` of its task"),
        ("task: transcribe\nmodel: ../../etc", "no model of type"),
    ],
)
def test_files_that_say_no_task_and_model_have_no_form(text, message):
    with pytest.raises(ConfigError, match=message):
        form_of(text)
