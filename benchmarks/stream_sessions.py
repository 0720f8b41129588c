"""Sessions at once at `/v1/realtime` of `stentor serve`: how late words come, and how much faster than speech it is.

    python benchmarks/stream_sessions.py MODEL [--sessions 1 16] [--seconds 60] [--delay 0.32] [--block 0.1]
                                         [--options "--device cpu"]

MODEL is a run or an export. Each session sends a recording of its own of the built-in voices (their test part, with
pauses, as benchmarks/stream_hour.py), PCM at 16 kHz in blocks of `--block` seconds, and commits it at its end; its
clients share a process beside the server's. Twice for each number of sessions:

* paced: a block is sent when its last sample would have been spoken; the sessions begin spread over a second. Latency
  is the wall time from the end of a word in the recording to its delta at the client, of words that are right; their
  word error rate; the share of the machine's time that the server used.
* unpaced: blocks are sent as fast as they are taken. Real-time factor: wall time by the audio of all sessions.
"""

import argparse
import asyncio
import base64
import json
import statistics
import time
from itertools import islice
from typing import Any

import numpy as np
import psutil
import torch
from results import write
from servers import Server, stentor_serve
from stream_hour import speech
from websockets.asyncio.client import connect

from stentor.metrics.wer import count_errors, matches, rate

RATE = 16000


class Recording:
    """What a session sends, and the words in it."""

    def __init__(self, utterances: list[tuple[np.ndarray, list[dict[str, Any]]]]):
        self.words: list[dict[str, Any]] = []
        samples = 0
        for audio, words in utterances:
            self.words += [{**word, "end": word["end"] + samples / RATE} for word in words]
            samples += len(audio)
        self.audio = (np.concatenate([audio for audio, _ in utterances]).clip(-1, 1) * 32767).astype("<i2")
        self.seconds = samples / RATE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--delay", type=float)
    parser.add_argument("--block", type=float, default=0.1)
    parser.add_argument("--options", default="", help="further options of stentor serve, in quotes")
    args = parser.parse_args()
    recordings = recorded(max(args.sessions), args.seconds)
    rows = []
    with stentor_serve(args.model, *args.options.split()) as server:
        asyncio.run(in_sessions(server, recordings[:1], args, paced=False))
        for count in args.sessions:
            for paced in (True, False):
                rows.append(asyncio.run(in_sessions(server, recordings[:count], args, paced)))
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write("stream_sessions", rows, delay=args.delay, block=args.block, options=args.options)


def recorded(count: int, seconds: float) -> list[Recording]:
    """Recordings of about so many seconds."""
    utterances = speech(count * seconds * 1.5)
    recordings = []
    for _ in range(count):
        parts, length = [], 0.0
        while length < seconds:
            parts += islice(utterances, 1)
            length += len(parts[-1][0]) / RATE
        recordings.append(Recording(parts))
    return recordings


async def in_sessions(server: Server, recordings: list[Recording], args: Any, paced: bool) -> dict[str, Any]:
    """The figures of sessions at once."""
    began, cpu = time.perf_counter(), server.cpu_seconds()
    waits = [i / len(recordings) * paced for i in range(len(recordings))]
    sessions = [session(server, recording, args, paced, wait) for recording, wait in zip(recordings, waits)]
    heard_all = await asyncio.gather(*sessions)
    took, used = time.perf_counter() - began, server.cpu_seconds() - cpu
    sides, latencies = [], []
    for recording, heard in zip(recordings, heard_all):
        reference, hypothesis = [w["word"].lower() for w in recording.words], [word for word, _ in heard]
        sides.append((reference, hypothesis))
        pairs = matches(reference, hypothesis)
        latencies += [heard[k][1] - recording.words[i]["end"] for i, k in pairs]
    row = {"sessions": len(recordings), "paced": paced, "wer": round(rate(count_errors(sides)), 4)}
    if paced:
        row |= {"words": len(latencies), "p50": round(statistics.median(latencies), 3)}
        row |= {f"p{p}": round(float(np.percentile(latencies, p)), 3) for p in (90, 99)}
    else:
        row["rtf"] = round(took / sum(recording.seconds for recording in recordings), 4)
    return row | {"cpu": round(used / took / (psutil.cpu_count() or 1), 3), "seconds": round(took, 1)}


async def session(server: Server, recording: Recording, args: Any, paced: bool, wait: float) -> list[tuple[str, float]]:
    """Words with the seconds after the recording's start at which they came."""
    transcription = {"model": server.model, **({} if args.delay is None else {"delay": args.delay})}
    audio = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": transcription, "turn_detection": None}
    words: list[tuple[str, float]] = []
    await asyncio.sleep(wait)
    url = server.url.replace("http", "ws")
    async with connect(f"{url}/v1/realtime?intent=transcription", compression=None, ping_interval=None) as socket:
        settings = {"type": "transcription", "audio": {"input": audio}}
        await socket.send(json.dumps({"type": "session.update", "session": settings}))
        while json.loads(await socket.recv())["type"] != "session.updated":
            pass
        began = time.perf_counter()
        sender = asyncio.create_task(send(socket, recording, args.block, began if paced else None))
        async for message in socket:
            event = json.loads(message)
            if event["type"].endswith((".failed", "error")):
                raise SystemExit(str(event))
            if event["type"].endswith(".delta"):
                words.append((event["delta"].strip().lower(), time.perf_counter() - began))
            if event["type"].endswith(".completed"):
                break
        await sender
    return words


async def send(socket: Any, recording: Recording, block: float, began: float | None) -> None:
    size = round(block * RATE)
    for first in range(0, len(recording.audio), size):
        part = recording.audio[first : first + size]
        if began is not None:
            await asyncio.sleep(max(0.0, began + (first + len(part)) / RATE - time.perf_counter()))
        audio = base64.b64encode(part.tobytes()).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
    await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
