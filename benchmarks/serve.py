"""Throughput of `stentor serve`: many clients at once, beside offline transcription and one client after another.

    python benchmarks/serve.py [MODEL ...] [--minutes 20] [--clients 32] [--rounds 2]
                               [--options "--batch-seconds 60"] [--data FOLDER]

MODEL is a run, an export or a folder of transformers; without one it is the Whisper of the development data (tiny's
size, and it stops). The clips are utterances of LibriSpeech of 1 to 20 s, their lengths spread evenly. In each round
three ways have all of them, one after another:

* `offline`: `stentor.load(MODEL).transcribe_many(files)`, which is what `stentor transcribe` runs, in this process;
* `concurrent`: so many clients, each of which sends its next clip when it has its answer, over loopback to a process of
  `stentor serve`;
* `one at a time`: one such client.

Models are loaded, and have answered once, before a clock starts. Seconds of the processor are those of the server with
its helpers, or of this process; the clients' are not among them. Texts of all ways must be equal, or it fails.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from results import write
from servers import DATA, Answers, Clip, Server, clips_of, stentor_serve
from word_times import with_merges

import stentor
from stentor.inference.model import Model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--options", default="", help="further options of stentor serve, in quotes")
    args = parser.parse_args()
    clips = clips_of(args.data, args.minutes)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.models or [whisper(args.data, Path(scratch))]:
            model = stentor.load(name, "cpu")
            with stentor_serve(name, *args.options.split()) as server:
                rows += throughput(model, server, clips, args)
    seconds = sum(clip.seconds for clip in clips)
    facts = {"clips": len(clips), "minutes": round(seconds / 60, 1), "clients": args.clients, "rounds": args.rounds}
    write("serve", rows, **facts, threads=torch.get_num_threads(), options=args.options)


def whisper(data: Path, scratch: Path) -> str:
    """The Whisper of the development data, whose tokenizer has more merges than it knows."""
    return str(with_merges(data / "weights" / "whisper-tiny.en-rebuilt", 1200, scratch / "whisper-tiny.en-rebuilt"))


def throughput(model: Model, server: Server, clips: list[Clip], args: argparse.Namespace) -> list[dict[str, Any]]:
    ways = {
        "offline": lambda: offline(model, clips),
        "concurrent": lambda: server.ask_all(clips, args.clients),
        "one at a time": lambda: server.ask_all(clips, 1),
    }
    offline(model, clips[:2])
    server.ask_all(clips[:4], 4)
    runs = taken_in_turns(ways, args.rounds)
    rows = described(Path(model.name).name, runs, clips)
    for way in ("offline", "one at a time"):
        ratio(rows[1], f"times_{way.replace(' ', '_')}", runs[way], runs["concurrent"])
    return rows


def offline(model: Model, clips: list[Clip]) -> Answers:
    began, cpu = time.perf_counter(), time.process_time()
    texts = [t.text.strip() for t in model.transcribe_many([clip.path for clip in clips], words=False)]
    return Answers(time.perf_counter() - began, time.process_time() - cpu, texts)


def taken_in_turns(ways: dict[str, Any], rounds: int) -> dict[str, list[Answers]]:
    """Each way in each round; the texts of all are equal, or it fails."""
    runs: dict[str, list[Answers]] = {name: [] for name in ways}
    texts: list[str] = []
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(way())
            texts = texts or runs[name][-1].texts
            if different := [i for i, pair in enumerate(zip(texts, runs[name][-1].texts)) if pair[0] != pair[1]]:
                i = different[0]
                raise SystemExit(f"{name}: {len(different)} texts differ: {texts[i]!r}, {runs[name][-1].texts[i]!r}")
    return runs


def described(model: str, runs: dict[str, list[Answers]], clips: list[Clip]) -> list[dict[str, Any]]:
    audio = sum(clip.seconds for clip in clips)
    rows = []
    for way, answers in runs.items():
        row: dict[str, Any] = {"model": model, "way": way, "clips": len(clips), "audio_seconds": round(audio, 1)}
        row["seconds"] = [round(a.seconds, 2) for a in answers]
        row["cpu_seconds"] = [round(a.cpu_seconds, 2) for a in answers]
        row["audio_per_second"] = round(audio / statistics.median(a.seconds for a in answers), 2)
        if latencies := sorted(latency for a in answers for latency in a.latencies):
            row["latency_p50"] = round(statistics.median(latencies), 3)
        rows.append(row)
        print(f"{model:26} {way:20} {row['audio_per_second']:8.2f} s of audio a second", row["seconds"], flush=True)
    return rows


def ratio(row: dict[str, Any], name: str, theirs: list[Answers], ours: list[Answers]) -> None:
    """How many times as fast ours is, in each round and in the median; also in seconds of the processor."""
    pairs = list(zip(theirs, ours, strict=True))
    rounds = [round(a.seconds / b.seconds, 3) for a, b in pairs]
    row[name] = round(statistics.median(rounds), 3)
    row[f"{name}_rounds"] = rounds
    row[f"{name}_cpu"] = round(statistics.median(a.cpu_seconds / b.cpu_seconds for a, b in pairs), 3)
    print(f"  {name} {row[name]} {rounds}, by the processor {row[f'{name}_cpu']}", flush=True)


if __name__ == "__main__":
    main()
