"""Latency of a short clip at `stentor serve`, with and without a file of two hours in its queue.

    python benchmarks/serve_latency.py [MODEL] [--samples 200] [--blocks 4] [--fifo-samples 30] [--hours 2]
                                       [--patience 240] [--options "--batch-seconds 60"] [--data FOLDER]

One client sends clips of about 2 s, one after another, and waits for each answer. In turns, `--blocks` of them: to a
server that has nothing else to do, and while a file of two hours (LibriSpeech's utterances laid end to end, FLAC) has
windows in the queue; before the next block its client goes away, which takes it out. So with fair turns. In the order
of arrival (`--fifo`) a clip waits for the rest of the file: clips are sent one a second by clients of their own while
it runs, and it is waited for the last answer, but `--patience` seconds at most: what has no answer then counts as
that long.

MODEL as in benchmarks/serve.py. The clips' texts are the same with and without the file, or it fails.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile
import torch
from results import write
from servers import DATA, Clip, Server, stentor_serve, utterances

from serve import whisper
from stentor.audio.io import read

RATE = 16000
SHORT = (1.9, 2.1)
"""Seconds of the clips."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--fifo-samples", type=int, default=30)
    parser.add_argument("--patience", type=float, default=240)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--options", default="", help="further options of stentor serve, in quotes")
    args = parser.parse_args()
    options = args.options.split()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = args.model or whisper(args.data, folder)
        clips = [clip for clip in utterances(args.data) if SHORT[0] <= clip.seconds <= SHORT[1]]
        long = long_file(args.data, folder / "long.flac", args.hours)
        if args.samples:
            with stentor_serve(model, *options) as server:
                rows += in_blocks(server, clips, long, args)
        if args.fifo_samples:
            with stentor_serve(model, "--fifo", *options) as server:
                rows.append(in_order_of_arrival(server, clips, long, args))
    alone = rows[0] if args.samples else None
    for row in rows:
        row["model"] = Path(model).name
        if alone:
            row["times_alone"] = {key: round(row[key] / alone[key], 2) for key in ("p50", "p99")}
        print({key: value for key, value in row.items() if key != "latencies"})
    facts = {"hours": args.hours, "threads": torch.get_num_threads()}
    write("serve_latency", rows, **facts, options=args.options)


def long_file(data: Path, to: Path, hours: float) -> Path:
    """Utterances laid end to end until they are so long, from the first again where there are no more."""
    left = round(hours * 3600 * RATE)
    clips = utterances(data)
    with soundfile.SoundFile(to, "w", RATE, 1, "PCM_16") as file:
        for i in range(left):
            audio = read(clips[i % len(clips)].path, RATE)[:left]
            file.write(audio)
            left -= len(audio)
            if not left:
                break
    return to


def in_blocks(server: Server, clips: list[Clip], long: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the clips alone and beside the file, by fair turns."""
    count = args.samples // args.blocks
    server.ask_all(clips[:4], 1)
    alone: list[float] = []
    beside: list[float] = []
    for block in range(args.blocks):
        part = [clips[(block * count + i) % len(clips)] for i in range(count)]
        answers = server.ask_all(part, 1)
        alone += answers.latencies
        with in_queue(server, long):
            others = server.ask_all(part, 1)
        beside += others.latencies
        if answers.texts != others.texts:
            raise SystemExit("texts differ beside a long file")
    return [described("alone", alone), described("beside the file, fair turns", beside)]


def in_order_of_arrival(server: Server, clips: list[Clip], long: Path, args: argparse.Namespace) -> dict[str, Any]:
    server.ask_all(clips[:4], 1)
    latencies = [args.patience] * args.fifo_samples

    def ask(i: int) -> None:
        began = time.perf_counter()
        with httpx.Client(base_url=server.url, timeout=args.patience) as client:
            try:
                server.ask(client, clips[i % len(clips)].path)
            except httpx.TimeoutException:
                return
        latencies[i] = time.perf_counter() - began

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(args.fifo_samples)]
    with in_queue(server, long):
        for thread in threads:
            thread.start()
            time.sleep(1)
        for thread in threads:
            thread.join()
    return described("beside the file, --fifo", latencies)


@contextmanager
def in_queue(server: Server, long: Path) -> Iterator[None]:
    """While the file's windows wait in the queue. At the end its client goes away."""
    ended = threading.Event()

    def send() -> None:
        with server.client() as client:
            stream_until(client, server, long, ended)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_for(server, lambda seconds: seconds > 600, thread)
        yield
    finally:
        ended.set()
        thread.join()
    wait_for(server, lambda seconds: seconds == 0, None)


def stream_until(client: httpx.Client, server: Server, long: Path, ended: threading.Event) -> None:
    """Ask for the stream of the file, and close it when `ended` is set."""
    with long.open("rb") as file:
        data = {"model": server.model, "stream": "true"}
        with client.stream("POST", "/v1/audio/transcriptions", data=data, files={"file": file}) as answer:
            for _ in answer.iter_raw():
                if ended.is_set():
                    return


def wait_for(server: Server, condition: Any, thread: threading.Thread | None) -> None:
    with server.client() as client:
        while thread is None or thread.is_alive():
            lines = client.get("/metrics").text.splitlines()
            waiting = sum(float(line.split()[-1]) for line in lines if line.startswith("stentor_queue_seconds{"))
            if condition(waiting):
                return
            time.sleep(0.2)
    raise SystemExit("The long file was not taken.")


def described(way: str, latencies: list[float]) -> dict[str, Any]:
    p50, p99 = statistics.median(latencies), float(np.percentile(latencies, 99))
    row = {"way": way, "n": len(latencies), "p50": round(p50, 3), "p99": round(p99, 3)}
    row |= {"mean": round(statistics.mean(latencies), 3), "most": round(max(latencies), 3)}
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
