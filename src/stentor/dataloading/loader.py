"""Data loader: planned batches to tensors; audio is read and augmented in worker processes, one batch at a time."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from stentor.data.augment import Augment
from stentor.data.batch import Batch, Example
from stentor.data.codec_tokens import AcceptsCodecTokens, has_codes, load_codes
from stentor.data.feature_cache import CachedFeatures, FeatureCache
from stentor.data.load_audio import load_audio
from stentor.data.system import POSIX, STOP_SIGNALS
from stentor.dataloading.batch_sampler import Item, PlannedBatch
from stentor.errors import AudioError, StentorError
from stentor.section.contract import blame

if TYPE_CHECKING:
    from stentor.models.contracts import Processor
    from stentor.tasks.base import Task


class BatchDataset(Dataset):
    """Makes one batch from one `PlannedBatch`; lives in the workers, so it holds no model."""

    def __init__(self, task: Task, processor: Processor, augment: Augment | None, seed: int, packed: bool = False):
        self.task, self.processor, self.augment, self.seed, self.packed = task, processor, augment, seed, packed

    def examples(self, items: list[Item]) -> tuple[list[Example], list[tuple[str, str, str]]]:
        """Prepared items, and those that could not be read as (id, reason, message)."""
        examples, dropped = [], []
        for item in items:
            try:
                codes = self._codes(item)
                cached = None if codes is not None else self._cached_features(item)
                needs_audio = codes is None and cached is None and self.task.audio
                audio = load_audio(item.cut, self.processor.sample_rate) if needs_audio else None
            except AudioError as error:
                dropped.append((item.cut.id, error.reason, f"{item.cut.id}: {error}"))
                continue
            rng = None
            if self.augment is not None:
                rng = item.rng(self.seed, "augment")
                if audio is not None and not self.augment.keeps(item.speed):
                    audio = self.augment.apply(audio, rng, item.speed, self.processor.sample_rate)
            example = self.task.example(item.cut, audio, rng)
            if codes is not None:
                example.extra["codes"] = codes
            if cached is not None:
                example.extra |= cached._asdict()
            if self.augment is not None and self.augment.spec_augment is not None:
                example.extra["spec_augment"] = self.augment.spec_augment.model_dump()
            examples.append(example)
        return examples, dropped

    def _codes(self, item: Item) -> np.ndarray | None:
        """The codec tokens of an item, where it has such and the model takes them."""
        if not (isinstance(self.processor, AcceptsCodecTokens) and has_codes(item.cut)):
            return None
        return load_codes(item.cut, self.processor.codebooks, self.processor.vocabulary)

    def _cached_features(self, item: Item) -> CachedFeatures | None:
        """The processor's features of an item whose audio training leaves as it is."""
        if self.augment is None or not isinstance(self.processor, FeatureCache) or not self.augment.keeps(item.speed):
            return None
        return self.processor.cached_features(item.cut)

    def __getitem__(self, planned: PlannedBatch) -> tuple[PlannedBatch, Batch]:
        examples, dropped = self.examples(planned.items)
        batch = self.task.collate(examples, self.processor, self.packed) if examples else Batch({}, {}, [])
        batch.dropped = dropped + batch.dropped  # what could not be read, and what the processor refused
        # Only the position in the plan travels back with the batch: the cuts stay behind in the worker.
        return replace(planned, items=[]), batch


class PlannedSampler(Sampler):
    """A sampler over an iterator of planned batches."""

    def __init__(self, planned: Iterator[PlannedBatch]):
        self.planned = planned

    def __iter__(self) -> Iterator[PlannedBatch]:
        return self.planned


class ErrorAsResult(Dataset):
    """Returns an expected error instead of raising it: torch would raise it again with a traceback for its message."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitem__(self, planned: Any) -> Any:
        try:
            return self.dataset[planned]
        except StentorError as error:
            return error
        except Exception as error:
            if (mistake := blame(error)) is None:
                raise
            return mistake


def batches(
    dataset: Dataset, planned: Iterator[Any], workers: int, prefetch: int, pin: bool
) -> Generator[Any, None, None]:
    """`dataset[p]` for each planned batch, in order, prepared ahead in `workers` processes. Raises StentorError when a
    worker dies."""
    loader = DataLoader(
        ErrorAsResult(dataset),
        sampler=PlannedSampler(planned),
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_identity,
        worker_init_fn=_init_worker if workers else None,
    )
    shut_down = _no_workers
    try:
        results = _iterate(loader)
        if workers:
            # Workers ignore SIGTERM, and an iterator that a traceback or a half-read generator still holds ends none
            # of them: without this the process would wait for them for ever when it exits.
            shut_down = results._shutdown_workers
            atexit.register(shut_down)
        for result in results:
            if isinstance(result, StentorError):
                raise result
            yield result
    except (RuntimeError, ConnectionError, EOFError) as error:
        if not (workers and _is_worker_death(error)):
            raise
        message = str(error).partition("\n")[0] or type(error).__name__
        raise StentorError(
            "A data worker process died (killed, or out of memory). Nothing trained so far is lost: run the same "
            f"command again to resume, with a lower `data.workers` or `data.prefetch` if memory was short. ({message})"
        ) from error
    finally:
        atexit.unregister(shut_down)
        shut_down()


def _iterate(loader: DataLoader) -> Any:
    """The loader's iterator, without the signal handler that raises a worker's death anywhere in this process, also in
    the middle of an optimizer step. Waiting for the next batch notices a death as well."""
    main = POSIX and threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD) if main else None
    results = iter(loader)
    if main:
        signal.signal(signal.SIGCHLD, before)
    return results


def _is_worker_death(error: Exception) -> bool:
    """Whether it is torch's own message, or the loss of the connection that the worker's last tensors came through. An
    error that a worker raised begins with "Caught"."""
    if isinstance(error, RuntimeError):
        return "DataLoader worker (pid" in str(error) or "Pin memory thread exited" in str(error)
    return not str(error).startswith("Caught ")


def _no_workers() -> None:
    """In one process there are no workers to end."""


def _identity(x: Any) -> Any:
    return x


def _init_worker(worker: int) -> None:
    # Ctrl-C, and a launcher's SIGTERM, reach the whole process group: the training process saves and then ends its
    # workers itself.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
