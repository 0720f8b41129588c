"""`split`: shorter utterances cut out of another source at its word times, such as phrases of long sentences."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from pydantic import Field

from stentor.data.cut import RATE, Cut, UnusableRecord, text_of, words_of
from stentor.data.supervised import checked_words
from stentor.errors import DataError
from stentor.section import IntRange, Range
from stentor.sources.base import Source, TightSource
from stentor.sources.synth import chain

MARGIN = 0.2
"""Most seconds of a pause that a piece keeps before its first word and after its last."""


class Split(Source):
    """Runs of consecutive words of another source's records, cut in the pauses between words."""

    type: Literal["split"] = "split"
    source: TightSource
    """Source of the records: any source whose records are single recordings with word times."""
    count: int = Field(1000, ge=1)
    """Number of pieces."""
    words: IntRange = (2, 8)
    """Fewest and most words in one piece."""
    pause: float = Field(0.05, ge=0)
    """Shortest pause in seconds at which a piece may begin or end. The ends of a record always count."""
    silence: Range | None = (0.1, 0.3)
    """Seconds of silence added before and after each piece, each drawn from this range. Null: none."""
    seed: int = 0
    """Random seed for drawing the pieces."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from lhotse.cut.data import DataCut

        divisible: list[tuple[Cut, list[tuple[int, int]]]] = []
        left: Counter[str] = Counter()
        for cut in self.source.cuts():
            words = [] if isinstance(cut, UnusableRecord) else words_of(cut)
            if isinstance(cut, UnusableRecord):
                unusable = cut
            elif not (isinstance(cut, DataCut) and cut.recording is not None and len(cut.supervisions) == 1):
                unusable = UnusableRecord(
                    cut.id, "not_single", f"{cut.id}: a split needs one recording with one speaker."
                )
            elif not words:
                unusable = UnusableRecord(cut.id, "no_words", f"{cut.id}: no word times.")
            elif wrong := [f"{word['word']!r} {fault}" for word, fault in checked_words(cut) if fault]:
                unusable = UnusableRecord(cut.id, "word_times", f"{cut.id}: a split needs all times: {wrong[0]}.")
            elif pieces := self._pieces(words):
                divisible.append((cut, pieces))
                continue
            else:
                low, high = self.words
                unusable = UnusableRecord(
                    cut.id, "no_piece", f"{cut.id}: no {low} to {high} words between pauses of {self.pause:g} s."
                )
            left[unusable.reason] += 1
            yield unusable
        if not divisible:
            why = ", ".join(f"{count} {reason}" for reason, count in left.most_common()) or "it is empty"
            raise DataError(f"The {self.source.type} source of a split has no record that can be cut: {why}.")
        rng, silence = random.Random(f"split/{self.seed}"), random.Random(f"silence/{self.seed}")
        order: list[int] = []
        for number in range(self.count):
            order = order or rng.sample(range(len(divisible)), len(divisible))
            cut, pieces = divisible[order.pop()]
            piece = _piece(cut, *rng.choice(pieces), name=f"{cut.id}-split{self.seed}-{number:05d}")
            if self.silence is not None:
                piece = chain(piece.id, [piece], [silence.uniform(*self.silence)], silence.uniform(*self.silence))
            yield piece

    def _pieces(self, words: list[dict]) -> list[tuple[int, int]]:
        """All (first word, word after the last) that may be cut out."""
        inner = [i for i, (a, b) in enumerate(pairwise(words), 1) if b["start"] - a["end"] >= self.pause - 1e-9]
        ends = [0, *inner, len(words)]
        low, high = self.words
        return [(a, b) for a in ends for b in ends if low <= b - a <= high]


def _piece(cut: Cut, first: int, after: int, name: str) -> Cut:
    words = words_of(cut)
    before = words[first - 1]["end"] if first else 0.0
    behind = words[after]["start"] if after < len(words) else cut.duration
    start = max((before + words[first]["start"]) / 2, words[first]["start"] - MARGIN, 0.0)
    end = min((words[after - 1]["end"] + behind) / 2, words[after - 1]["end"] + MARGIN, cut.duration)
    start, end = round(start * RATE) / RATE, round(end * RATE) / RATE
    # As written, with capitals and punctuation, where the transcript's words and the timed words are the same ones.
    written = (text_of(cut) or "").split()
    spelled = written if len(written) == len(words) else [w["word"] for w in words]
    (supervision,) = cut.supervisions
    items = sorted((i for i in supervision.alignment["word"] if i.symbol), key=lambda i: i.start)
    supervision = replace(
        supervision,
        id=name,
        start=0.0,
        duration=end - start,
        text=" ".join(spelled[first:after]),
        alignment={"word": items[first:after]},
    )
    return replace(cut, id=name, start=cut.start + start, duration=end - start, supervisions=[supervision])
