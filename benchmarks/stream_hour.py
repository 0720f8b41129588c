"""One hour in one stream: whether memory and the times of words stay where they are.

    python benchmarks/stream_hour.py MODEL [--minutes 60] [--delay 0.32] [--part 10] [--policy chunks]

Utterances of the built-in voices (commands and digits of its test part, other voices than a training with
`part: train` hears) with pauses of 0.3 to 2 s between them are fed in blocks of 20 ms, as fast as the model takes them;
the true times of their words are exact. For each part of `--part` minutes: word errors, the median distance of the
first second of a word from the true one (a drift would show there), the median time from the end of a word until it
is final, and at the end of the part the memory of the process. Nothing of the audio is held here.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import torch
from results import write

from stentor.data.cut import words_of
from stentor.data.load_audio import load_audio
from stentor.dataloading.section import Data
from stentor.inference.load import load
from stentor.metrics.wer import count_errors, matches, rate

RATE = 16000
BLOCK = 320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--delay", type=float)
    parser.add_argument("--part", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    stream = load(args.model, "cpu").stream(RATE, delay=args.delay)
    truth: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    fed, began, part = 0, time.perf_counter(), args.part * 60
    for audio, spoken in speech(args.minutes * 60):
        truth += [{**word, "start": word["start"] + fed / RATE, "end": word["end"] + fed / RATE} for word in spoken]
        for block in np.split(audio, range(BLOCK, len(audio), BLOCK)):
            words += [event for event in stream.feed(block) if event["type"] == "word"]
        fed += len(audio)
        if fed / RATE >= part * (len(rows) + 1):
            rows.append(row(truth, words, fed / RATE, time.perf_counter() - began))
            truth, words = [], []
    words += [event for event in stream.finish() if event["type"] == "word"]
    if truth:
        rows.append(row(truth, words, fed / RATE, time.perf_counter() - began))
    write("stream_hour", rows, threads=args.threads, delay=args.delay)


def row(truth: list[dict[str, Any]], words: list[dict[str, Any]], seconds: float, took: float) -> dict[str, Any]:
    """The figures of a part that ends with an utterance whose words may come a little later: those count as missing."""
    reference, hypothesis = ([word["word"].lower() for word in side] for side in (truth, words))
    pairs = matches(reference, hypothesis)
    figures = {
        "minutes": round(seconds / 60, 1),
        "wer": round(rate(count_errors([(reference, hypothesis)])), 4),
        "start_median": round(statistics.median(words[k]["start"] - truth[i]["start"] for i, k in pairs), 4),
        "final_median": round(statistics.median(words[k]["time"] - truth[i]["end"] for i, k in pairs), 4),
        "memory_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
        "rtf": round(took / seconds, 4),
    }
    print("  ".join(f"{name} {value:g}" for name, value in figures.items()), flush=True)
    return figures


def speech(seconds: float) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """Utterances float32 with a pause behind each, and their words, until there are so many seconds."""
    rng = random.Random(0)
    voices = {"count": 70, "part": "test"}
    kinds = [
        {"type": "synth", "texts": {"kind": kind, "part": "test"}, "count": 200, "voices": voices}
        for kind in ("commands", "digits")
    ]
    cuts = [cut for source in Data.model_validate({"train": kinds}).train for cut in source.cuts()]
    length = 0.0
    while length < seconds:
        rng.shuffle(cuts)
        for cut in cuts:
            pause = np.zeros(round(rng.uniform(0.3, 2.0) * RATE), np.float32)
            audio = np.concatenate([load_audio(cut, RATE), pause])
            yield audio, words_of(cut)
            length += len(audio) / RATE
            if length >= seconds:
                return


if __name__ == "__main__":
    main()
