"""Live speakers: an online diarizer with models that know who sounds, and words of streams that carry speakers."""

import io
import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from stentor.errors import ConfigError
from stentor.inference.load import load
from stentor.inference.stream.base import Hypothesis, Recogniser
from stentor.inference.stream.speakers import HISTORY, OnlineDiarizer, SpeakerStream
from stentor.inference.stream.stream import Stream
from stentor.metrics.cpwer import confused
from stentor.models.base import TaskRequirements
from stentor.models.transformer.build import build
from stentor.models.transformer.config import Transformer
from stentor.tasks.diarize.task import Diarize

RATE = 16000
TWO = [(3, 0.5, 4.0), (1, 4.5, 7.2), (3, 7.0, 9.0), (1, 9.3, 11.0), (3, 40.0, 41.5), (1, 41.5, 43.0)]
THREE = [
    (2, 0.0, 3.0),
    (0, 3.0, 6.0),
    (1, 6.5, 9.0),
    (2, 30.0, 31.0),
    (1, 31.0, 32.0),
    (0, 31.8, 33.5),
    (2, 33.5, 35.0),
]
ONE = [(4, 1.0, 3.0), (4, 20.0, 22.0), (4, 22.5, 24.0)]


@pytest.fixture
def voices(diarizer, tones, monkeypatch):
    """A loaded model for three speakers that hears 10 s at once."""
    monkeypatch.setattr(tones, "slots", 3)
    return load(diarizer(labels={"type": "speaker", "speakers": 3}))


def sound(talk, turns):
    return soundfile.read(talk("a.wav", turns[-1][2] + 1.0, turns), dtype="float32")[0] if turns else np.zeros(RATE * 5)


def expected(turns):
    order = list(dict.fromkeys(voice for voice, *_ in turns))
    return [(f"speaker_{order.index(voice) + 1}", start, end) for voice, start, end in turns]


def segments(diarizer, pieces):
    for piece in pieces:
        diarizer.feed(piece.astype(np.float32))
    diarizer.finish()
    return sorted(((s["speaker"], s["start"], s["end"]) for s in diarizer.segments), key=lambda s: s[1])


@pytest.mark.parametrize("turns", [TWO, THREE, ONE, []])
def test_speakers_are_known_again_after_a_silence_longer_than_a_window(voices, talk, turns):
    assert segments(voices.online_diarizer(), [sound(talk, turns)]) == expected(turns)


def test_no_more_speakers_than_the_settings_allow(voices, talk):
    voices.task.windows.max_speakers = 2
    names = [name for name, *_ in segments(voices.online_diarizer(), [sound(talk, THREE)])]
    assert set(names) == {"speaker_1", "speaker_2"}


@pytest.mark.parametrize("seed", range(2))
def test_any_pieces_give_the_same_speakers_with_a_real_model(seed):
    """Of random weights: everything that it says is by chance, and must be so each time."""
    torch.manual_seed(seed)
    task = Diarize.model_validate({"labels": {"type": "powerset", "speakers": 3}, "chunk": 6})
    layers = {"d_model": 32, "layers": 2, "heads": 2}
    features = {"num_mel_bins": 23, "stack": 10, "subsample": 10}
    family = Transformer.model_validate({"kind": "encoder", "encoder": layers, "features": features})
    bundle = build(
        family, TaskRequirements(task="diarize", terms=("powerset",), classes=task.labels.classes, scores=("logits",))
    )
    bundle.model.eval()
    for parameter in bundle.model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    rng = np.random.default_rng(seed)
    audio = rng.normal(0, 0.1, 12 * RATE) * np.repeat(rng.random(24), RATE // 2)
    cuts = np.sort(rng.integers(0, len(audio), 30))
    options = {"least": 0.3, "wait": 0.5}
    once = segments(OnlineDiarizer(bundle, task, **options), [audio])
    assert segments(OnlineDiarizer(bundle, task, **options), np.split(audio, cuts)) == once
    assert len(once) > 2


@pytest.mark.long
def test_an_hour_stays_small(voices, talk, tones):
    live = voices.online_diarizer(step=3.0)
    audio = sound(talk, [(k % 3, 2.0 * k, 2.0 * k + 1.7) for k in range(30)])[: 60 * RATE]
    sizes = []
    for _ in range(60):
        live.feed(audio)
        assert {s["speaker"] for s in live.segments} <= {"speaker_1", "speaker_2", "speaker_3"}
        sizes.append((len(live.segments), sum(len(s.audio) for known in live.cache for s in known), len(live._audio)))
    assert all(segment["end"] > 3600 - HISTORY - 60 for segment in live.segments)
    assert max(tones.windows) <= 10 * RATE
    counts, cached, waiting = np.max(sizes[2:], axis=0)
    assert counts <= 70 and cached <= 5.1 * RATE and waiting <= 11 * RATE
    last = [s for s in live.segments if s["start"] >= 3600]
    first = next(s for s in live.segments if s["start"] >= 3540)
    assert not last and first["end"] - first["start"] == pytest.approx(1.7, abs=0.11)


class Scripted(Recogniser):
    """Says each of some words a moment after its end."""

    rate = RATE

    def __init__(self, words, timed=True):
        self.script, self.timed = words, timed

    def open(self):
        return ScriptedHypothesis(list(self.script))

    def advance(self, hypotheses):
        for hypothesis in hypotheses:
            hypothesis.words.append(hypothesis.script.pop(0))


class ScriptedHypothesis(Hypothesis):
    def __init__(self, script):
        self.script, self.words, self.partial, self.seconds = script, [], "", 0.0

    def add(self, samples):
        self.seconds += len(samples) / RATE
        self.partial = self.script[0]["word"] if self.script and self.script[0]["start"] <= self.seconds else ""

    def finish(self):
        self.seconds = 1e9

    @property
    def ready(self):
        return bool(self.script) and self.script[0]["end"] + 0.1 <= self.seconds


def words_of(turns):
    """A word of 0.3 s each 0.4 s, within turns."""
    return [
        {"word": f"w{voice}", "start": round(start, 3), "end": round(start + 0.3, 3), "confidence": 1.0}
        for voice, begin, end in turns
        for start in np.arange(begin, end - 0.3, 0.4)
    ]


@pytest.mark.parametrize("rate", [RATE, 8000, 24000])
def test_words_carry_speakers_whatever_the_pieces(voices, talk, rate):
    turns = [(3, 0.5, 3.4), (1, 3.6, 7.2), (3, 7.4, 9.0), (1, 30.0, 31.5)]
    audio = soundfile.read(talk("a.wav", 33, turns, rate), dtype="float32")[0]
    events = []
    for cuts in ([], np.sort(np.random.default_rng(rate).integers(0, len(audio), 50))):
        live = voices.online_diarizer()
        stream = SpeakerStream(Stream(Scripted(words_of(turns)), rate), live, rate)
        events.append([e for piece in np.split(audio, cuts) for e in stream.feed(piece)] + stream.finish())
    assert events[0] == events[1]
    words = [event for event in events[0] if event["type"] == "word"]
    assert [(w["word"], w["speaker"]) for w in words] == [
        (w["word"], {"w3": "speaker_1", "w1": "speaker_2"}[w["word"]]) for w in words_of(turns)
    ]
    assert all(a["time"] <= b["time"] for a, b in pairwise(events[0]))
    assert all(0 < w["time"] - w["end"] <= 1.02 for w in words[5:])  # its step and its wait
    # What waits for its speaker can be read all the same, and nothing is left there at the end.
    partials = [event["text"] for event in events[0] if event["type"] == "partial"]
    assert any(text.count("w") > 1 for text in partials) and partials[-1] == ""
    ends = [event["time"] for event in events[0] if event["type"] == "end_of_speech"]
    before = [max(w["time"] for w in words if w["end"] < end) for end in ends]
    assert len(ends) >= 2 and all(a <= b for a, b in zip(before, ends))


def test_words_without_times_have_no_speakers(voices):
    with pytest.raises(ConfigError, match="has no word times"):
        SpeakerStream(Stream(Scripted([], timed=False)), voices.online_diarizer())


def test_a_model_that_tells_no_speakers_apart_is_no_diarizer(export, diarizer, tones):
    model = load(export(task="words"))
    with pytest.raises(ConfigError, match="words, not to diarize"):
        model.stream(diarizer=model)
    with pytest.raises(ConfigError, match="labels speech, not speakers"):
        model.stream(diarizer=load(diarizer(labels={"type": "binary"})))


def test_nobody_talks(voices):
    stream = SpeakerStream(Stream(Scripted([{"word": "ghost", "start": 1.0, "end": 1.5}])), voices.online_diarizer())
    (word,) = [e for e in stream.feed(np.zeros(3 * RATE)) + stream.finish() if e["type"] == "word"]
    assert word["speaker"] is None


TALK = [(0, 0.0, 3.5), (1, 5.0, 8.0)]


@pytest.mark.parametrize("form", ["txt", "json"])
def test_the_command(run, export, voices, talk, monkeypatch, form):
    path = talk("a.wav", 9, TALK)
    monkeypatch.setattr("stentor.inference.model.open_recogniser", lambda *_, **__: Scripted(words_of(TALK)))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(path.read_bytes()))))
    options = ["--stream", "--diarizer", voices.folder, "--format", form, "--device", "cpu"]
    code, out, err = run("transcribe", export(), "-", *options)
    assert (code, err) == (0, "")
    if form == "txt":
        assert out == f"speaker_1:{8 * ' w0'}\nspeaker_2:{7 * ' w1'}\n"
    else:
        words = [event for event in map(json.loads, out.splitlines()) if event["type"] == "word"]
        assert [w["speaker"] for w in words] == ["speaker_1"] * 8 + ["speaker_2"] * 7


def test_figures_beside_the_offline_answer(run, export, voices, talk, tmp_path, monkeypatch):
    script = words_of(TALK)
    script[3]["word"] = "w9"
    monkeypatch.setattr("stentor.commands.evaluate.streamed.open_recogniser", lambda *_: Scripted(script))
    turns = [
        {"speaker": f"S{voice}", "start": start, "end": end, "text": " ".join(w["word"] for w in words_of([turn]))}
        for turn in TALK
        for voice, start, end in [turn]
    ]
    row = {"id": "a", "audio_path": talk("a.wav", 9, TALK).name, "text": " ".join(t["text"] for t in turns)}
    (tmp_path / "data.jsonl").write_text(json.dumps({**row, "segments": turns, "words": words_of(TALK)}))
    options = ["--stream", "1", "--diarizer", voices.folder, "--json", tmp_path / "figures.json"]
    code, out, err = run("evaluate", export(), "--data", tmp_path / "data.jsonl", *options)
    assert code == 0, err
    scores = json.loads((tmp_path / "figures.json").read_text())["stream"]["1"]
    assert scores["cpwer"]["value"] == scores["cpwer_offline"]["value"] == 1 / 15 and "cpWER" in out
    assert [scores[name]["value"] for name in ("confused", "confused_offline", "moved")] == [0, 0, 0]


def test_confused_words():
    assert confused([[("1", "A"), ("1", "A"), ("2", "B"), ("1", "B")], [("2", "A"), ("1", "B")]]).value == 1 / 6
    assert (
        confused([[(None, "A"), ("1", "A"), ("3", None)]]).as_dict() | {}
        == confused([[("2", "A"), ("1", "A")]]).as_dict()
    )
    assert confused([]).value == 0
