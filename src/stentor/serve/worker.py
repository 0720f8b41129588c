"""Worker: the one thread that touches a model. It takes batches from the model's queue until that is closed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from stentor.errors import StentorError, without_secrets
from stentor.serve.scheduler import JobQueue, Piece

log = logging.getLogger(__name__)

BatchDone = Callable[[float, float, int], None]


class Worker:
    """Runs the jobs of `queue`. A job whose piece cannot be read, or fails in the model, fails alone."""

    def __init__(self, name: str, queue: JobQueue, on_batch: BatchDone = lambda seconds, audio, pieces: None):
        """`on_batch` is called with the seconds that a batch took, its seconds of audio and its number of pieces."""
        self.queue, self.on_batch = queue, on_batch
        self.answered: float | None = None
        """When the model last gave a result (time.monotonic)."""
        self.thread = threading.Thread(target=self._run, name=f"stentor-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Fail what waits and end the thread after the batch that runs."""
        self.queue.close()
        if self.thread.is_alive():
            self.thread.join()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def _run(self) -> None:
        while batch := self.queue.take():
            began = time.monotonic()
            loaded = [(piece, item) for piece in batch if (item := self._load(piece)) is not None]
            self._predict(loaded)
            audio = sum(job.sizes[i] for (job, i), _ in loaded)
            self.on_batch(time.monotonic() - began, audio, len(loaded))

    def _load(self, piece: Piece) -> Any:
        """A piece as its job's `predict` takes it; None when its job is over or cannot read it."""
        job, i = piece
        if job.cancelled:
            return None
        try:
            return job.load(i)
        except Exception as error:
            if not job.cancelled:  # then its files are gone
                _report(error)
            job.fail(error)
            return None

    def _predict(self, loaded: list[tuple[Piece, Any]]) -> None:
        loaded = [(piece, item) for piece, item in loaded if not piece[0].cancelled]
        if not loaded:
            return
        (lead, _), _ = loaded[0]
        try:
            results = lead.predict([item for _, item in loaded])
            self.answered = time.monotonic()
        except Exception as error:
            if len(loaded) == 1:
                _report(error)
                lead.fail(error)
            for piece in loaded if len(loaded) > 1 else ():  # which of them it was
                self._predict([piece])
            return
        for ((job, i), _), result in zip(loaded, results, strict=True):
            if not job.cancelled:
                job.on_result(i, result)


def _report(error: Exception) -> None:
    """What is no fault of the request is for whoever runs the server: with its place, without what it was about."""
    if not isinstance(error, StentorError):
        log.error("%s: %s", type(error).__name__, without_secrets(str(error)), exc_info=log.isEnabledFor(logging.DEBUG))
