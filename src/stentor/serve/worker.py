"""Worker: the one thread that touches a model on a device. It takes batches from the queue until that is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from stentor.data.batch import Example
from stentor.inference.model import Model
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.utterance import Utterance
from stentor.inference.stream.base import Recogniser
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.serve.errors import report
from stentor.serve.scheduler import JobQueue, Piece, QueuedJob
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe


class Worker:
    """Runs the jobs of `queue`, which it may share with workers that have the same model on other devices. A job whose
    piece cannot be read, or fails in the model, fails alone."""

    def __init__(self, name: str, model: Model, queue: JobQueue, device: str | None = None):
        """`device`: where the model is; for jobs whose state is there."""
        self.model, self.queue, self.device = model, queue, device
        self.on_batch: Callable[[float, int], None] = lambda seconds, pieces: None
        """Called with the seconds that a batch took and its number of pieces."""
        self.ready = False
        """The model has answered."""
        self.turn = threading.Lock()
        """Whoever has it may touch the model: for what is not in the queue (see `ServedModel.taking_turns`)."""
        self.recogniser: Callable[[StreamOptions], Recogniser] = lru_cache(64)(partial(open_recogniser, model))
        """For streams. Raises ConfigError."""
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

    @cached_property
    def speaker(self) -> Speaker:
        """Its remarks are not logged: they repeat what a client sends."""
        return self.model.speaker(remark=lambda sentence: None)

    def _run(self) -> None:
        try:
            self._answer_something()
        except Exception as error:
            report(error)
            return
        self.ready = True
        while batch := self.queue.take(device=self.device):
            self._work(batch)
            del batch  # what is done is not remembered until there is something to do

    def _work(self, batch: list[Piece]) -> None:
        began = time.monotonic()
        loaded: list[tuple[QueuedJob, int, Any]] = []
        for job, i in batch:
            try:
                if not job.cancelled:
                    loaded.append((job, i, job.load(i)))
            except Exception as error:
                _fail(job, error)
        with self.turn:
            self._predict(loaded)
        self.queue.done(batch)
        self.on_batch(time.monotonic() - began, len(loaded))

    def _answer_something(self) -> None:
        """What the model makes of a second of noise, or says in half a second. Raises what it raises."""
        noise, task = np.random.default_rng(0).normal(0, 1e-3, 16000).astype(np.float32), self.model.task
        if isinstance(task, Transcribe):
            self.model.for_transcription().predict(self.model.bundle, [Example("", noise)], checked=False)
        elif isinstance(task, Speak):
            letters = self.model.bundle.traits.letters
            text = "hello" if letters is None else "".join(sorted(filter(str.isalnum, letters)))[:12] or "hello"
            list(self.speaker.speak([Utterance(text, duration=0.5)]))
        elif isinstance(task, Diarize):
            self.model.diarize(noise, 16000)

    def _predict(self, loaded: list[tuple[QueuedJob, int, Any]]) -> None:
        loaded = [piece for piece in loaded if not piece[0].cancelled]
        if not loaded:
            return
        lead = loaded[0][0]
        try:
            results = list(zip(loaded, lead.predict(self, [item for _, _, item in loaded]), strict=True))
        except Exception as error:
            if len(loaded) == 1:
                _fail(lead, error)
                return
            for piece in loaded:  # which of them it was
                self._predict([piece])
            return
        for (job, i, _), result in results:
            if not job.cancelled:
                job.on_result(i, result)


def _fail(job: QueuedJob, error: Exception) -> None:
    if not job.cancelled:  # otherwise its files are gone
        report(error)
    job.fail(error)
