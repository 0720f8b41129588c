"""Data sets of a run: those that are trained on, and the batches of those that are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from stentor.data.cut import Cut
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.mixing import DropCounter, DropReason, read_pools
from stentor.dataloading.section import Data
from stentor.dataloading.streamed_dataset import StreamedDataset
from stentor.dataloading.train_dataset import ListedDataset, TrainDataset, limits_of
from stentor.sources.base import Source

if TYPE_CHECKING:
    from stentor.models.contracts import Processor


def train_dataset(
    data: Data,
    seed: int,
    drop_reason: DropReason,
    say: Callable[[str], None],
    training_segments: Callable[[Cut], Iterable[Cut]] | None = None,
) -> TrainDataset:
    """The training data of one stage: read during training when one of its sources is a stream or has an index,
    listed otherwise."""
    streamed = any(source.streaming or source.index() is not None for source in data.train)
    kind: type[TrainDataset] = StreamedDataset if streamed else ListedDataset
    return kind(data if training_segments is None else unlimited(data), seed, drop_reason, say, training_segments)


def unlimited(data: Data) -> Data:
    """The section without `max_seconds`, for tasks that take records of any length."""
    return data.model_copy(update={"max_seconds": math.inf})


def eval_plan(
    source: Source, name: str, data: Data, processor: Processor, *drop_reasons: DropReason
) -> tuple[BatchSampler, DropCounter]:
    """The batches of one evaluation set: each record once, in batches by length. Records are left out (and counted)
    only when they are broken, refused, or longer than the model or `data.max_seconds` takes, never for `batch_tokens`.
    Of `unlimited` data the model hears windows.
    """
    dropped = DropCounter()
    if processor.max_seconds and math.isfinite(data.max_seconds):
        data = data.model_copy(update={"max_seconds": min(data.max_seconds, processor.max_seconds)})
    (pool,) = read_pools([source], data, dropped, name, *drop_reasons)
    cost = processor.tokens
    largest = max(cost(cut, cut.duration) for cut in pool.cuts)
    limits = limits_of(data, max(data.eval_batch_tokens or data.batch_tokens, largest))
    return BatchSampler(lambda epoch: ((cut, 0) for cut in pool.cuts), cost, limits, seed=0), dropped
