"""Several sources into one epoch: repeats, weights, language balance, and what had to be dropped."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stentor.data.cut import Unusable, language_of
from stentor.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.section import Data
    from stentor.sources.base import Source

BAD = ("missing", "unreadable", "empty", "not_finite", "silent", "truncated")
"""Drop reasons that mean a broken record, as against one that is merely not wanted (too long, no text)."""


def rng(*key: int | str) -> np.random.Generator:
    """A random generator that is a function of `key` alone, equal on every rank, worker, machine and Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


@dataclass
class Dropped:
    """Records that are not used, by reason, with the first few named."""

    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    named: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    most_named = 20

    def add(self, reason: str, message: str, seconds: float = 0.0) -> None:
        self.reasons[reason] += 1
        self.seconds += seconds
        if len(self.named[reason]) < self.most_named:
            self.named[reason].append(message)

    @property
    def bad(self) -> int:
        return sum(self.reasons[r] for r in BAD)

    def check(self, seen: int, max_bad: float, what: str) -> None:
        """Raise DataError when more than the share `max_bad` of `seen` records is broken."""
        if self.bad > max_bad * seen:
            lines = [f"  {m}" for r in BAD for m in self.named[r]]
            more = f"\n  ... and {self.bad - len(lines)} more" if self.bad > len(lines) else ""
            raise DataError(
                f"{what}: {self.bad} of {seen} records cannot be used, more than `data.max_bad` allows "
                f"({max_bad:.1%}). Mend or remove these, or raise `data.max_bad`:\n" + "\n".join(lines) + more
            )


def usable(
    cuts: Iterable[Cut | Unusable],
    data: Data,
    refuse: Callable[[Cut], str | None],
    dropped: Dropped,
) -> Iterator[Cut]:
    """The cuts that can be trained on; the others are counted in `dropped` by reason."""
    for cut in cuts:
        if isinstance(cut, Unusable):
            dropped.add(cut.reason, cut.message)
        elif cut.duration > data.max_seconds:
            dropped.add("too_long", f"{cut.id}: {cut.duration:.1f} s", cut.duration)
        elif cut.duration < data.min_seconds:
            dropped.add("too_short", f"{cut.id}: {cut.duration:.3f} s", cut.duration)
        elif reason := refuse(cut):
            dropped.add(reason, cut.id, cut.duration)
        else:
            yield cut


@dataclass
class Pool:
    """All usable cuts of one listed source."""

    cuts: list[Cut]
    repeat: float
    weight: float | None
    """Given for all pools of a mix or for none (`Data` sees to it)."""


class Mix:
    """An epoch's records from several listed sources, as a pure function of (seed, epoch)."""

    def __init__(self, pools: Sequence[Pool], language_temperature: float | None = None):
        self.pools = list(pools)
        self.factors: list[np.ndarray] = [np.full(len(p.cuts), p.repeat) for p in pools]
        weights = [p.weight for p in pools if p.weight is not None]
        if weights:
            total = sum(len(p.cuts) * p.repeat for p in pools) / sum(weights)
            self.factors = [np.full(len(p.cuts), w * total / max(len(p.cuts), 1)) for p, w in zip(pools, weights)]
        if language_temperature is not None:
            hours: Counter[str | None] = Counter()
            for pool in pools:
                for cut in pool.cuts:
                    hours[language_of(cut)] += cut.duration
            most = max(hours.values())
            gain = {k: (most / v) ** (1 - language_temperature) for k, v in hours.items()}
            for pool, factor in zip(pools, self.factors):
                factor *= [gain[language_of(cut)] for cut in pool.cuts]

    def __len__(self) -> int:
        """Records in an epoch, up to rounding."""
        return round(sum(f.sum() for f in self.factors))

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) pairs in source order; `copy` tells repeats of a record within the epoch apart.

        A record with factor 2.25 comes twice, and a third time in every fourth epoch.
        """
        for number, (pool, factor) in enumerate(zip(self.pools, self.factors)):
            phase = rng(seed, "mix", number).random(len(pool.cuts))
            # Whole copies by the phase-shifted running total: fractions are exact over the epochs, for every record.
            copies = np.floor(factor * (epoch + 1) + phase) - np.floor(factor * epoch + phase)
            for cut, times in zip(pool.cuts, copies.astype(int)):
                for copy in range(times):
                    yield cut, copy


def listed(
    sources: Sequence[Source],
    data: Data,
    refuse: Callable[[Cut], str | None],
    dropped: Dropped,
    what: str,
) -> list[Pool]:
    """Read the metadata of listed sources. Raises DataError when too many are broken or nothing is left."""
    pools, seen, used = [], 0, 0
    for source in sources:
        before = sum(dropped.reasons.values())
        cuts = list(usable(source.cuts(), data, refuse, dropped))
        seen += len(cuts) + sum(dropped.reasons.values()) - before
        used += len(cuts)
        pools.append(Pool(cuts, source.repeat, source.weight))
    dropped.check(seen, data.max_bad, what)
    if not used:
        reasons = ", ".join(f"{v} {k}" for k, v in dropped.reasons.items()) or "the source is empty"
        raise DataError(f"{what}: no usable record ({reasons}).")
    return pools


def hours(pools: Sequence[Pool]) -> float:
    """Hours of audio in the pools, each record once."""
    return math.fsum(c.duration for p in pools for c in p.cuts) / 3600
