"""`join`: longer utterances made by joining clips of other sources, such as digit strings from single digits."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from stentor.data.cut import Cut, UnusableRecord, field_of
from stentor.errors import DataError
from stentor.section import IntRange, Range
from stentor.sources.base import Source, TightSource
from stentor.sources.synth import chain


class Join(Source):
    """Utterances joined from clips of other sources; texts are joined with spaces and word times move along."""

    type: Literal["join"] = "join"
    source: TightSource | Annotated[list[TightSource], Field(min_length=1)]
    """Where the clips come from: any source, or several of them together."""
    count: int = Field(1000, ge=1)
    """Number of joined clips."""
    items: IntRange = (2, 6)
    """Fewest and most clips in one utterance."""
    pause: Range = (0.0, 0.2)
    """Seconds of silence between two clips."""
    silence: Range = (0.1, 0.3)
    """Seconds of silence before the first and after the last clip, both drawn."""
    same: str | None = "speaker"
    """Field that all clips of one utterance share. Null: any clips together."""
    seed: int = 0
    """Draws clips and pauses."""

    @property
    def sources(self) -> list[Source]:
        """The source that `source` names."""
        return self.source if isinstance(self.source, list) else [self.source]

    def records(self) -> Iterator[Cut | UnusableRecord]:
        groups: dict[Any, list[Cut]] = defaultdict(list)
        for cut in itertools.chain.from_iterable(source.cuts() for source in self.sources):
            if isinstance(cut, UnusableRecord):
                yield cut
            else:
                groups[field_of(cut, self.same) if self.same else None].append(cut)
        if not groups:
            raise DataError(f"The source of a join has no usable clip ({', '.join(s.type for s in self.sources)}).")
        if self.same and set(groups) == {None}:
            raise DataError(f"No clip of the joined source has the field `{self.same}`; set `same: null` to join any.")
        rng = random.Random(f"join/{self.seed}")
        names = sorted(groups, key=str)
        sizes = [len(groups[name]) for name in names]
        decks = {name: _deck(groups[name], rng) for name in names}
        for i in range(self.count):
            (name,) = rng.choices(names, sizes)
            clips = [next(decks[name]) for _ in range(rng.randint(*self.items))]
            pauses = [rng.uniform(*(self.pause if k else self.silence)) for k in range(len(clips))]
            yield chain(f"join-{self.seed}-{i:05d}", clips, pauses, rng.uniform(*self.silence))


def _deck(clips: list[Cut], rng: random.Random) -> Iterator[Cut]:
    """Clips without end, each as often as the others."""
    while True:
        yield from rng.sample(clips, len(clips))
