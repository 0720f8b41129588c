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
from pathlib import Path
from typing import Any

import numpy as np

from stentor.errors import AudioError, StentorError


class Cancelled(StentorError):
    """The client has gone, or its time is up: what is read for it is not needed any more."""


class Decoders:
    """Helper processes (`decoder.py`), started when they are needed, each for one file at a time."""

    def __init__(self, count: int, patience: float = 120.0):
        """`patience`: seconds that a helper may take for one block or part before it is ended."""
        self.patience = patience
        self._idle: queue.LifoQueue[_Helper | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def read(self, request: dict[str, Any], cancelled: threading.Event) -> Iterator[tuple[np.ndarray, bool]]:
        """Blocks of a request to `decoder.py`; at the end an empty one with whether they must be held. Raises
        AudioError, and Cancelled soon after the event is set."""
        helper, finished = self._idle.get(), False
        try:
            helper = helper or _Helper()
            yield from helper.read(request, cancelled, self.patience)
            finished = True
        except AudioError:
            finished = helper is not None and helper.alive
            raise
        finally:
            if helper is not None and not finished:  # in the middle of an answer
                helper.close()
            self._idle.put(helper if finished else None)

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
        self.process = subprocess.Popen(command, start_new_session=True, env={**os.environ, **threads}, **pipes)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def read(
        self, request: dict[str, Any], cancelled: threading.Event, patience: float
    ) -> Iterator[tuple[np.ndarray, bool]]:
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        with contextlib.suppress(BrokenPipeError):
            into.write(json.dumps(request).encode() + b"\n")
            into.flush()
        while True:
            if cancelled.is_set():
                raise Cancelled
            watch = threading.Timer(patience, self.process.kill)
            watch.start()
            try:
                line = out.readline()
                message = json.loads(line) if line.endswith(b"\n") else {}
                samples = out.read(4 * message.get("samples", 0))
            finally:
                watch.cancel()
            if "error" in message:
                raise AudioError(message["error"], message["reason"])
            if "done" in message:
                yield np.zeros(0, np.float32), message["held"]
                return
            if "samples" not in message or len(samples) < 4 * message["samples"]:
                self.process.wait()
                raise AudioError(f"{request['path']} cannot be read: decoding it failed.", "unreadable")
            yield np.frombuffer(samples, "<f4"), False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class UploadedRecording:
    """A recording of an uploaded file, as `FileRecording` gives it, sample for sample."""

    channel: int | None = None

    def __init__(self, path: Path, name: str, rate: int, decoders: Decoders, most_seconds: float):
        """`name` stands for the path in messages; more than `most_seconds` of audio is an AudioError."""
        self.path, self.name, self.rate, self.decoders, self.most_seconds = path, name, rate, decoders, most_seconds
        self.cancelled = threading.Event()
        self._decoded = path.with_name(f"{path.name}.{rate}.f32")

    def blocks(self) -> Iterator[np.ndarray]:
        samples, to_hold = 0, False
        try:
            with open(self._decoded, "wb") as file, contextlib.closing(self._read({})) as answers:
                for block, to_hold in answers:  # noqa: B007  # the last one says it
                    samples += len(block)
                    if samples > self.most_seconds * self.rate:
                        raise AudioError(f"{self.name} is longer than {self.most_seconds:g} s.", "too_long")
                    if len(block):
                        file.write(block.data)
                        yield block
        finally:
            if not to_hold:
                self._decoded.unlink(missing_ok=True)
            if self.cancelled.is_set():  # its folder was removed while this was written into it
                shutil.rmtree(self.path.parent, ignore_errors=True)

    def read(self, start: int, end: int) -> np.ndarray:
        if self._decoded.exists():
            return np.fromfile(self._decoded, "<f4", max(0, end - start), offset=4 * start)
        (part, _), *_ = self._read({"start": start, "end": end})
        return np.array(part)

    def at(self, rate: int) -> UploadedRecording:
        if rate == self.rate:
            return self
        other = UploadedRecording(self.path, self.name, rate, self.decoders, self.most_seconds)
        other.cancelled = self.cancelled
        return other

    def _read(self, part: dict[str, int]) -> Generator[tuple[np.ndarray, bool], None, None]:
        try:
            request = {"path": str(self.path), "rate": self.rate, "channel": self.channel, **part}
            yield from self.decoders.read(request, self.cancelled)
        except AudioError as error:
            raise AudioError(str(error).replace(str(self.path), self.name), error.reason) from None
