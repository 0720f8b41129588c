"""Scheduler: pieces of work of all requests for one model in one queue, in batches across requests, in fair turns; and
the workers that do them, each the one thread that touches a model on a device.

Turns are those of self-clocked fair queueing (Golestani 1994), which shares a link between flows of packets: each job
has a clock, which moves by the audio that it was given, and the job whose clock would be earliest after its next piece
leads the next batch. A new job begins at the queue's clock, which is that of the last leader. So a clip does not wait
for the rest of a long file, and clips without end do not stop the file.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np

from stentor.data.batch import Example
from stentor.errors import StentorError
from stentor.inference.model import Model
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.utterance import Utterance
from stentor.inference.stream.base import Recogniser
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.serve.errors import QueueClosed, log, report
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe

LOOKAHEAD = 32
"""Pieces of one job that are looked at for a batch: what it has is done nearly in its order."""
STRETCH = 1.5
"""A batch holds no piece this many times as long as the one that leads it: it would make that wait."""
LEAST = 2.0
"""Seconds; shorter leaders do not shut out pieces of `STRETCH` times this."""
LONG = 60.0
"""Seconds; longer jobs are long ones."""

Policy = Literal["fair", "fifo"]


@dataclass(eq=False)
class QueuedJob:
    """A request's pieces. The functions are called by the thread that has the model."""

    sizes: Sequence[float]
    """Seconds of each piece."""
    group: Hashable
    """Pieces of jobs of one group may be in one batch."""
    load: Callable[[int], Any]
    """Reads piece `i`."""
    predict: Callable[[Any, list[Any]], Sequence[Any]]
    """Results of loaded pieces, of this job and of others of its group, by the worker that asks."""
    on_result: Callable[[int, Any], None] = lambda i, result: None
    on_error: Callable[[BaseException], None] = lambda error: None
    """Called once at most; afterwards nothing of the job is done any more."""
    device: str | None = None
    """Where its state is: only workers there do it, and one of them what is of its group, since its jobs are small and
    come again and again. None: any."""
    pending: list[int] = field(default_factory=list)
    clock: float = 0.0
    number: int = 0
    served: float = 0.0
    cancelled: bool = False
    """Nothing more of it is done; what is in the batch that runs has no consequence."""

    @cached_property
    def long(self) -> bool:
        return sum(self.sizes) > LONG

    def fail(self, error: BaseException) -> None:
        if not self.cancelled:
            self.cancelled = True
            self.on_error(error)


Piece = tuple[QueuedJob, int]


class JobQueue:
    """The jobs that wait for one model, on one device or on several. Any thread may call any method."""

    def __init__(self, batch_seconds: float, policy: Policy = "fair", long_workers: float = math.inf):
        """`batch_seconds`: most padded audio of a batch; `fifo` serves jobs in the order in which they came.
        `long_workers`: most workers that have long jobs at a time, so that one is left for short ones."""
        self.batch_seconds, self.policy, self.long_workers = batch_seconds, policy, long_workers
        self._with_long = 0
        self._taken: set[Hashable] = set()
        """Devices and groups of jobs that workers have."""
        self._jobs: list[QueuedJob] = []
        self._clock, self._count = 0.0, 0
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, job: QueuedJob) -> None:
        """Put a job in; one without pieces is left out. A closed queue fails it."""
        with self._changed:
            self._count += 1
            job.pending = list(range(len(job.sizes)))
            job.number, job.clock = self._count, self._clock
            closed = self._closed
            if job.pending and not closed:
                self._jobs.append(job)
                self._changed.notify_all()
        if closed:
            job.fail(QueueClosed())

    def cancel(self, job: QueuedJob) -> None:
        """Take a job out, with all that waits of it."""
        with self._changed:
            job.cancelled = True
            self._leave_out_cancelled()

    def close(self) -> None:
        """Fail what waits, and let `take` answer an empty batch."""
        with self._changed:
            self._closed = True
            waiting, self._jobs = self._jobs, []
            self._changed.notify_all()
        for job in waiting:
            job.fail(QueueClosed())

    @property
    def seconds(self) -> float:
        """Audio that waits."""
        with self._changed:
            return sum(job.sizes[i] for job in self._jobs for i in job.pending)

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    def take(self, timeout: float | None = None, device: str | None = None) -> list[Piece]:
        """The next batch for a worker on a device; waits until there is one. Empty when the queue is closed, or nothing
        came in `timeout`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready(device) or self._closed, timeout)
            batch = self._batch(ready) if (ready := self._ready(device)) else []
            self._with_long += _has_long(batch)
            self._taken |= {(job.device, job.group) for job, _ in batch}
            return batch

    def done(self, batch: list[Piece]) -> None:
        """A worker is through with a batch."""
        with self._changed:
            self._with_long -= _has_long(batch)
            self._taken -= {(job.device, job.group) for job, _ in batch}
            self._changed.notify_all()

    def _ready(self, device: str | None) -> list[QueuedJob]:
        """The jobs of which the next batch may be."""
        self._leave_out_cancelled()
        long = self._with_long < self.long_workers
        return [
            job
            for job in self._jobs
            if (long or not job.long)
            and (job.device is None or (job.device == device and (device, job.group) not in self._taken))
        ]

    def _leave_out_cancelled(self) -> None:
        """A job that failed is still in the queue when the next batch is taken."""
        self._jobs = [job for job in self._jobs if not job.cancelled]

    def _batch(self, jobs: list[QueuedJob]) -> list[Piece]:
        fair = self.policy == "fair"
        order = sorted(jobs, key=self._turn if fair else lambda job: job.number)
        lead = order[0]
        length = longest = lead.sizes[lead.pending[0]]
        candidates = [
            (abs(job.sizes[i] - length) if fair else 0.0, place, i, job)
            for place, job in enumerate(order)
            if job.group == lead.group
            for i in job.pending[:LOOKAHEAD]
            if not fair or job.sizes[i] <= STRETCH * max(length, LEAST)
        ]
        self._clock = max(self._clock, lead.clock + length)
        batch: list[Piece] = []
        for _, _, i, job in sorted(candidates, key=lambda c: c[:3]):  # the leader's first piece comes first
            longest = max(longest, job.sizes[i])
            if batch and longest * (len(batch) + 1) > self.batch_seconds:
                break
            batch.append((job, i))
            job.pending.remove(i)
            job.clock += job.sizes[i]
            job.served += job.sizes[i]
        self._jobs = [job for job in self._jobs if job.pending]
        self._clock = self._clock if self._jobs else 0.0
        return batch

    @staticmethod
    def _turn(job: QueuedJob) -> tuple[float, float, int]:
        return job.clock + job.sizes[job.pending[0]], job.served, job.number


def _has_long(batch: list[Piece]) -> bool:
    return any(job.long for job, _ in batch)


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
        except StentorError as error:  # a setting of the export that its runtime does not have: no request's fault
            log.error("%s cannot be served: %s", self.model.name, error)
            return
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
        """Output of the model for a second of noise, or half a second of speech. Raises what it raises."""
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
