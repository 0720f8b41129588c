"""Turns: the text and times of each speaker of a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stentor.data.cut import text_of

if TYPE_CHECKING:
    from lhotse.cut import Cut

MOST_UNKNOWN = 0.1
"""Share of a record's speech that may lack a text, such as a word that was cut off at its end."""


def turns_of(cut: Cut) -> list[dict[str, Any]] | None:
    """`{"speaker", "start", "end", "text"}` in order of start, seconds from the start of the cut.

    A turn is a segment of the record with its text, or else with the words that lie in it. Speakers are numbers in the
    order in which they begin, from 0. A record without speakers is one speaker's; one with a text of its own and
    segments of one speaker is one turn. None when it is not known what is said in more than a tenth of the speech.
    """
    turns, unknown = [], 0.0
    for supervision in sorted(cut.supervisions, key=lambda s: (s.start, s.end)):
        start, end = max(supervision.start, 0.0), min(supervision.end, cut.duration)
        words = [item.symbol for item in (supervision.alignment or {}).get("word", [])]
        text = " ".join(words) if supervision.text is None else supervision.text
        if text.strip():
            turns.append({"speaker": supervision.speaker, "start": start, "end": end, "text": text.strip()})
        elif supervision.text is None:
            unknown += max(end - start, 0.0)
    spoken = sum(t["end"] - t["start"] for t in turns)
    if unknown > MOST_UNKNOWN * (spoken + unknown):
        speakers, text = {s.speaker for s in cut.supervisions}, text_of(cut)
        if turns or len(speakers) > 1 or not text:
            return None
        spans = [(max(s.start, 0.0), min(s.end, cut.duration)) for s in cut.supervisions]
        turns = [{"speaker": None, "start": min(a for a, _ in spans), "end": max(b for _, b in spans), "text": text}]
    return numbered(turns)


def numbered(turns: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns, their speakers numbered from 0 in the order in which they come."""
    numbers: dict[Any, int] = {}
    return [{**t, "speaker": numbers.setdefault(t["speaker"], len(numbers))} for t in turns]


def turn_shares(cut: Cut) -> list[dict[str, Any]]:
    """`turns_of` with times as shares of the cut, which are the same at any speed; empty where it is None."""
    turns = turns_of(cut) or []
    return [t | {"start": t["start"] / cut.duration, "end": t["end"] / cut.duration} for t in turns]
