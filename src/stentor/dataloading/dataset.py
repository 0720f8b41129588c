"""Data sets of a run: the training data, and the batches of evaluation sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from stentor.data.cut import Cut
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.mixing import DropCounter, DropReason, read_pools
from stentor.dataloading.section import Data
from stentor.dataloading.streamed_dataset import StreamedDataset
from stentor.dataloading.train_dataset import ListedDataset, TrainDataset, limits_of
from stentor.models.contracts import Processor
from stentor.sources.base import Source


def train_dataset(
    data: Data,
    seed: int,
    drop_reason: DropReason,
    say: Callable[[str], None],
    training_segments: Callable[[Cut], Iterable[Cut]] | None = None,
) -> TrainDataset:
    """The training data of one stage: read during training when one of its sources is a stream or has an index, listed
    otherwise."""
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
    only when they are broken, refused, or longer than the model or `data.max_seconds` takes, never for `batch_tokens`:
    one record with more positions raises the limit of the set, see `BatchSampler.limits`.
    From `unlimited` data the model gets windows.
    """
    dropped = DropCounter()
    (pool,) = read_pools([source], data, dropped, name, *drop_reasons)
    cost = processor.tokens
    largest = max(cost(cut, cut.duration) for cut in pool.cuts)
    packed_length = processor.packed_length if isinstance(processor, Processor) else int
    budget = max(data.eval_batch_tokens or data.batch_tokens, packed_length(largest))
    limits = limits_of(data, budget, packed_length)
    return BatchSampler(lambda epoch: ((cut, 0) for cut in pool.cuts), cost, limits, seed=0), dropped
