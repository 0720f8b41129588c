"""Speech without a pause: windows overlap where they are cut, and each word of the recording is written once."""

import random
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from stentor.audio.activity import Activity
from stentor.inference.load import load
from stentor.inference.recording import ArrayRecording
from stentor.text.written_words import joined

RATE, SECONDS = 16000, 130
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def speech(names=DIGITS, again=0.3):
    """(word, start, end) without a pause between them, many said several times in a row."""
    draw, words, at = random.Random(0), [], 0.0
    while at < SECONDS - 0.6:
        name = words[-1][0] if words and draw.random() < again else draw.choice(names)
        words.append((name, at, at := round(at + draw.uniform(0.2, 0.5), 3)))
    return words


class Listener:
    """Answers of a model for windows of `words`. Of a word that it hears only in part it writes another one."""

    def __init__(self, words, timed=False, failing=(), silent=()):
        self.words, self.timed, self.failing, self.silent = words, timed, failing, silent
        self.starts, self.seconds = [], 0.0

    def __call__(self, examples, bundle=None):
        return [self.answer(float(e.id.rpartition("@")[2]), len(e.audio) / RATE) for e in examples]

    def answer(self, start, seconds):
        self.starts, self.seconds = sorted([*self.starts, start]), self.seconds + seconds
        heard, wrong = [], chr((ord("a") if self.words[0][0].isascii() else ord("上")) + len(self.starts))
        for word, a, b in self.words if start not in self.silent else ():
            if b > start + 0.05 and a < start + seconds - 0.05:
                whole = a >= start - 0.01 and b <= start + seconds + 0.01
                times = {"start": max(a - start, 0.0), "end": min(b - start, seconds)} if self.timed else {}
                heard.append({"word": word if whole else wrong, "confidence": 0.9, **times})
        ends = [len(joined(w["word"] for w in heard[:i])) for i in range(len(heard) + 1)]
        text = joined(w["word"] for w in heard)
        tokens = [{"token": text[a:b], "logprob": -a / 1000} for a, b in pairwise(ends)]
        failed = ["mean_log_prob"] * (start in self.failing)
        return {"text": text, "words": heard, "log_prob": -0.5, "failed": failed, "tokens": tokens}


@pytest.fixture
def listening(export):
    """Makes a transcriber with a `Listener` for a model, and two minutes of audio for it."""
    model, levels = load(export()), np.random.default_rng(0).normal(-20, 3, SECONDS * 100).astype(np.float32)
    loud = Activity(levels, np.ones(SECONDS * 100, bool), RATE // 100, SECONDS * RATE)

    def make(listener, **options):
        transcriber = model.transcriber(detector=SimpleNamespace(activity=lambda blocks, rate: loud), **options)
        transcriber.predict, transcriber.timed = listener, listener.timed
        return transcriber, ArrayRecording(np.zeros(SECONDS * RATE, np.float32), RATE, RATE)

    return make


def transcript_of(listening, listener, turns=None, **options):
    transcriber, recording = listening(listener, **options)
    transcriber.diarizer = turns and (lambda recording: turns)
    transcript = next(transcriber.transcribe([recording]))
    times = [t for s in transcript.segments for t in (s["start"], s["end"])]
    assert times == sorted(times)
    return transcript


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize(
    ("names", "again", "language"),
    [(DIGITS, 0.3, "en"), (("two", "Two,", "(five)", "5"), 0.0, "en"), (tuple("一二三四五六七八九十"), 0.1, "zh")],
)
def test_each_word_is_written_once_at_little_cost(listening, timed, names, again, language):
    listener = Listener(speech(names, again), timed)
    transcript = transcript_of(listening, listener, language=language)
    assert transcript.text == joined(word for word, _, _ in listener.words)
    assert 1.0 < listener.seconds / SECONDS < 1.1 and len(transcript.segments) == 5 and "notes" not in transcript
    for segment in transcript.segments:  # tokens and log-probability are those of the text that is left
        assert "".join(t["token"] for t in segment["tokens"]).strip() == segment["text"]
        assert segment["log_prob"] == pytest.approx(np.mean([t["logprob"] for t in segment["tokens"]]), abs=1e-3)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("change", ["failing", "silent"])
def test_what_a_left_out_neighbour_heard_is_kept(listening, timed, change):
    whole = Listener(speech(), timed)
    transcript_of(listening, whole)
    transcript = transcript_of(listening, Listener(whole.words, timed, **{change: whole.starts[1:2]}))
    assert len(transcript.segments) == 4 and len(transcript.failed) == (change == "failing")
    assert transcript.segments[0]["end"] > whole.starts[1] + 1.5 and "notes" not in transcript
    assert transcript.segments[1]["start"] == pytest.approx(whole.starts[2], abs=0.02)
    assert transcript.text.endswith(joined(word for word, a, _ in whole.words if a >= whole.starts[2]))


@pytest.mark.parametrize("timed", [True, False])
def test_speakers_of_words_at_seams(listening, timed):
    turns = [{"speaker": "AB"[i % 2], "start": 10.0 * i, "end": 10.0 * (i + 1)} for i in range(13)]
    listener = Listener(speech(), timed)
    transcript = transcript_of(listening, listener, turns)
    if timed:
        assert transcript.text.split() == [word for word, _, _ in listener.words]
    assert [s["speaker"] for s in transcript.segments].count("B") >= 6


def test_seams_without_a_common_word_are_reported(listening, caplog):
    listener = Listener([(f"w{i}", 3.0 * i, 3.0 * (i + 1)) for i in range(43)])
    (note,) = transcript_of(listening, listener)["notes"]
    assert caplog.messages == [f"array: {note}"] and "cut at 4 places." in note and "at 4 of them, first at 26." in note


def test_partial_transcripts_only_grow(listening):
    transcriber, recording = listening(Listener(speech(), timed=True))
    plan, grown = transcriber.plan(recording), []
    for i in range(len(plan.windows)):
        (plan.outputs[i],) = transcriber.predict([transcriber.example(plan, i)])
        grown.append(transcriber.transcript(plan, i + 1).text)
    assert grown[0] == "" and grown[-1].split() == [word for word, _, _ in speech()]
    assert all(b.startswith(a) and b != a for a, b in pairwise(grown))
