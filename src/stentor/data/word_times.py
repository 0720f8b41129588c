"""Word times in order: no word shorter than `LEAST` where there is room, and none that overlaps the next."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

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
