"""Servers as processes of their own, the clients that ask them, and the speech that is asked about."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass
class Clip:
    path: Path
    seconds: float


@dataclass
class Answers:
    """What clients had for a list of clips."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    cpu_seconds: float = 0.0
    """Of the server with its helpers."""
    texts: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


class Server:
    """A server that answers at `url`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, model: str):
        self.process, self.model = process, model
        self.url = f"http://127.0.0.1:{port}"

    def cpu_seconds(self) -> float:
        """Of the process and of the helpers that run."""
        total = 0.0
        process = psutil.Process(self.process.pid)
        for part in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(part.cpu_times()[:2])
        return total

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=None)

    def ask(self, client: httpx.Client, path: Path) -> str:
        """The text of a file."""
        files = {"file": (path.name, path.read_bytes())}
        answer = client.post("/v1/audio/transcriptions", data={"model": self.model}, files=files)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
        return str(answer.json()["text"]).strip()

    def ask_all(self, clips: Sequence[Clip], clients: int) -> Answers:
        """All clips, by so many clients, each of which sends the next clip when it has an answer."""
        answers = Answers(texts=[""] * len(clips), latencies=[0.0] * len(clips))
        errors: list[Exception] = []
        numbers = iter(range(len(clips)))

        def work() -> None:
            with self.client() as client:
                for i in numbers:
                    began = time.perf_counter()
                    try:
                        answers.texts[i] = self.ask(client, clips[i].path)
                    except Exception as error:
                        errors.append(error)
                        return
                    answers.latencies[i] = time.perf_counter() - began

        threads = [threading.Thread(target=work) for _ in range(clients)]
        began, cpu = time.perf_counter(), self.cpu_seconds()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers.seconds, answers.cpu_seconds = time.perf_counter() - began, self.cpu_seconds() - cpu
        if errors:
            raise errors[0]
        return answers


@contextlib.contextmanager
def stentor_serve(model: str, *options: str) -> Iterator[Server]:
    """`stentor serve` of one model."""
    command = [sys.executable, "-m", "stentor", "serve", "--name", f"model={model}", *options]
    with _serving([*command, "--port", "{port}"], "model") as server:
        yield server


@contextlib.contextmanager
def transformers_serve(model: str) -> Iterator[Server]:
    """`transformers serve` of one model, in float32 as ours."""
    program = str(Path(sys.executable).parent / "transformers")
    command = [program, "serve", model, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    with _serving([*command, "--port", "{port}"], model) as server:
        yield server


@contextlib.contextmanager
def _serving(command: list[str], model: str) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([part.replace("{port}", str(port)) for part in command], **SILENT)
    server = Server(process, port, model)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + 180
    with server.client() as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError(f"{server.process.args} does not answer.")


def clips_of(data: Path, minutes: float, shortest: float = 1.0, longest: float = 20.0) -> list[Clip]:
    """Utterances of LibriSpeech of about so many minutes together, their lengths spread evenly over the range, in an
    order drawn by lot."""
    pool = [clip for clip in utterances(data) if shortest <= clip.seconds <= longest]
    drawn = random.Random(0)
    chosen: list[Clip] = []
    while pool and sum(clip.seconds for clip in chosen) < 60 * minutes:
        length = drawn.uniform(shortest, longest)
        chosen.append(pool.pop(min(range(len(pool)), key=lambda i: abs(pool[i].seconds - length))))
    return chosen


def utterances(data: Path) -> list[Clip]:
    """Of LibriSpeech, training and development speakers."""
    clips = []
    for part in ("train", "dev"):
        for line in (data / "librispeech" / f"{part}.jsonl").read_text("utf-8").splitlines():
            record = json.loads(line)
            clips.append(Clip(data / "librispeech" / record["audio_path"], record["duration"]))
    return clips
