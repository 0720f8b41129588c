"""Plans of training data, and what tests compare of them."""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from stentor.dataloading.dataset import train_dataset
from stentor.dataloading.train_dataset import TrainDataset


def price(cut, seconds: float) -> int:
    return round(10 * seconds)


def dataset(section, seed=0, refuse=lambda cut: None, segments=None, lines=None) -> TrainDataset:
    """The training data of a section; what it says is appended to `lines`."""
    return train_dataset(section, seed, refuse, [].append if lines is None else lines.append, segments)


def ids(batches) -> list[str]:
    return [item.cut.id for items in batches for item in items]


def facts(planned, count: int | None = None) -> list[tuple[int, list[tuple]]]:
    """Of planned batches, the first `count`: number, and of each item (id, epoch, copy, cost)."""
    return [(p.index, [(i.cut.id, i.epoch, i.copy, i.cost) for i in p.items]) for p in islice(planned, count)]


def in_turn(ranks: Iterable[Sequence[Any]]) -> list[Any]:
    """What the ranks have, in the order of the steps in which they take it."""
    return [batch for step in zip(*ranks) for batch in step]


def starts_at(index: int, *samplers) -> list[Any]:
    """Where a run goes on at a batch, as its checkpoint holds it."""
    return json.loads(json.dumps([entry for sampler in samplers for entry in sampler.starts(index)]))
