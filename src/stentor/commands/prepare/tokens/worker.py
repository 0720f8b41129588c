"""From groups of records to the members of a shard, in this process or in several, on one device or several."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.tokens.noisy import HEADROOM
from stentor.commands.prepare.tokens.plan import describe, error
from stentor.errors import AudioError, StentorError

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.commands.prepare.tokens import Request
    from stentor.commands.prepare.tokens.plan import Group, Sample
    from stentor.commands.prepare.tokens.stop import Stop
    from stentor.models.codecs.base import AudioCodec

Made = tuple[list[tuple[str, bytes, dict[str, Any]]], list[dict[str, Any]]]
"""Of a group: (member's name, its bytes, its label) of each sample, and lines of errors.jsonl."""


def made(
    groups: Sequence[Group], request: Request, codec: str | None, devices: Sequence[str], stop: Stop
) -> Iterator[tuple[Group, Made]]:
    """What becomes of each group, in their order; after a signal, of those only that were being made."""
    jobs = min(request.jobs or len(devices), len(groups))
    if jobs > 1:
        yield from _in_processes(groups, jobs, request, codec, devices, stop)
        return
    worker = Worker(request, codec, devices[0])
    for group in groups:
        if stop.signal is not None:
            return
        yield group, worker.make(group)


def _in_processes(
    groups: Sequence[Group], jobs: int, request: Request, codec: str | None, devices: Sequence[str], stop: Stop
) -> Iterator[tuple[Group, Made]]:
    """Dealt to fresh processes (which a GPU needs), a few groups ahead; processes are dealt to the devices in turn."""
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    for i in range(jobs):
        places.put(devices[i % len(devices)])
    todo = iter(groups)
    running: deque[tuple[Group, Future[Made]]] = deque()
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(request, codec, places)) as pool:
        try:
            while True:
                while stop.signal is None and len(running) < 2 * jobs and (group := next(todo, None)) is not None:
                    running.append((group, pool.submit(_make, group)))
                if not running:
                    return
                group, future = running.popleft()
                if stop.signal is not None and future.cancel():
                    return  # what comes after it is no use without it
                yield group, future.result()
        except BrokenProcessPool:
            raise StentorError(
                f"One of the {jobs} processes died, perhaps for want of memory: run the same command again to go on, "
                "with fewer --jobs."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: Worker | None = None


def _start(request: Request, codec: str | None, places: Any) -> None:
    """In a fresh process: one thread, deaf to signals, which its parent obeys, and an end when the parent ends."""
    global _worker

    from stentor.config.plugins import load_plugins
    from stentor.data.processes import end_with_parent

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if codec is not None:
        import torch

        torch.set_num_threads(1)
    end_with_parent()
    load_plugins(list(request.plugins))
    _worker = Worker(request, codec, places.get())


def _make(group: Group) -> Made:
    assert _worker is not None
    return _worker.make(group)


class Worker:
    """Groups of records to encoded members. `codec` is a name for `open_codec`; None packs audio as FLAC."""

    def __init__(self, request: Request, codec: str | None, device: str):
        self.request, self.name, self.device = request, codec, device
        self._codec: AudioCodec | None = None

    @property
    def codec(self) -> AudioCodec:
        """Opened when it is first needed: here its errors are told, in a process's start they are not."""
        if self._codec is None:
            from stentor.models.codecs.base import open_codec

            assert self.name is not None
            self._codec = open_codec(self.name, self.device)
        return self._codec

    def make(self, group: Group) -> Made:
        """The members of a group in its order, and what cannot be used of it."""
        found: dict[str, tuple[str, bytes, dict[str, Any]]] = {}
        lost: dict[str, dict[str, Any]] = {}
        for batch in _batches(group.samples):
            ready: list[tuple[Sample, np.ndarray, dict[str, Any]]] = []
            for name, cut in batch:
                try:
                    ready.append(((name, cut), *self.prepared(cut)))
                except AudioError as problem:
                    lost[name] = error(cut.id, problem.reason, f"{cut.id}: {problem}")
            for ((name, cut), audio, extra), data in zip(ready, self.encoded([audio for _, audio, _ in ready])):
                if isinstance(data, AudioError):
                    lost[name] = error(cut.id, data.reason, f"{cut.id}: {data}")
                    continue
                found[name] = self.member(name, cut, audio, data, extra)
        names = [name for name, _ in group.samples]
        return [found[name] for name in names if name in found], [lost[name] for name in names if name in lost]

    @property
    def rate(self) -> int:
        """Hz at which audio is read."""
        from stentor.commands.prepare.tokens import RAW_RATE

        return self.request.rate or RAW_RATE if self.name is None else self.codec.sample_rate

    def prepared(self, cut: Cut) -> tuple[np.ndarray, dict[str, Any]]:
        """The audio to encode, float32 [samples], and further keys of its label. Raises AudioError."""
        from stentor.data.seeding import rng
        from stentor.models.codecs.base import at_peak

        audio = heard(cut, self.rate)
        if self.name is None:
            return audio, {}  # raw audio keeps its level
        noisy = self.request.noisy
        if noisy is None:
            return at_peak(audio), {}
        drawn = rng(self.request.seed, cut.id, "noisy prompt")
        frames = self.codec.frames(len(audio))
        audio, clean = noisy.apply(at_peak(audio, HEADROOM), frames, self.codec.hop, self.rate, drawn)
        return at_peak(audio), {"clean_start_token_idx": clean}

    def encoded(self, audios: list[np.ndarray]) -> list[np.ndarray | bytes | AudioError]:
        """Of each clip its codes, [codebooks, frames], or its FLAC; of one that the codec refuses, why."""
        if self.name is None:
            from stentor.audio.io import encode

            return [encode(audio, self.rate) for audio in audios]  # `prepared` has seen that it can be written
        try:
            return list(self.codec.encode(audios))
        except AudioError as problem:
            if len(audios) == 1:
                return [problem]
            return [found for audio in audios for found in self.encoded([audio])]

    def member(
        self, name: str, cut: Cut, audio: np.ndarray, data: np.ndarray | bytes, extra: dict[str, Any]
    ) -> tuple[str, bytes, dict[str, Any]]:
        """The member's name and bytes, and the label of a sample."""
        from stentor.commands.prepare.tokens.shards import npy

        label = {**describe(cut), "id": name}
        if name != cut.id:
            label["source_id"] = cut.id
        label["audio_duration"] = len(audio) / self.rate
        if isinstance(data, bytes):
            return f"{name}.flac", data, label
        return f"{name}.npy", npy(data), {**label, "num_tokens": data.shape[1], **extra}


def heard(cut: Cut, rate: int) -> np.ndarray:
    """The audio of a record, float32 [samples] at `rate` Hz. Raises AudioError, also where it is silent."""
    import numpy as np

    from stentor.data.load_audio import load_audio

    audio = load_audio(cut, rate)
    if not np.isfinite(audio).all():
        raise AudioError("the audio contains NaN or infinite samples.", "not_finite")
    if not audio.any():
        raise AudioError("the audio is silent.", "silent")
    return audio


def _batches(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """The samples in lists of similar length."""
    from stentor.commands.prepare.words.worker import batches

    names = {cut.id: name for name, cut in samples}
    for batch in batches([cut for _, cut in samples]):
        yield [(names[cut.id], cut) for cut in batch]
