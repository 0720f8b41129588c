"""Word times: what is wrong with those of a record, and times in order, without overlaps, for those of a model."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

SLACK = 0.05
"""Seconds by which words may overlap, or reach beyond their recording."""
UNALIGNED = "unaligned"
LEAST = 0.02
"""Seconds that a word lasts at least."""


def in_order(words: Sequence[Mapping[str, Any]], end: float | None = None, begin: float = 0.0) -> list[dict[str, Any]]:
    """Return copies of the words, in text order, with `start` and `end` in whole milliseconds between `begin` and
    `end` (None: open). Neighbours that overlap meet in the middle; a word that is too short is extended into the
    silence around it, then into its neighbours. Words of different speakers may overlap; words without times stay."""
    ordered = [dict(word) for word in words]
    for name in {word.get("speaker") for word in ordered}:
        timed = [w for w in ordered if w.get("speaker") == name and w["start"] is not None]
        spans = [[round(1000 * w["start"]), round(1000 * w["end"])] for w in timed]
        stop, least = round(1000 * begin), round(1000 * LEAST)
        limit = 10**12 if end is None else max(round(1000 * end), stop + len(spans))
        least = max(1, min(least, (limit - stop) // max(1, len(spans))))
        for span, after in pairwise(spans):
            if span[1] > after[0]:
                span[1] = after[0] = (span[1] + after[0]) // 2
        for span in spans:
            span[0] = max(stop, min(span[0], span[1] - least))
            span[1] = stop = max(span[0] + least, span[1])
        for span in reversed(spans):
            span[1] = min(span[1], limit)
            span[0] = limit = min(span[0], span[1] - least)
        for word, (start, stop) in zip(timed, spans):
            word |= {"start": start / 1000, "end": stop / 1000}
    return ordered


def faults(words: Sequence[Mapping[str, Any]], begin: float, end: float) -> list[str | None]:
    """Faults in the times of words that one speaker says between `begin` and `end`, in text order; None: none. A word
    has no length (at `begin` it is `UNALIGNED`, as VoxLM writes it), lies outside, is out of order or overlaps another.
    """
    found: list[str | None] = []
    for word in words:
        a, b = word["start"], word["end"]
        outside = a < begin - SLACK or b > end + SLACK
        empty = (UNALIGNED if abs(a - begin) < 1e-6 else "zero length") if b <= a else None
        found.append(empty or ("outside the recording" if outside else None))
    tails: list[tuple[float, int]] = []  # the longest runs without overlaps (patience sorting), by their last word
    before: dict[int, int | None] = {}
    for i, word in enumerate(words):
        if found[i] is None:
            place = bisect_right(tails, word["start"] + SLACK, key=lambda tail: tail[0])
            before[i] = tails[place - 1][1] if place else None
            if place == len(tails) or word["end"] < tails[place][0]:
                tails[place : place + 1] = [(word["end"], i)]
    run: list[int] = []
    at = tails[-1][1] if tails else None
    while at is not None:
        run.append(at)
        at = before[at]
    run.reverse()
    for i in before.keys() - set(run):
        place, start = bisect_right(run, i), words[i]["start"]
        behind = place and start < words[run[place - 1]]["start"]
        ahead = place < len(run) and start > words[run[place]]["start"]
        found[i] = "out of order" if behind or ahead else "overlap"
    return found
