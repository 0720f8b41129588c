"""Recordings of uploads: files that helper processes decode, and what of their audio must be held lies on disk."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.selection import WHOLE, Selection
from stentor.data.system import NEW_GROUP
from stentor.errors import AudioError, StentorError

Blocks = Generator[np.ndarray, None, tuple[str, ...]]
"""Audio of a file, and at the end the notes about it (see `AudioInfo`)."""


class Cancelled(StentorError):
    """The client has gone, or its time is up: what is read for it is not needed any more."""


class Cancellation:
    """Whether what a client has sent is not needed any more. Helpers that are reading it then are ended."""

    def __init__(self) -> None:
        self._set, self._helpers, self._lock = False, set[_Helper](), threading.Lock()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            self._set = True
            for helper in self._helpers:
                helper.process.kill()

    @contextlib.contextmanager
    def ends(self, helper: _Helper) -> Iterator[None]:
        """In its block, `set` ends the helper. Raises Cancelled where it is set already."""
        with self._lock:
            if self._set:
                raise Cancelled
            self._helpers.add(helper)
        try:
            yield
        finally:
            with self._lock:
                self._helpers.discard(helper)


class Decoders:
    """Helper processes (`decoder.py`), started when they are needed, each for one file at a time."""

    def __init__(self, count: int, patience: float = 120.0):
        """`patience`: seconds that a helper may take for one block or part before it is ended."""
        self.patience = patience
        self._idle: queue.LifoQueue[_Helper | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def read(self, request: dict[str, Any], cancelled: Cancellation) -> Blocks:
        """Blocks of a request to `decoder.py`, and the notes about all. Raises AudioError, and Cancelled soon after
        that is set."""
        helper = self._take(cancelled)
        try:
            if helper is None or not helper.alive:
                helper = _Helper()
            with cancelled.ends(helper):
                return (yield from helper.read(request, cancelled, self.patience))
        finally:
            if helper is not None and (helper.busy or cancelled.is_set()):  # in the middle of an answer, or ended
                helper.close()
                helper = None
            self._idle.put(helper)

    def _take(self, cancelled: Cancellation) -> _Helper | None:
        while not cancelled.is_set():
            with contextlib.suppress(queue.Empty):
                return self._idle.get(timeout=0.25)
        raise Cancelled

    def close(self) -> None:
        """End the helpers that are idle."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (helper := self._idle.get_nowait()) is not None:
                    helper.close()


class _Helper:
    """A process of `decoder.py`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "stentor.serve.decoder"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(command, env={**os.environ, **threads}, **NEW_GROUP, **pipes)
        self.busy = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def read(self, request: dict[str, Any], cancelled: Cancellation, patience: float) -> Blocks:
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        self.busy = True
        with contextlib.suppress(BrokenPipeError):
            into.write(json.dumps(request).encode() + b"\n")
            into.flush()
        while True:
            watch = threading.Timer(patience, self.process.kill)
            watch.start()
            try:
                line = out.readline()
                message = json.loads(line) if line.endswith(b"\n") else {}
                samples = out.read(4 * message.get("samples", 0))
            finally:
                watch.cancel()
            if cancelled.is_set():
                raise Cancelled
            if "error" in message:
                self.busy = False
                raise AudioError(message["error"], message["reason"])
            if "samples" not in message or len(samples) < 4 * message["samples"]:
                raise AudioError(f"{request['path']} cannot be read: decoding it failed.", "unreadable")
            if not samples:
                self.busy = False
                return tuple(message["notes"])
            yield np.frombuffer(samples, "<f4")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.kill()


@dataclass(eq=False)
class UploadedRecording:
    """A recording of an uploaded file, as `FileRecording` gives it, sample for sample."""

    path: Path
    name: str
    """Stands for the path in messages."""
    rate: int
    decoders: Decoders
    most_seconds: float
    """More audio is an AudioError."""
    cancelled: Cancellation
    selection: Selection = WHOLE
    notes: tuple[str, ...] = ()

    @property
    def _decoded(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{self.rate}.f32")

    def blocks(self) -> Iterator[np.ndarray]:
        samples = 0
        try:
            with contextlib.closing(self._read(hold=str(self._decoded))) as blocks:
                for block in blocks:
                    samples += len(block)
                    if samples > self.most_seconds * self.rate:
                        raise AudioError(f"{self.name} is longer than {self.most_seconds:g} s.", "too_long")
                    yield block
        finally:
            if self.cancelled.is_set():  # its folder was removed while the helper wrote into it
                shutil.rmtree(self.path.parent, ignore_errors=True)

    def read(self, start: int, end: int) -> np.ndarray:
        if self._decoded.exists():
            return np.fromfile(self._decoded, "<f4", max(0, end - start), offset=4 * start)
        return np.concatenate([np.zeros(0, np.float32), *self._read(start=start, end=end)])

    def at(self, rate: int) -> UploadedRecording:
        return replace(self, rate=rate)

    def _read(self, **what: Any) -> Generator[np.ndarray, None, None]:
        try:
            request = {"path": str(self.path), "rate": self.rate, "selection": asdict(self.selection), **what}
            notes = yield from self.decoders.read(request, self.cancelled)
            self.notes = notes or self.notes
        except AudioError as error:
            text = str(error).replace(str(self.path), self.name).replace("--partial", "partial=true in the form")
            raise AudioError(text, error.reason) from None
