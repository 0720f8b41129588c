"""Mixing of several sources into one epoch: repeats, weights, language balance, and what had to be dropped."""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from stentor.data.cut import Cut, UnusableRecord, language_of
from stentor.data.seeding import Permutation, rng
from stentor.dataloading.section import Data
from stentor.errors import DataError
from stentor.sources.base import Source, source_notes

CutT = TypeVar("CutT", bound="Cut | UnusableRecord")
_REASONS = """
missing unreadable empty not_finite silent truncated no_channel unknown_language not_in_alphabet no_codec other_codec
no_member duplicate_id no_audio wrong_type wrong_shape wrong_range too_long text_too_long too_many_speakers
"""
BAD = tuple(_REASONS.split())
"""Drop reasons that mean a broken record, or one that the model cannot use, not an unwanted one (no text, or over a
limit of `data:` or `task:`)."""
Language = str | None
"""Code of a language; None: of records that name none."""
DropReason = Callable[["Cut"], tuple[str, str] | None]
"""Function of a task or a model: (reason, message) for a record that it cannot use, None for one that it can (see
`Task.drop_reason` and `Processor.drop_reason`)."""


@dataclass
class DropCounter:
    """Records that are not used, by reason, with the first few named."""

    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    named: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unwanted: Counter[str] = field(default_factory=Counter)
    """Those of `BAD` reasons that the run file leaves out: clips over `data.max_seconds`."""
    max_named = 20

    def add(self, reason: str, message: str, seconds: float = 0.0, unwanted: bool = False) -> None:
        self.reasons[reason] += 1
        self.unwanted[reason] += unwanted
        self.seconds += seconds
        if len(self.named[reason]) < self.max_named:
            self.named[reason].append(message)

    def facts(self) -> dict[str, Any]:
        """Number of records dropped for each reason, and some of their names, for JSON files."""
        return {"dropped": dict(self.reasons), "named": dict(self.named)}

    def lines(self) -> list[str]:
        """A line for each reason, with the first records named."""
        named = {reason: ", ".join(m.rstrip(".") for m in messages[:3]) for reason, messages in self.named.items()}
        return [
            f"{count} ({reason}): {named.get(reason, '')}{' ...' if count > 3 else ''}"
            for reason, count in sorted(self.reasons.items())
        ]

    @property
    def bad(self) -> int:
        return sum(self.reasons[r] - self.unwanted[r] for r in BAD)

    def merge(self, other: DropCounter) -> None:
        """Count what `other` counted as well."""
        self.reasons.update(other.reasons)
        self.unwanted.update(other.unwanted)
        self.seconds += other.seconds
        for reason, messages in other.named.items():
            self.named[reason] += messages[: self.max_named - len(self.named[reason])]

    def check(self, seen: int, max_bad: float, name: str) -> None:
        """Raise DataError when more than the share `max_bad` of `seen` records is broken."""
        if self.bad > max_bad * seen:
            lines = [f"  {m}" for r in BAD if self.reasons[r] > self.unwanted[r] for m in self.named[r]]
            more = f"\n  ... and {self.bad - len(lines)} more" if self.bad > len(lines) else ""
            raise DataError(
                f"{name}: {self.bad} of {seen} records cannot be used, more than `data.max_bad` allows "
                f"({max_bad:.1%}). Fix or remove these, or raise `data.max_bad`:\n" + "\n".join(lines) + more
            )


def filter_cuts(
    cuts: Iterable[Cut | UnusableRecord], data: Data, dropped: DropCounter, *drop_reasons: DropReason
) -> Iterator[Cut]:
    """The cuts that can be trained on; the others are counted in `dropped` by the first reason."""
    for cut in cuts:
        if isinstance(cut, UnusableRecord):
            dropped.add(cut.reason, cut.message)
        elif cut.duration > data.max_seconds:
            message = f"{cut.id}: {cut.duration:.1f} s, more than `data.max_seconds` ({data.max_seconds:g})"
            dropped.add("too_long", message, cut.duration, unwanted=True)
        elif 0 < cut.duration < data.min_seconds:  # texts alone have no duration
            message = f"{cut.id}: {cut.duration:.3f} s, less than `data.min_seconds` ({data.min_seconds:g})"
            dropped.add("too_short", message, cut.duration)
        elif reason_and_message := next(filter(None, (drop_reason(cut) for drop_reason in drop_reasons)), None):
            dropped.add(*reason_and_message, cut.duration)
        else:
            yield cut


@dataclass
class Pool:
    """All usable cuts of one listed source."""

    cuts: list[Cut]
    repeat: float
    weight: float | None
    """Set for all pools of a mix or for none (`Data` checks it)."""


def source_factors(sources: Sequence[tuple[int, float, float | None]]) -> list[float]:
    """Number of times that each record of the sources, given as (records, repeat, weight), comes in an epoch."""
    weights = [weight for *_, weight in sources if weight is not None]
    if not weights:
        return [repeat for _, repeat, _ in sources]
    total = sum(size * repeat for size, repeat, _ in sources) / sum(weights)
    return [weight * total / max(size, 1) for (size, *_), weight in zip(sources, weights)]


def language_gains(seconds: Mapping[Language, float], temperature: float | None) -> dict[Language, float]:
    """Repeat factor of the records of each language by `data.language_temperature`; 1 where it is off."""
    power = 0.0 if temperature is None else 1 - temperature
    most = max(seconds.values(), default=0.0)
    return {language: (most / amount) ** power for language, amount in seconds.items() if amount}


class Mix:
    """An epoch's records from several listed sources, as a pure function of (seed, epoch)."""

    def __init__(self, pools: Sequence[Pool], language_temperature: float | None = None):
        self.pools = list(pools)
        factors = source_factors([(len(p.cuts), p.repeat, p.weight) for p in pools])
        self.factors: list[np.ndarray] = [np.full(len(p.cuts), factor) for p, factor in zip(pools, factors)]
        if language_temperature is not None:
            seconds: Counter[Language] = Counter()
            for pool in pools:
                for cut in pool.cuts:
                    seconds[language_of(cut)] += cut.duration  # type: ignore[assignment]
            gains = language_gains(seconds, language_temperature)
            for pool, factor in zip(pools, self.factors):
                factor *= [gains.get(language_of(cut), 1.0) for cut in pool.cuts]

    def __len__(self) -> int:
        """Records in an epoch, up to rounding."""
        return round(sum(f.sum() for f in self.factors))

    def epoch(self, seed: int, epoch: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) pairs in source order; `copy` tells repeats of a record within the epoch apart. A record with
        factor 2.25 comes twice, and a third time in every fourth epoch."""
        for number, (pool, factor) in enumerate(zip(self.pools, self.factors)):
            phase = rng(seed, "mix", number).random(len(pool.cuts))
            # Whole copies by the phase-shifted running total: fractions are exact over the epochs, for every record.
            copies = np.floor(factor * (epoch + 1) + phase) - np.floor(factor * epoch + phase)
            for cut, times in zip(pool.cuts, copies.astype(int)):
                for copy in range(times):
                    yield cut, copy


class ReplayMix:
    """General data that is mixed into an epoch on top of its base items, as a pure function of (seed, epoch)."""

    def __init__(self, pools: Sequence[Pool], share: float):
        self.pools = [p for p in pools if p.cuts]
        self.ratio = share / (1 - share)
        """Replayed items for each base item."""
        sizes = np.array([len(p.cuts) * p.repeat if p.weight is None else p.weight for p in self.pools])
        self.shares = sizes / sizes.sum()
        """Share of each pool in the replayed items."""

    def __len__(self) -> int:
        """Records to draw from."""
        return sum(len(p.cuts) for p in self.pools)

    def counts(self, num_base: int) -> list[int]:
        """Items of each pool for so many base items; they add up to the rounded share of all."""
        ends = np.rint(round(num_base * self.ratio) * np.concatenate([[0.0], np.cumsum(self.shares)]))
        return np.diff(ends).astype(int).tolist()

    def epoch(self, seed: int, epoch: int, num_base: int) -> Iterator[tuple[Cut, int]]:
        """(cut, copy) pairs for `num_base` items: each epoch takes the next ones of a shuffled ring of the records, so
        that every record has come once before one comes again."""
        for number, (pool, count) in enumerate(zip(self.pools, self.counts(num_base))):
            order = rng(seed, "replay", number).permutation(len(pool.cuts))
            for i in range(count):
                yield pool.cuts[order[(epoch * count + i) % len(order)]], i // len(order)


@contextmanager
def many_objects() -> Iterator[None]:
    """Inside, many objects are made that stay: the garbage collector looks through the newest alone, and through none
    of them later."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 1000)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*thresholds)


def read_pools(
    sources: Sequence[Source], data: Data, dropped: DropCounter, name: str, *drop_reasons: DropReason
) -> list[Pool]:
    """Read the metadata of sources of known length; `name` is their key in errors. Raises DataError when too many
    records are broken or nothing is left."""
    pools, num_dropped = [], dropped.reasons.total()
    for source in sources:
        records = with_counter(source.cuts(), f"{name} ({source.type})")
        with many_objects():
            cuts = list(within_hours(source, filter_cuts(records, data, dropped, *drop_reasons)))
        pools.append(Pool(cuts, source.repeat, source.weight))
    usable = sum(len(pool.cuts) for pool in pools)
    dropped.check(usable + dropped.reasons.total() - num_dropped, data.max_bad, name)
    if not usable:
        unmatched = [line.split(": ", 1)[1] for line in source_notes(list(sources), name)]
        reasons = ", ".join([*(f"{v} {k}" for k, v in dropped.reasons.items()), *unmatched]) or "the source is empty"
        raise DataError(f"{name}: no usable record ({reasons}).")
    return pools


def within_hours(source: Source, cuts: Iterable[CutT]) -> Iterable[CutT]:
    """The random part of a source's records that its `max_hours` asks for, always the same one."""
    if source.max_hours is None:
        return cuts
    listed = list(cuts)
    order = Permutation(len(listed), "max_hours")
    seconds = np.array([0.0 if isinstance(cut, UnusableRecord) else cut.duration for cut in listed])
    count, _ = order.within(seconds, source.max_hours * 3600)
    return [listed[i] for i in np.sort(order(np.arange(count))).tolist()]


def total_hours(pools: Sequence[Pool]) -> float:
    """Hours of audio in the pools, each record once."""
    return math.fsum(c.duration for p in pools for c in p.cuts) / 3600


T = TypeVar("T")

DELAY = 1.0
"""Seconds of listing after which the counter is shown, and between two of its figures."""


def with_counter(records: Iterable[T], name: str) -> Iterator[T]:
    """The records; on a terminal with a line on stderr that counts them and goes away at the end."""
    if not sys.stderr.isatty() or os.environ.get("LOCAL_RANK", "0") != "0":
        yield from records
        return
    from rich.console import Console
    from rich.status import Status

    status, shown = Status(name, console=Console(stderr=True)), time.monotonic()
    try:
        for number, record in enumerate(records, 1):
            if time.monotonic() - shown > DELAY:
                shown = time.monotonic()
                status.update(f"{name}: {number:,} records")
                status.start()
            yield record
    finally:
        status.stop()
