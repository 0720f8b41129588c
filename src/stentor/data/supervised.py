"""Supervisions of any kind of cut, and the words in them with what is wrong with their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stentor.data.word_times import faults

if TYPE_CHECKING:
    from lhotse.cut import Cut
    from lhotse.supervision import SupervisionSegment

Checked = tuple[dict[str, Any], str | None]
"""A word and what is wrong with its times; None: nothing."""


def supervised(cut: Cut, at: float = 0.0) -> Iterator[tuple[float, Cut, SupervisionSegment]]:
    """Each supervision itself (not a copy) that is not muted, with the simple cut that it belongs to, and where that
    cut begins: seconds from the start of the outermost cut."""
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, MixedCut):
        for track in cut.tracks:
            if not track.mute:
                yield from supervised(track.cut, at + track.offset)
    elif not isinstance(cut, PaddingCut):
        for supervision in cut.supervisions:
            yield at, cut, supervision


def checked_words(cut: Cut, seconds: float | None = None) -> list[Checked]:
    """The words of a cut as its record has them, `{"word", "start", "end"}` in seconds from the start of the cut. Its
    audio has so many `seconds`, where that is known."""
    checked: list[Checked] = []
    for at, part, supervision in supervised(cut):
        shift = at - part.start  # an alignment counts from the start of the recording
        words = [
            {"word": item.symbol, "start": round(shift + item.start, 6), "end": round(shift + item.end, 6)}
            for item in (supervision.alignment or {}).get("word", [])
            if item.symbol
        ]
        begin = at + min(0.0, supervision.start)  # words may reach beyond their turn, a turn beyond a cut
        end = at + max(part.duration, supervision.end)
        checked += zip(words, faults(words, begin, min(end, seconds or end)))
    return checked
