"""Choices and settings that cross on their way between the page and the server."""

import json

import pytest

from stentor.studio.runs import settings
from stentor.studio.runs.form import BASIC
from stentor.studio.runs.open_run_file import OpenRunFile

SMALL, OTHER = "small_speech_llm", "small_encoder_decoder"


@pytest.fixture
def page(projects):
    """An open page on a data set of ten sentences: `page.choose`, `page.edit`, and what it shows."""
    import numpy as np

    from stentor.studio.steps import train, train_settings

    dataset = projects.create("mine", "en")
    for number in range(10):
        dataset.add(np.full(1600, 0.1, "float32"), 16000, f"sentence number {number}")

    class Page:
        def __init__(self):
            self.open_file, self.number, self.text, self.name, self.notes = OpenRunFile(), 0, "", "", ""
            self.fields = {basic.key: (basic.on is not True and False) or "" for basic in BASIC}

        def shows(self):
            return [self.open_file, self.number, self.text, *self.fields.values(), self.name]

        def write(self, sent):
            """As the page does: what was typed since the event stays."""
            if isinstance(sent, str):
                sent = json.loads(sent)
                self.number, self.text = sent["number"], sent["text"]
                for key, change in zip([*self.fields, "name"], sent["fields"], strict=False):
                    now = self.name if key == "name" else self.fields[key]
                    if change and change[0] in (None, now):
                        self.fields |= {key: change[1]} if key in self.fields else {}
                        self.name = change[1] if key == "name" else self.name

        def choose(self, model, source="", at=None, hub="", method="full", meanwhile=lambda: None, **how):
            shows = self.shows() if at is None else at
            hub = (hub, None, None, 10.0)
            answer = train._choose(projects, "mine", "transcribe", model, None, source, *hub, method, *shows, **how)
            meanwhile()
            self.about, self.sent, notes, *_ = answer[3], *answer[-2 - len(BASIC) :]
            self.notes = notes if isinstance(notes, str) else self.notes
            self.write(self.sent)

        def edit(self, value, at=None, key="train.epochs"):
            shows = self.shows() if at is None else at
            self.fields[key] = value
            sent, _, self.remarks, self.start = train_settings._edited(projects, *shows[:3], "run", value, key=key)
            self.write(sent)

    return Page()


def test_a_setting_that_was_sent_with_the_run_file_of_before(page):
    page.choose(SMALL)
    before = page.shows()
    page.choose(OTHER)
    page.edit("7", at=before)
    assert "type: transformer" in page.text and "epochs: 7" in page.text and page.fields["train.epochs"] == "7"
    # Two settings, one right after the other.
    before = page.shows()
    page.edit("8")
    page.edit("0.5", at=before, key="optim.lr")
    assert "epochs: 8" in page.text and "lr: 0.5" in page.text
    # What is typed into the file counts, also where an answer was on its way.
    page.edit("9", at=[*page.shows()[:2], page.text + "name: typed\n"])
    assert "name: typed" in page.text and "epochs: 9" in page.text
    page.edit("10", at=[*before[:2], before[2] + "output: typed\n"])
    assert "output: typed" in page.text and "name: typed" in page.text and "epochs: 10" in page.text


def test_a_setting_that_is_typed_while_a_choice_is_answered(page):
    page.choose(SMALL)
    before = page.shows()
    page.choose(OTHER, meanwhile=lambda: page.fields.update({"train.epochs": "70"}))
    assert page.fields["train.epochs"] == "70" and "epochs: 70" not in page.text
    page.edit("70", at=before)
    assert "type: transformer" in page.text and "epochs: 70" in page.text


def test_what_was_typed_stays_when_another_choice_is_made(page):
    page.choose("whisper_tiny")
    proposed = page.fields["train.epochs"], page.fields["optim.lr"]
    page.edit("7")
    page.edit("3", key="callbacks.early_stop.patience")
    page.choose("whisper_tiny", method="lora", method_too=True)
    assert "lora" in page.text and page.fields["train.epochs"] == "7" and page.fields["optim.lr"] != proposed[1]
    assert "Rounds (epochs) (proposed: 10)" in page.notes and f"before: {proposed[1]}" in page.notes
    page.edit("32", key="model.lora.rank")
    page.choose(SMALL)
    assert page.fields["train.epochs"] == "7" and "lora" not in page.text and "LoRA rank" in page.notes
    page.choose("whisper_tiny")
    page.choose("whisper_tiny", method="lora", method_too=True)
    assert page.fields["model.lora.rank"] == "32" and "rank: 32" in page.text
    page.choose("whisper_tiny", method="full", method_too=True, rewrite=True)
    assert (page.fields["train.epochs"], page.fields["optim.lr"]) == proposed and not page.notes


def test_a_value_that_cannot_be_is_not_trained(page):
    page.choose("whisper_tiny")
    before = page.text
    page.edit("200", key="optim.lr")
    assert page.text == before and "200 is outside" in page.remarks and page.start.interactive is False
    page.choose("whisper_tiny", method="lora", method_too=True)
    assert page.fields["optim.lr"] == "200" and "optim.lr" in page.open_file.wrong
    page.edit("0.002", key="optim.lr")
    assert "lr: 0.002" in page.text and not page.open_file.wrong


def test_another_model_without_a_name_has_no_run_file(page):
    page.choose(SMALL)
    page.choose(settings.OWN)
    assert page.text == "" and "on the Hub, such as openai/whisper-small" in page.about
    page.text = "task: my own\n"
    page.choose(settings.OWN)
    assert page.text == "task: my own\n", "what somebody typed instead is left alone"
    page.choose(settings.OWN, "openai/whisper-tiny")
    assert "from: openai/whisper-tiny" in page.text


def test_ten_minutes_of_one_voice(page, monkeypatch):
    """A pretrained model is proposed where one can be had; a model that from scratch says what it cannot do."""
    monkeypatch.setattr(settings, "reachable", lambda: True)
    monkeypatch.setattr(settings, "has_gpu", lambda: False)
    assert settings.first("transcribe") == "whisper_tiny"
    page.choose("whisper_tiny")
    assert "from scratch" not in page.about and "from: openai/whisper-tiny" in page.text
    monkeypatch.setattr(settings, "reachable", lambda: False)
    page.choose(settings.first("transcribe"))
    assert "from scratch" in page.about and "Whisper" in page.about


def test_a_data_set_of_the_hub(page):
    from stentor.config.load import load_text

    page.choose("whisper_tiny", hub="google/fleurs de_de")
    data = load_text(page.text).config.data
    (train,), held_out = data.train, data.eval["held_out"]
    assert (train.type, train.preset, train.language, held_out.split) == ("hub", "fleurs", "de", "validation")
    page.choose("whisper_tiny", hub="not a name")
    assert page.text == ""
    page.choose("whisper_tiny")
    assert "train.jsonl" in page.text


def test_a_page_that_is_opened_again_keeps_its_method_and_its_file(page):
    page.choose("whisper_tiny")
    page.choose("whisper_tiny", method="lora", method_too=True)
    page.edit("7")
    text = page.text
    page.open_file, page.number = OpenRunFile(), 0  # of another session
    page.choose("whisper_tiny", method="lora", opened=True)
    assert "epochs: 7" in page.text and "lora" in page.text and page.open_file.selection.method == "lora"
    page.choose("whisper_tiny", method="lora")
    assert page.text == text
