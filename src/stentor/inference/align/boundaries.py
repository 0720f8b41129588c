"""Word boundaries, from the labels or the attention of an aligner and from silence.

The peaks of a CTC model lie inside its characters, rather late: what is between the last label of a word and the first
of the next belongs mostly to the next word. How much depends on the model. The best `SHARE` was 0.1 for a head on
the middle of Whisper's encoder and 0.4 for one on its end (frames of 20 ms, the exact word times of the built-in voice
with noise, and the same on silver and on human times); 0.2 loses least with either, and with it no recording with
human times has greater errors than the plain path. `LEAD` and `LAG` were fitted to silver word times of 150 training
utterances of LibriSpeech under one model; their optimum is flat.
"""

from itertools import pairwise

import numpy as np

from stentor.audio.activity import FRAME, Activity, runs
from stentor.inference.align.base import Word

SHARE = 0.2
"""Share of the gap between the labels of two words that belongs to the first word."""
LEAD, LAG = 0.08, 0.08
"""Seconds that a word begins before its first label and ends after its last, next to a pause."""
PAUSE = 0.16
"""Seconds between labels from which on there may be a pause between the words."""
QUIET = 0.05
"""Seconds of silence that make a pause between labels."""
STILL, NEAR = 0.1, 0.15
"""Seconds of silence that make a pause between attended words, and how far off the words' boundary may be."""


def spread(words: list[Word], activity: Activity, seconds: float) -> None:
    """Move the boundaries of words from where their labels begin and end to where the words do, in place.

    Between words that follow each other closely there is one boundary; in a longer gap, words end and begin where the
    silence does.
    """
    firsts, lasts = [w.start for w in words], [w.end for w in words]
    for i, (word, following) in enumerate(pairwise(words)):
        a, b = lasts[i], firsts[i + 1]
        if b - a <= PAUSE:
            word.end = following.start = a + SHARE * (b - a)
        elif pause := silence(activity, a, b, QUIET):
            word.end, following.start = pause
        else:
            word.end, following.start = a + LAG, b - LEAD
    first, last = words[0], words[-1]
    before = silence(activity, max(0.0, firsts[0] - PAUSE), firsts[0], 0.0)
    first.start = before[1] if before else max(0.0, firsts[0] - LEAD)
    after = silence(activity, lasts[-1], min(seconds, lasts[-1] + PAUSE), 0.0)
    last.end = after[0] if after else min(seconds, lasts[-1] + LAG)


def insert_pauses(words: list[Word], activity: Activity, seconds: float) -> None:
    """Where there is silence near the one boundary of two words, make a pause between them, in place."""
    for word, following in pairwise(words):
        near = max(word.start, word.end - NEAR), min(following.end, word.end + NEAR)
        if pause := silence(activity, *near, STILL, extend=True):
            start, end = max(pause[0], word.start), min(pause[1], following.end)
            if start - word.start > 0 and following.end - end > 0:
                word.end, following.start = start, end
    first, last = words[0], words[-1]
    before = silence(activity, 0.0, first.end, STILL)
    if before and before[0] <= first.start + NEAR and before[1] < first.end:
        first.start = max(first.start, before[1])
    after = silence(activity, last.start, seconds, STILL)
    if after and after[1] >= last.end - NEAR and after[0] > last.start:
        last.end = min(last.end, after[0])


def silence(
    activity: Activity, start: float, end: float, least: float, extend: bool = False
) -> tuple[float, float] | None:
    """Return the longest silence between two times in seconds, if it has at least `least` seconds; with `extend`, it
    may reach beyond these times."""
    first, last = max(0, int(start / FRAME)), min(len(activity.speech), int(np.ceil(end / FRAME)))
    quiet = ~activity.speech[first:last]
    edges = runs(quiet)
    if not len(edges):
        return None
    begin, stop = (int(x) + first for x in edges[np.argmax(edges[:, 1] - edges[:, 0])])
    if extend:
        while begin > 0 and not activity.speech[begin - 1]:
            begin -= 1
        while stop < len(activity.speech) and not activity.speech[stop]:
            stop += 1
    if stop - begin < least / FRAME:
        return None
    if extend:
        return begin * FRAME, stop * FRAME
    return max(begin * FRAME, start), min(stop * FRAME, end)
