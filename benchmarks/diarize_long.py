"""Diarization of a long file: how much faster than real time, and in how much memory.

    python benchmarks/diarize_long.py [MODEL] [--minutes 10,60] [--threads 2] [--speakers 4]

The files are conversations of the built-in voice. MODEL is a run folder or an export; without one, an untrained model
of the size of a small CPU recipe is measured: 80 mel bins, 10 frames joined, 10 frames a second, 4 layers of
width 160, with speaker embeddings. Each file is diarized in a process of its own, from Python, twice; the faster one
counts. Peak memory is the process's (torch and the weights included). With a MODEL, its error rate is told too.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results
import soundfile

RATE = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--minutes", default="10,60")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--speakers", type=int, default=4)
    parser.add_argument("--file", help=argparse.SUPPRESS)  # the inner process
    args = parser.parse_args()
    if args.file:
        print(json.dumps(measure(args.model, args.file, args.threads)))
        return
    with tempfile.TemporaryDirectory() as place:
        model = args.model or untrained(Path(place) / "model")
        print(f"model {args.model or 'untrained'}, {args.threads} thread(s), {args.speakers} speakers\n")
        print(f"{'audio':>8} {'seconds':>8} {'times real time':>16} {'peak memory':>12} {'DER':>8}")
        rows = []
        for minutes in map(float, args.minutes.split(",")):
            path = Path(place) / f"conversation-{minutes:g}.wav"
            reference = conversation(path, minutes * 60, args.speakers)
            command = [sys.executable, __file__, str(model), "--threads", str(args.threads), "--file", str(path)]
            runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(2)]
            best = min(runs, key=lambda run: run["seconds"])
            row = {
                "minutes": minutes,
                **{k: best[k] for k in ("audio", "seconds", "load_seconds", "peak_mb", "idle_mb")},
            }
            row["faster_than_real_time"] = row["audio"] / row["seconds"]
            row["der"] = error(reference, best["segments"], row["audio"]) if args.model else None
            der = f"{row['der']:8.2%}" if args.model else f"{'':>8}"
            print(
                f"{minutes:4g} min {row['seconds']:8.1f} {row['faster_than_real_time']:15.0f}x "
                f"{row['peak_mb']:9.0f} MB {der}"
            )
            rows.append(row)
    results.write("diarize_long", rows, threads=args.threads, model=args.model or "untrained", speakers=args.speakers)


def measure(model: str, path: str, threads: int) -> dict[str, Any]:
    import torch

    from stentor.inference.load import load

    torch.set_num_threads(threads)
    began = time.perf_counter()
    loaded = load(model, "cpu")
    loaded.diarize(np.zeros(25 * RATE, np.float32), rate=RATE)  # what is imported or set up at first use
    ready = time.perf_counter()
    idle = peak()
    result = loaded.diarize(path)
    return {
        "audio": result["duration"],
        "seconds": time.perf_counter() - ready,
        "load_seconds": ready - began,
        "idle_mb": idle,
        "peak_mb": peak(),
        "segments": result.segments,
    }


def peak() -> float:
    """Greatest resident memory of this process so far, in MB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def conversation(path: Path, seconds: float, speakers: int, seed: int = 0) -> list[dict[str, Any]]:
    """Write a conversation of the built-in voice and return who speaks when. The file is written as it is made.

    Turns of one to three sentences; the next one begins 0.6 s before to 1.2 s after the end of the last, so that about
    one change in three overlaps. Everybody is heard through a different level.
    """
    from stentor.audio.synth import accents, say, variants
    from stentor.sources.phrases import command

    words = random.Random(seed)
    rng = np.random.default_rng(seed)
    voices = [f"{accents()[i % 7]}+{name}" for i, name in enumerate(rng.choice(variants(), speakers, replace=False))]
    gains = rng.uniform(0.4, 0.8, speakers)
    reference: list[dict[str, Any]] = []
    rest = np.zeros(0)  # what was made beyond what is written
    written, at, last = 0, 0.5, -1
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        while at < seconds:
            speaker = int(rng.choice([k for k in range(speakers) if k != last]))
            last = speaker
            for _ in range(int(rng.integers(1, 4))):
                audio = gains[speaker] * say(command(words), voices[speaker], int(rng.integers(150, 190))).audio
                begin = round(at * RATE) - written
                rest = np.pad(rest, (0, max(0, begin + len(audio) - len(rest))))
                rest[begin : begin + len(audio)] += audio
                end = at + len(audio) / RATE
                reference.append({"speaker": voices[speaker], "start": at, "end": min(end, seconds)})
                at = end + rng.uniform(0.1, 0.4)
            at = max(at + rng.uniform(-1.0, 0.8), written / RATE)
            # Nothing more begins earlier than two seconds before the next turn.
            ready = max(0, min(round((at - 2) * RATE), round(seconds * RATE)) - written)
            file.write(np.clip(rest[:ready], -1, 1))
            rest, written = rest[ready:], written + min(ready, len(rest))
        left = round(seconds * RATE) - written
        file.write(np.clip(np.pad(rest, (0, max(0, left - len(rest))))[:left], -1, 1))
    return [s for s in reference if s["start"] < seconds]


def error(reference: list[dict[str, Any]], segments: list[dict[str, Any]], duration: float) -> float:
    from stentor.metrics.diarization import DiarizedRecording, der

    return float(der([DiarizedRecording("long", reference, segments, None, duration)]).value)


def untrained(folder: Path) -> Path:
    """An export of a model with random weights, of the size of the CPU recipe's."""
    from stentor.losses.contrastive import Contrastive
    from stentor.models.transformer.config import Transformer
    from stentor.tasks.diarize.task import Diarize

    task = Diarize.model_validate({"type": "diarize", "chunk": 20.0, "labels": {"type": "speaker", "speakers": 4}})
    family = Transformer.model_validate(
        {
            "type": "transformer",
            "kind": "encoder",
            "embedding": 64,
            "features": {"type": "fbank", "num_mel_bins": 80, "stack": 10, "subsample": 10},
            "encoder": {"d_model": 160, "layers": 4, "heads": 4},
        }
    )
    bundle = family.build(task.requirements({**task.losses(), "voice": Contrastive()}))
    folder.mkdir(parents=True)
    family.save(bundle, {k: v.cpu() for k, v in bundle.model.state_dict().items()}, folder)
    config = {"task": task.model_dump(mode="json", by_alias=True), "train": {}}
    (folder / "training_config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()
