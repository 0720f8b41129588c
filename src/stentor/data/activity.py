"""Speech activity within one speaker's utterance: from its word times, else from its energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stentor.data.cut import words_of
from stentor.data.load_audio import load_audio
from stentor.data.spans import clip_spans
from stentor.data.supervised import checked_words

if TYPE_CHECKING:
    from lhotse.cut import Cut

FRAME = 0.01
"""Seconds of one step of the energy detector."""
BELOW_SPEECH = 35.0
"""Most dB below the loud frames (95th percentile) that still count as speech."""
ABOVE_NOISE = 6.0
"""Least dB above the quiet frames (5th percentile) that count as speech, where there is that much between them."""
HANGOVER = 0.03
"""Seconds around loud frames that belong to speech: weak beginnings and ends of words."""
SHORTEST = 0.08
"""Seconds of the shortest burst that is speech and not a click."""


def speech_spans(cut: Cut) -> list[tuple[float, float]]:
    """(start, end) of the stretches of speech in a cut with one speaker, seconds from its start, in order. With word
    times: each word. Without: those of an energy detector (the audio is read). Empty when there is no speech."""
    words = words_of(cut)
    if words and len(words) == len(checked_words(cut)):  # the speech of words without times is heard
        spans = [(word["start"], word["end"]) for word in words]
    else:
        spans = loud_spans(load_audio(cut), 16000)
    return [(start, end) for start, end in clip_spans(spans, cut.duration)]


def loud_spans(audio: np.ndarray, rate: int) -> list[tuple[float, float]]:
    """(start, end) in seconds where `audio` [samples] of one speaker without background is loud enough to be speech."""
    step = round(FRAME * rate)
    frames = audio[: len(audio) // step * step].reshape(-1, step)
    if not len(frames):
        return []
    decibels = 10 * np.log10(np.square(frames, dtype=np.float64).mean(1) + 1e-12)
    quiet, loud = np.percentile(decibels, [5, 95])
    # Between two thirds of the way down and the noise floor: recordings differ in both.
    threshold = max(loud - BELOW_SPEECH, quiet + min(ABOVE_NOISE, (loud - quiet) / 3))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], decibels > threshold, [False]]).astype(np.int8)))
    spans = edges.reshape(-1, 2) * FRAME
    spans = spans[spans[:, 1] - spans[:, 0] >= SHORTEST]
    padded = [(start - HANGOVER, end + HANGOVER) for start, end in spans.tolist()]
    return [(start, end) for start, end in clip_spans(padded, len(audio) / rate)]


def join_spans(spans: list[tuple[float, float]], pause: float) -> list[tuple[float, float]]:
    """The spans (in order) with those joined that less than `pause` seconds lie between."""
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if joined and start - joined[-1][1] < pause:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
