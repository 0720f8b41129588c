"""From the section `data:` to batch plans: lists or streams the sources, counts what is dropped, fixes the order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from stentor.data.cut import Unusable, text_of
from stentor.data.mix import Dropped, Mix, Pool, hours, listed, rng, usable
from stentor.data.plan import Item, Plan
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.section import Data
    from stentor.models.base import Processor
    from stentor.sources.base import Source

STREAM_TEXTS = 10_000
"""Transcripts of a stream that are read ahead for tokenizers made from the data."""
STREAM_TRUST = 1000
"""Records of a stream that must have been read before a share of bad ones says anything."""


class Feed:
    """The training data of one stage."""

    def __init__(self, data: Data, seed: int, refuse: Callable[[Cut], str | None], tell: Callable[[str], None]):
        self.data, self.seed, self.refuse = data, seed, refuse
        self.dropped = Dropped()
        self.streams = any(s.streaming for s in data.train)
        self.pools: list[Pool] = []
        self._read = [0] * len(data.train)  # records that were read of each stream, at most
        if self.streams:
            if data.language_temperature is not None or any(s.repeat != 1 for s in data.train):
                raise ConfigError(
                    "`data.language_temperature` and a source's `repeat` need sources of known length; one of "
                    "`data.train` is a stream. Use `weight`."
                )
            tell(
                "The training data is a stream of unknown length: items are shuffled and batched in windows of "
                f"{data.window}; a resumed run reads the metadata again up to its place, in the same order, which "
                "needs the source to give its records in the same order as before."
            )
        else:
            tell(f"Listing the training data ({', '.join(s.type for s in data.train)}) ...")
            self.pools = listed(data.train, data, refuse, self.dropped, "data.train")
            self.mix = Mix(self.pools, data.language_temperature)

    @property
    def records(self) -> int:
        """Usable records, 0 for streams."""
        return sum(len(p.cuts) for p in self.pools)

    @property
    def hours(self) -> float:
        return hours(self.pools)

    def cuts(self) -> Iterator[Cut]:
        """Each usable record once; of streams only the first."""
        if self.streams:
            for source in self.data.train:
                yield from islice(usable(source.cuts(), self.data, self.refuse, Dropped()), STREAM_TEXTS)
        for pool in self.pools:
            yield from pool.cuts

    def texts(self) -> Iterator[str]:
        """Training transcripts."""
        return (text for cut in self.cuts() if (text := text_of(cut)))

    def plan(self, cost: Callable[[Cut, float], int]) -> Plan:
        """The batch plan, given what an item costs."""
        data = self.data
        too_long: set[str] = set()

        def drop(item: Item, cost: int) -> None:
            if item.cut.id not in too_long:
                too_long.add(item.cut.id)
                message = f"{item.cut.id}: {cost} positions, more than data.batch_tokens ({data.batch_tokens})"
                self.dropped.add("too_long_for_batch", message, item.cut.duration)

        return Plan(
            self._stream if self.streams else lambda epoch: self.mix.epoch(self.seed, epoch),
            cost, layout=data.layout, budget=data.batch_tokens, max_items=data.max_items, buckets=data.buckets,
            window=data.window, seed=self.seed, speed=data.augment.speed_factor if data.augment.speed else None,
            stream_window=data.window if self.streams else None, on_too_long=drop,
        )  # fmt: skip

    def _stream(self, epoch: int) -> Iterator[tuple[Cut, int]]:
        """Records of all sources, interleaved by weight until every one has ended."""
        open_ = [(self._usable(n, s), s.weight or 1.0) for n, s in enumerate(self.data.train)]
        generator = rng(self.seed, "stream", epoch)
        while open_:
            weights = [w for _, w in open_]
            pick = int(generator.choice(len(open_), p=[w / sum(weights) for w in weights]))
            cut = next(open_[pick][0], None)
            if cut is None:
                open_.pop(pick)
            else:
                yield cut, 0
        self.dropped.check(sum(self._read), self.data.max_bad, "data.train")

    def _usable(self, number: int, source: Source) -> Iterator[Cut]:
        """The usable cuts of a stream. What is dropped counts where the stream is read for the first time: the dry
        run and later epochs come past the same records again."""
        for place, record in enumerate(source.cuts(), 1):
            new = place > self._read[number]
            self._read[number] = max(self._read[number], place)
            yield from usable([record], self.data, self.refuse, self.dropped if new else Dropped())
            if new and isinstance(record, Unusable):
                self.dropped.check(max(sum(self._read), STREAM_TRUST), self.data.max_bad, "data.train")

    def fingerprint(self, plan: Plan | None = None) -> str:
        """Changes when the order of training items would change; with `plan` also when items cost something else (a
        changed prompt or tokenizer) and so fall into other batches."""
        data = self.data
        digest = hashlib.blake2b(digest_size=16)
        facts = [
            data.layout, data.batch_tokens, data.max_items, data.buckets, data.window, data.augment.speed, self.seed,
            data.language_temperature, [(s.repeat, s.weight) for s in data.train],
        ]  # fmt: skip
        digest.update(json.dumps(facts).encode())
        for pool in self.pools:
            for cut in pool.cuts:
                digest.update(f"{cut.id}\0{cut.duration:.6f}\0".encode())
        if plan is not None and not self.streams:
            for items in plan.epoch(0):
                digest.update(" ".join(i.cut.id for i in items).encode() + b"\n")
        if self.streams:
            digest.update(json.dumps([s.model_dump(mode="json") for s in data.train]).encode())
        return digest.hexdigest()


def eval_plan(
    source: Source, name: str, data: Data, refuse: Callable[[Cut], str | None], processor: Processor
) -> tuple[Plan, Dropped]:
    """The plan of one evaluation set: each record once, in batches by length. Records are left out (and counted) only
    when they are broken, refused, or longer than the model or `data.max_seconds` takes; never for `batch_tokens`."""
    dropped = Dropped()
    longest = min(data.max_seconds, processor.max_seconds or data.max_seconds)
    pools = listed([source], data.model_copy(update={"max_seconds": longest}), refuse, dropped, name)
    cost = processor.tokens
    most = max(cost(c, c.duration) for c in pools[0].cuts)
    plan = Plan(
        lambda epoch: ((c, 0) for c in pools[0].cuts), cost, layout=data.layout,
        budget=max(data.eval_batch_tokens or data.batch_tokens, most), max_items=data.max_items, buckets=data.buckets,
        window=data.window, seed=0,
    )  # fmt: skip
    return plan, dropped
