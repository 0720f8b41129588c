"""Service: what the routes of one server share, and the way of a recording through it."""

import asyncio
import copy
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stentor.audio.activity import EnergyDetector
from stentor.audio.selection import WHOLE, Selection
from stentor.inference.transcribe import RecordingPlan, Transcriber
from stentor.inference.vad import Detector, SileroDetector, open_detector
from stentor.serve.errors import ApiError
from stentor.serve.recordings import Decoders, UploadedRecording
from stentor.serve.registry import Registry, ServedModel
from stentor.serve.scheduler import QueuedJob
from stentor.serve.uploads import Form, HeldBytes

T = TypeVar("T")
LARGE = 4 * 2**20
"""Bytes of a file that may not take the last place where files are read: small ones do not wait for large ones."""
SLOW_CODEC = 16_000
"""Bytes of a second of audio, as a guess before the file is read."""
TURN_MARGIN = 12.0
"""Decibels above the noise for a threshold of 1 in turns."""


SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900)
MOST_SECRETS, MOST_OF_A_KEY = 10_000, 1000
"""Client secrets at a time."""


@dataclass
class Limits:
    """Limits of a server. All limits are finite."""

    upload_bytes: int = 2**30
    audio_seconds: float = 4 * 3600.0
    characters: int = 4096
    """Longest text to speak, in characters."""
    requests: int = 256
    """Requests that wait or run together."""
    requests_per_key: int = 64
    least_time: float = 120.0
    """Seconds that every request may take; longer recordings have `time_factor` times their length."""
    time_factor: float = 2.5

    def time(self, audio_seconds: float) -> float:
        return max(self.least_time, self.time_factor * audio_seconds)


class Metrics:
    """Counters of a server, for Prometheus. They hold no content of requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("stentor_requests", "Requests by route and status.", ["route", "status"], **names)
        self.seconds = Histogram("stentor_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, **names)
        self.active = Gauge("stentor_requests_active", "Requests that have not been answered.", **names)
        self.waiting = Gauge("stentor_queue_seconds", "Audio that waits for a model.", ["model"], **names)
        self.audio = Counter("stentor_audio_seconds", "Audio of recordings and of speech.", ["model"], **names)
        self.batches = Counter("stentor_batches", "Batches that a model has had.", ["model"], **names)
        self.pieces = Counter("stentor_pieces", "Windows and pieces in those batches.", ["model"], **names)
        self.busy = Counter("stentor_model_seconds", "Time that a model worked.", ["model"], **names)

    def batch(self, model: str, seconds: float, pieces: int) -> None:
        """Count a batch of a model, and the time that it took."""
        self.batches.labels(model).inc()
        self.pieces.labels(model).inc(pieces)
        self.busy.labels(model).inc(seconds)


class ClientSecret(NamedTuple):
    """A key of a short life, which pages have instead of a key of the server."""

    expires: float
    key: int
    """The number of the key that asked for it, for which its sessions count."""
    settings: Any
    """Those with which its sessions begin."""


class ClientSecrets:
    """The client secrets that are valid; a restart ends them."""

    def __init__(self) -> None:
        self._secrets: dict[str, ClientSecret] = {}

    def add(self, seconds: float, key: int, settings: Any) -> tuple[str, ClientSecret]:
        """A new one with its value. Raises ApiError where there are too many."""
        self._secrets = {value: secret for value, secret in self._secrets.items() if secret.expires > time.time()}
        if len(self._secrets) >= MOST_SECRETS or sum(s.key == key for s in self._secrets.values()) >= MOST_OF_A_KEY:
            raise ApiError(429, "Too many client secrets are valid: try again later.", retry_after=60)
        value, secret = f"ek_{secrets.token_hex(24)}", ClientSecret(time.time() + seconds, key, settings)
        self._secrets[value] = secret
        return value, secret

    def get(self, value: str) -> ClientSecret | None:
        """The secret of a value, while it is valid."""
        secret = self._secrets.get(value)
        return secret if secret is not None and secret.expires > time.time() else None


@dataclass
class Service:
    """Models, limits and helpers of a server."""

    registry: Registry
    limits: Limits = field(default_factory=Limits)
    vad: str = "energy"
    metrics: Metrics = field(default_factory=Metrics)
    readers: int = field(default_factory=lambda: max(2, min(8, os.cpu_count() or 2)))
    """Files that are read together."""
    held: HeldBytes = field(default_factory=HeldBytes)
    """Fields of forms in memory."""
    active: int = 0
    """Requests that have not been answered."""
    draining: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Sessions end when it is set."""
    client_secrets: ClientSecrets = field(default_factory=ClientSecrets)

    def __post_init__(self) -> None:
        self.detector: Detector = open_detector(self.vad)
        if isinstance(self.detector, SileroDetector):
            for served in filter(lambda served: served.can("transcribe"), self.registry.models.values()):
                self.detector.check_rate(served.model.bundle.processor.sample_rate)
        self.decoders = Decoders(self.readers + 1)  # one for windows, whatever is being planned
        self.threads = ThreadPoolExecutor(self.readers, "stentor-reader")
        self._large = asyncio.Semaphore(self.readers - 1)
        self.metrics.active.set_function(lambda: self.active)
        for served in self.registry.models.values():
            self.metrics.waiting.labels(served.name).set_function(partial(getattr, served.queue, "seconds"))
            for worker in served.workers:
                worker.on_batch = partial(self.metrics.batch, served.name)

    @property
    def ready(self) -> bool:
        """Every model has answered."""
        return all(worker.ready for worker in self.registry.workers)

    def model(self, name: str, purpose: str | None = None) -> ServedModel:
        """The model of a name, for one of `registry.PURPOSES` or for any. Raises ApiError."""
        names = self.registry.names
        if name not in names:
            known = ", ".join(names)
            raise ApiError(404, f"The model {name!r} does not exist; known: {known}.", "model", "model_not_found")
        served = self.registry.models[names[name]]
        if purpose is not None and not served.can(purpose):
            message = f"The model {name!r} was trained for the task {served.model.task.type}: it does not {purpose}."
            raise ApiError(400, message, "model")
        return served

    def detector_at(self, threshold: float) -> Detector:
        """The detector with another threshold, from 0 (all is speech) to 1: a probability, or by energy the level above
        the noise, of which 1 is 12 dB."""
        if not isinstance(self.detector, SileroDetector):
            return EnergyDetector(TURN_MARGIN * threshold)
        other = copy.copy(self.detector)
        other.threshold = threshold
        return other

    def recording(self, upload: Form, rate: int, selection: Selection = WHOLE) -> UploadedRecording:
        """The form's file at a rate. Raises ApiError where it has none."""
        file = upload.file()
        path, name = Path(file.file.name), Path(file.filename or "").name or "upload"
        most = self.limits.audio_seconds
        return UploadedRecording(path, name, rate, self.decoders, most, upload.cancelled, selection)

    async def read(self, work: Callable[[UploadedRecording], T], recording: UploadedRecording) -> T:
        """The result of `work` on a recording, done in a thread. Raises what it raises, and TimeoutError."""
        size = recording.path.stat().st_size
        async with asyncio.timeout(self.limits.time(size / SLOW_CODEC)):
            if size <= LARGE:
                return await asyncio.wrap_future(self.threads.submit(work, recording))
            await self._large.acquire()
            loop, thread = asyncio.get_running_loop(), self.threads.submit(work, recording)
            # Not when its client goes, which is before its thread has ended.
            thread.add_done_callback(lambda _: loop.call_soon_threadsafe(self._large.release))
            return await asyncio.wrap_future(thread)

    async def results(
        self, served: ServedModel, job: QueuedJob, seconds: float
    ) -> AsyncGenerator[list[tuple[int, Any]], None]:
        """The results of a job's pieces with their numbers, as they come from the model; the job's own `on_result` and
        `on_error` are replaced. Raises what the model raised, and TimeoutError after these seconds. Whatever ends it,
        nothing of it stays in the queue: close it (`contextlib.aclosing`)."""
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + seconds
        results: asyncio.Queue[Any] = asyncio.Queue()

        def hand_over(*result: Any) -> None:
            loop.call_soon_threadsafe(results.put_nowait, result)

        job.on_result = job.on_error = hand_over
        served.queue.submit(job)
        try:
            missing = len(job.sizes)
            while missing:
                batch = [await asyncio.wait_for(results.get(), deadline - time.monotonic())]
                while not results.empty():
                    batch.append(results.get_nowait())
                for result in batch:
                    if len(result) == 1:
                        raise result[0]
                missing -= len(batch)
                yield batch
        finally:
            served.queue.cancel(job)

    async def windows(
        self, served: ServedModel, transcriber: Transcriber, plan: RecordingPlan
    ) -> AsyncGenerator[int, None]:
        """Lets the model answer a plan's windows. Gives how many from the first on are done, each time that it is more.
        Raises as `results` does, and is to be closed as well."""
        seconds = plan.samples / transcriber.rate
        job = QueuedJob(
            [(window.end - window.start) / transcriber.rate for window in plan.windows],
            transcriber.decoding,
            lambda i: transcriber.example(plan, i),
            lambda worker, examples: transcriber.predict(examples, worker.model.bundle),
        )
        done = 0
        self.metrics.audio.labels(served.name).inc(seconds)
        async with aclosing(self.results(served, job, self.limits.time(seconds))) as batches:
            async for batch in batches:
                plan.outputs.update(batch)
                before = done
                while done in plan.outputs:
                    done += 1
                if done > before:
                    yield done

    def close(self) -> None:
        """End threads and helpers."""
        for worker in self.registry.workers:
            worker.stop()
        self.threads.shutdown(wait=True, cancel_futures=True)
        self.decoders.close()
