"""Choices and settings that cross on their way between the page and the server."""

import pytest

from stentor.studio.runs import settings
from stentor.studio.runs.form import BASIC, OpenRunFile

SMALL, OTHER = "small_speech_llm", "small_encoder_decoder"


@pytest.fixture
def page(projects, monkeypatch):
    """An open page on a data set of ten sentences: `page.choose`, `page.edit`, `page.text` as it was sent last."""
    import numpy as np

    from stentor.studio.steps import train

    dataset = projects.create("mine", "en")
    for number in range(10):
        dataset.add(np.full(1600, 0.1, "float32"), 16000, f"sentence number {number}")

    class Page:
        def __init__(self):
            self.open_file, self.text, self.remarks, self.basics = OpenRunFile(), "", "", {}

        def choose(self, model, source="", at=None, hub="", **how):
            values = ["mine", "transcribe", model, None, source, hub, "full", self.text if at is None else at]
            answer = train._choose(projects, *values, self.open_file, **how)
            self.about, (self.remarks, *basics, text, _) = answer[3], answer[7:]
            if isinstance(text, str):
                self.text, self.basics = (
                    text,
                    {k: getattr(b, "value", None) for k, b in zip(BASIC, basics, strict=True)},
                )

        def edit(self, value, at=None, key="train.epochs"):
            text = self.text if at is None else at
            new, _, shown = train._edited(projects, text, value, self.open_file, key)
            self.text = new if isinstance(new, str) else self.text
            return shown if isinstance(shown, str) else None

    return Page()


def test_a_setting_that_was_sent_with_the_run_file_of_before(page):
    page.choose(SMALL)
    before = page.text.rstrip()  # as the editor of the page sends it
    page.choose(OTHER)
    assert page.edit("7", at=before) == "7", "the page shows another value by now"
    assert "type: transformer" in page.text and "epochs: 7" in page.text
    # Two settings, one right after the other.
    before = page.text
    page.edit("8")
    assert page.edit("0.5", at=before, key="optim.lr") is None
    assert "epochs: 8" in page.text and "lr: 0.5" in page.text
    # What the page itself wrote into a field changes nothing, and neither does what somebody typed get lost.
    page.edit("7", at=before)
    assert "epochs: 8" in page.text
    page.edit("9", at=page.text + "name: typed\n")
    assert "name: typed" in page.text and "epochs: 9" in page.text


def test_a_setting_that_comes_while_a_choice_is_answered(page, monkeypatch):
    page.choose(SMALL)
    before, start = page.text, settings.start

    def slow(*values):
        tree = start(*values)
        monkeypatch.setattr(settings, "start", start)
        page.edit("7", at=before)
        page.edit("3", at=before, key="model.lora.rank")  # which the new model lacks
        return tree

    monkeypatch.setattr(settings, "start", slow)
    page.choose(OTHER, at=before)
    assert "type: transformer" in page.text and "epochs: 7" in page.text and "lora" not in page.text
    assert page.basics["train.epochs"] == "7"
    page.choose(SMALL)
    assert "epochs: 7" not in page.text, "it belongs to the choice before"


def test_another_model_without_a_name_has_no_run_file(page):
    page.choose(SMALL)
    page.choose(settings.OWN)
    assert (
        page.text == ""
        and "on the Hub, such as openai/whisper-small" in page.about
        and settings.say("yaml_fine") not in page.remarks
    )
    page.choose(settings.OWN, at="task: my own\n")
    assert page.text == "", "what somebody typed instead is left alone"
    page.choose(settings.OWN, "openai/whisper-tiny", at="")
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
    assert (train.type, train.name, train.config, train.part) == ("hub", "google/fleurs", "de_de", "train")
    assert held_out.part == "validation"
    page.choose("whisper_tiny", hub="not a name")
    assert page.text == "" and "USER/NAME" in page.about
    page.choose("whisper_tiny")
    assert "train.jsonl" in page.text
