"""Trying a model beside the one that it was trained from: what is chosen, kept, counted, and shown."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from stand_in import exported

from stentor.errors import AudioError, ConfigError, DataError
from stentor.studio.runs import try_model
from stentor.studio.runs.try_model import ModelCache, RunTrial, TrialClip

RATE = 16000


class Loud:
    """A model that says what it was told to."""

    def __init__(self, text="one two", words=None, segments=None):
        self.answer, self.asked = (text, words, segments), []

    def transcribe(self, samples, rate, language=None, keep_failed=False):
        self.asked.append((len(samples), rate, language))
        return type("T", (), {"text": self.answer[0], "words": self.answer[1]})

    def diarize(self, samples, rate):
        return type("D", (), {"segments": self.answer[2]})

    def speak(self, text, **options):
        self.asked.append((text, options))
        return type("S", (), {"audio": np.full(RATE, 0.1, np.float32), "rate": RATE})


class Shelf(ModelCache):
    """Models that need no folder; a sentence stands for one that cannot be loaded."""

    def __init__(self, **models):
        super().__init__()
        self.models = models

    def get(self, source, device="auto"):
        model = self.models[str(source)]
        if isinstance(model, str):
            raise ConfigError(model)
        return model


def tried(original="old", task="transcribe", **about):
    return RunTrial("mine", Path("new"), task, original, about.get("normalizer", "none"))


def clip(text="", seconds=1.0, **about):
    return TrialClip(np.zeros(round(seconds * RATE), np.float32), RATE, text, **about)


# Runs


def test_runs_that_ended_with_a_model_are_offered(projects):
    exported(projects, "good", {"type": "ctc"})
    exported(projects, "half", {"type": "ctc"}, exit=75, folder="checkpoints/step-000010/export")
    (projects.runs / "half/checkpoints/latest").write_text("step-000010")
    exported(projects, "broken", {"type": "ctc"}, exit=1, folder="nothing")
    assert try_model.runs(projects) == ["half", "good"]
    assert try_model.trial(projects, "half").export.name == "export"
    with pytest.raises(ConfigError, match="has not saved a checkpoint"):
        try_model.trial(projects, "broken")
    with pytest.raises(ConfigError):
        try_model.trial(projects, "../good")


def test_a_running_run_is_not_offered(projects):
    from stentor.studio.runs import detached

    export = exported(projects, "busy", {"type": "ctc"}, exit=None)
    with detached.exclusive(export.parent, "busy"):
        assert try_model.runs(projects) == []
        assert try_model.device(projects) == "cpu"  # its memory is its own
    assert try_model.device(projects) == "auto"


@pytest.mark.parametrize(
    ("model", "original"),
    [
        ({"type": "seq2seq", "from": "openai/whisper-tiny"}, "openai/whisper-tiny"),
        ({"type": "seq2seq", "from": "openai/whisper-tiny", "init": "elsewhere/base"}, "elsewhere/base"),
        ({"type": "ctc", "from": None}, None),
        ({"type": "speech_llm", "encoder": {"from": "a/ear"}, "llm": {"from": "b/mouth"}}, None),
    ],
)
def test_the_original_is_what_the_run_started_from(projects, model, original):
    exported(projects, "run", model)
    trial = try_model.trial(projects, "run")
    assert (trial.original, trial.normalizer) == (original, "none")


def test_an_original_in_the_projects_folder_is_found_there(projects):
    base = exported(projects, "base", {"type": "ctc"})
    exported(projects, "next", {"type": "ctc", "init": "runs/base/export"})
    assert try_model.trial(projects, "next").original == str(base)
    assert try_model.model_name(str(base)) == "base"


def test_earlier_stages_of_a_run_are_not_its_original(projects):
    export = exported(projects, "run", {"type": "ctc", "init": str(projects.runs / "run/stages/1/export")})
    shutil.copytree(export, export.parent / "stages/1/export")
    first = export.parent / "stages/1/export/training_config.json"
    first.write_text(json.dumps({"model": {"type": "ctc", "from": "openai/base"}}))
    assert try_model.trial(projects, "run").original == "openai/base"


def test_a_language_model_cannot_be_tried(projects):
    exported(projects, "lm", {"type": "transformer"}, {"type": "language"})
    with pytest.raises(ConfigError, match="of the task language cannot be tried here"):
        try_model.trial(projects, "lm")


# Models


@pytest.fixture
def loads(monkeypatch):
    """Sources of the models that were loaded; None for each time that memory was given back."""
    events = []
    monkeypatch.setattr("stentor.inference.load.load", lambda source, device: events.append(source) or object())
    monkeypatch.setattr(try_model.gc, "collect", lambda: events.append(None))
    return events


def test_two_models_are_kept(loads):
    models = ModelCache()
    a, b = models.get("x/a"), models.get("x/b")
    assert models.get("x/a") is a and loads == ["x/a", "x/b"]
    models.get("x/c")  # b was used longest ago
    assert models.get("x/a") is a and models.get("x/b") is not b
    assert loads[2:] == [None, "x/c", None, "x/b"]
    models.keep_only("x/b", None)
    models.get("x/a")
    assert loads[6:] == [None, "x/a"]


def test_a_model_that_was_written_anew_is_loaded_anew(loads, projects):
    export, models = exported(projects, "run", {"type": "ctc"}), ModelCache()
    models.get(export)
    models.get(export)
    assert len(loads) == 1
    os.utime(export / "config.json", (5, 5))
    models.get(export)
    assert len(loads) == 2


# Clips


def test_clips_are_checked(tmp_path):
    import soundfile

    fine = tmp_path / "fine.wav"
    soundfile.write(fine, np.full(RATE * 2, 0.1), RATE * 2)
    assert len(try_model.uploaded(fine).samples) == RATE
    page = tmp_path / "page.wav"
    page.write_text("<html>")
    with pytest.raises(AudioError, match="whatever its name says") as error:
        try_model.uploaded(page)
    assert str(tmp_path) not in str(error.value)
    with pytest.raises(ConfigError, match="lasts 1 s: at most 0 s"):
        try_model.uploaded(fine, longest=0.2)


def test_held_out_recordings_are_offered(projects):
    data = projects.create("mine", "en")
    for text in ("one", "two", "three", "four"):
        data.add(np.full(RATE, 0.1, np.float32), RATE, text, speaker="ann")
    assert [label for label, _ in try_model.held_out(data)] == [f"{t} (1.0 s)" for t in ("one", "two", "three", "four")]
    data.parts()
    (chosen,) = [id for id, side in data.sides().items() if side == "held_out"]
    text = data.record(chosen)["text"]
    assert try_model.held_out(data) == [(f"{text} (1.0 s)", chosen)]
    recording = try_model.recorded(data, chosen)
    assert (recording.text, recording.language, len(recording.samples)) == (text, "en", RATE)
    with pytest.raises(ConfigError):
        try_model.recorded(data, "../../etc/passwd")


# Answers


def test_both_answer_and_errors_are_counted():
    shelf = Shelf(old=Loud("one too"), new=Loud("one two", [{"word": "one", "start": 0, "end": 0.5}]))
    first, second = try_model.listen(shelf, tried(), clip("one two"), "en")
    assert [(a.tuned, a.errors, a.total) for a in (first, second)] == [(False, 1, 2), (True, 0, 2)]
    assert shelf.models["new"].asked == [(RATE, RATE, "en")]
    page = try_model.drawn(tried(), clip("one two"), [first, second])
    assert "<span>old</span>" in page and "<span>mine</span>" in page
    assert "WER 50.00 % (1 in 2 words)" in page and "WER 0.00 % (0 in 2 words)" in page
    assert page.count('class="pair substitute"') == 2  # the one, and the legend's
    assert page.count("data-start") == 1


def test_the_normaliser_of_the_run_counts():
    about = tried(original=None, normalizer="whisper_basic")
    (answer,) = try_model.listen(Shelf(new=Loud("One, TWO.")), about, clip("one two"), "en")
    assert answer.errors == 0


def test_without_a_reference_the_two_are_compared():
    shelf = Shelf(old=Loud("one too"), new=Loud("one two three"))
    page = try_model.drawn(tried(), clip(), list(try_model.listen(shelf, tried(), clip())))
    assert "What training changed" in page and 'class="pair insert"' in page
    same = Shelf(old=Loud("one"), new=Loud("one"))
    assert "both wrote the same" in try_model.drawn(tried(), clip(), list(try_model.listen(same, tried(), clip())))


def test_what_fails_is_told_in_its_column():
    shelf = Shelf(old="There is no model old <b>.", new=Loud("fine"))
    answers = list(try_model.listen(shelf, tried(), clip()))
    assert [a.wrong for a in answers] == ["There is no model old <b>.", ""]
    page = try_model.drawn(tried(), clip(), answers)
    assert "There is no model old &lt;b&gt;." in page and "fine" in page and "What training changed" not in page


def test_a_model_from_nothing_has_one_column():
    about = tried(original=None)
    (answer,) = try_model.listen(Shelf(new=Loud()), about, clip())
    page = try_model.drawn(about, clip(), [answer])
    assert page.count("<section") == 1 and "Before training" not in page
    assert "trained from scratch" in try_model.about(about)
    waiting = try_model.drawn(tried(), clip(), [])
    assert waiting.count("<section") == 2 and waiting.count("waiting") == 2


def test_speakers_are_drawn():
    segments = [{"speaker": "A", "start": 0.1, "end": 0.9}]
    about = tried(original=None, task="diarize")
    (answer,) = try_model.listen(Shelf(new=Loud(segments=segments)), about, clip())
    assert try_model.drawn(about, clip(), [answer]).count("<rect") == 1
    known = clip(segments=({"speaker": "ann", "start": 0.1, "end": 0.5},))
    assert "DER" in try_model.drawn(about, known, [answer])


def test_speech_is_heard_with_its_level():
    about, shelf = tried(task="speak"), Shelf(old=Loud(), new=Loud())
    voice = clip("that is me")
    answers = list(try_model.speak(shelf, about, " say  this ", voice, seed=3))
    text, options = shelf.models["new"].asked[0]
    assert text == "say this" and options["reference_text"] == "that is me" and options["seed"] == 3
    page = try_model.drawn(about, None, answers)
    assert page.count("data:audio/flac;base64,") == 2 and "1.0 s long" in page and "-20 dBFS" in page


@pytest.mark.parametrize(
    ("text", "voice", "error", "sentence"),
    [
        (" ", None, DataError, "Write a text first"),
        ("a" * 1001, None, ConfigError, "1001 characters: at most 1000"),
        ("a", clip(), DataError, "Write down what is said in the clip"),
    ],
)
def test_what_cannot_be_spoken_is_refused_at_once(text, voice, error, sentence):
    with pytest.raises(error, match=sentence):
        try_model.speak(Shelf(), tried(task="speak"), text, voice)
