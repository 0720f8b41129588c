"""Source `held_out`: for data without a validation set, a part of the training data that is not trained on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from pydantic import Field

from stentor.data.cut import Cut, UnusableRecord, speaker_of
from stentor.errors import ConfigError, DataError
from stentor.sources.base import Source

T = TypeVar("T")


class HeldOut(Source):
    """Under `data.eval` or `data.test` only: speakers drawn from all of `data.train`, whose records are scored and
    never trained on. With one speaker or none named, records are drawn. `eval: {dev: held_out}` is enough."""

    type: Literal["held_out"] = "held_out"
    share: float = Field(0.05, gt=0, lt=1)
    """Share of the training records, by whole speakers; of a stream, the share of the speakers."""
    most: int = Field(1000, ge=1)
    """No more records than this, so that scoring large data stays short. Of a stream, so many are read from its front
    and held in memory."""
    seed: int = 0
    """Draws the speakers."""

    _cuts: list[Cut] | None = None

    def set_cuts(self, cuts: list[Cut]) -> None:
        """Set the records that were held out."""
        self._cuts = cuts

    def records(self) -> Iterator[Cut]:
        if self._cuts is None:
            raise ConfigError(
                "A source of `type: held_out` is a part of the training data: it stands under `data.eval` or "
                "`data.test` of a run, not elsewhere."
            )
        yield from self._cuts


def draw(seed: int, group: str) -> float:
    """A number in [0, 1) for a speaker (or for a record without one), from the seed alone."""
    digest = hashlib.blake2b(f"{seed}/{group}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def group_of(record: Cut | UnusableRecord) -> str:
    """Unit of holding out: all records of a speaker; a record without one is alone."""
    return (None if isinstance(record, UnusableRecord) else speaker_of(record)) or record.id


def groups_of(records: Sequence[Cut | UnusableRecord]) -> list[str]:
    """`group_of` each record; with fewer than two speakers each record is alone."""
    groups = [group_of(record) for record in records]
    several = len({g for g, record in zip(groups, records) if g != record.id}) > 1
    return groups if several else [record.id for record in records]


def held_groups(sizes: Mapping[str, int], most: float, seed: int) -> set[str]:
    """The groups that are held out: in the order of their draw as long as they fit into `most` records; when none does,
    the one with the fewest. Never all of them. Raises `DataError` when there are fewer than two."""
    if len(sizes) < 2:
        raise DataError(f"There are {len(sizes)} usable records: nothing can be held out of that.")
    order = sorted(sizes, key=lambda group: draw(seed, group))
    left = most
    held: set[str] = set()
    for group in order:
        if sizes[group] <= left and len(held) < len(sizes) - 1:
            held.add(group)
            left -= sizes[group]
    return held or {min(order, key=sizes.__getitem__)}


def hold_out(pools: Sequence[list[Cut]], sets: Mapping[str, HeldOut]) -> list[list[Cut]]:
    """Gives each set its records out of the listed sources' and answers what is left to train on, per source. Raises
    `DataError` when there is not enough for a set."""
    remaining = list(pools)
    for name, held_out in sets.items():
        records = [cut for cuts in remaining for cut in cuts]
        groups = groups_of(records)
        sizes = Counter(groups)
        try:
            taken = held_groups(sizes, min(held_out.share * len(records), held_out.most), held_out.seed)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        held_out.set_cuts([cut for cut, group in zip(records, groups) if group in taken])
        group_iterator = iter(groups)
        remaining = [[cut for cut, group in zip(cuts, group_iterator) if group not in taken] for cuts in remaining]
    return remaining


class StreamHoldOut:
    """Held-out part of streams: each speaker by the own draw alone, as nothing else is known of a stream."""

    def __init__(self, sets: Mapping[str, HeldOut]):
        self.sets = sets

    def set_of(self, cut: Cut) -> str | None:
        """The set that holds out the cut's speaker."""
        least = 0.0
        for name, held_out in self.sets.items():
            value = (draw(held_out.seed, group_of(cut)) - least) % 1.0  # each set has its own piece of the circle
            if value < held_out.share:
                return name
            least += held_out.share
        return None

    def rest(self, cuts: Iterable[T]) -> Iterator[T]:
        """The cuts that are trained on."""
        return (cut for cut in cuts if self.set_of(cut) is None)  # type: ignore[arg-type]

    def fill(self, streams: Sequence[Iterable[Cut]]) -> None:
        """Reads from the front of each stream until every set has its records. Raises `DataError` for an empty one."""
        cuts_of: dict[str, list[Cut]] = {name: [] for name in self.sets}
        for number, cuts in enumerate(streams, 1):
            # Each stream gives its part, so that one that never ends does not have to.
            counts = {n: -(-s.most * number // len(streams)) for n, s in self.sets.items()}
            for cut in cuts:
                name = self.set_of(cut)
                if name is not None and len(cuts_of[name]) < counts[name]:
                    cuts_of[name].append(cut)
                if all(len(cuts_of[n]) >= counts[n] for n in counts):
                    break
        for name, held_out in self.sets.items():
            if not cuts_of[name]:
                raise DataError(
                    f"{name}: no speaker of the stream falls into it; raise its `share` ({held_out.share:g}), or try "
                    "another `seed`."
                )
            held_out.set_cuts(cuts_of[name])
