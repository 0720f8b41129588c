"""Worker: the one thread that touches a model. It takes batches from the model's queue until that is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from stentor.serve.errors import report
from stentor.serve.scheduler import JobQueue, QueuedJob

BatchDone = Callable[[float, float, int], None]


class Worker:
    """Runs the jobs of `queue`. A job whose piece cannot be read, or fails in the model, fails alone."""

    def __init__(self, name: str, queue: JobQueue, on_batch: BatchDone = lambda seconds, audio, pieces: None):
        """`on_batch` is called with the seconds that a batch took, its seconds of audio and its number of pieces."""
        self.queue, self.on_batch = queue, on_batch
        self.turn = threading.Lock()
        """Whoever has it may touch the model: for what is not in the queue (see `ServedModel.taking_turns`)."""
        self.thread = threading.Thread(target=self._run, name=f"stentor-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Fail what waits and end the thread after the batch that runs."""
        self.queue.close()
        if self.alive:
            self.thread.join()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def _run(self) -> None:
        while batch := self.queue.take():
            began = time.monotonic()
            loaded: list[tuple[QueuedJob, int, Any]] = []
            for job, i in batch:
                try:
                    if not job.cancelled:
                        loaded.append((job, i, job.load(i)))
                except Exception as error:
                    _fail(job, error)
            with self.turn:
                _predict(loaded)
            self.on_batch(time.monotonic() - began, sum(job.sizes[i] for job, i, _ in loaded), len(loaded))


def _predict(loaded: list[tuple[QueuedJob, int, Any]]) -> None:
    loaded = [piece for piece in loaded if not piece[0].cancelled]
    if not loaded:
        return
    lead = loaded[0][0]
    try:
        results = list(zip(loaded, lead.predict([item for _, _, item in loaded]), strict=True))
    except Exception as error:
        if len(loaded) == 1:
            _fail(lead, error)
            return
        for piece in loaded:  # which of them it was
            _predict([piece])
        return
    for (job, i, _), result in results:
        if not job.cancelled:
            job.on_result(i, result)


def _fail(job: QueuedJob, error: Exception) -> None:
    if not job.cancelled:  # otherwise its files are gone
        report(error)
    job.fail(error)
