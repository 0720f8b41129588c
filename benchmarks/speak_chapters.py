"""A text of three chapters, spoken piece by piece: memory, lengths of pieces, levels at joins, and its WER.

    python benchmarks/speak_chapters.py --model RUN --recognizer RUN [--characters 20000] [--instruct VOICE]
        [--chunk-duration 15] [--stream]

The text is of digit strings and short commands in sentences and paragraphs, which models of `recipes/speak_tiny.yaml`
and of `stentor quickstart` know. It is written to a file piece by piece, as `stentor speak` does, and the recogniser
reads that file, joins and all; and the same sentences, spoken one by one.
"""

import argparse
import itertools
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import write

import stentor
from stentor.audio.writer import open_writer
from stentor.inference.speak.postprocess import loudness
from stentor.inference.speak.utterance import Utterance
from stentor.metrics.wer import word_errors
from stentor.sources.phrases import command, digit_string

LEAST, MOST = 24, 38
"""Characters of a sentence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--recognizer", required=True)
    parser.add_argument("--characters", type=int, default=20_000)
    parser.add_argument("--instruct")
    parser.add_argument("--chunk-duration", type=float, default=15.0)
    parser.add_argument("--stream", action="store_true", help="short pieces first")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    text = chapters(args.characters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chapters.wav"
        row = speak(args, text, path)
        row["wer"] = error_rate(args.recognizer, text, [path])
        print(row, flush=True)
        row["wer_one_by_one"] = error_rate(args.recognizer, text, one_by_one(args, text))
    print(row)
    write("speak_chapters", [row], characters=len(text), chunk_duration=args.chunk_duration, threads=args.threads)


def chapters(characters: int) -> str:
    rng = random.Random(0)
    text = ""
    for number, name in enumerate(("one", "two", "three"), 1):
        text += f"{name}\n\n"
        while len(text) < characters * number / 3:
            text += " ".join(f"{sentence(rng)}." for _ in range(5)) + "\n\n"
    return text


def sentence(rng: random.Random) -> str:
    """Of about two seconds, as the model has learned them."""
    while True:
        text = command(rng) if rng.random() < 0.7 else digit_string(rng, 5, 5)
        if LEAST <= len(text) <= MOST:
            return text


def speak(args: argparse.Namespace, text: str, path: Path) -> dict[str, Any]:
    settings = {"chunk_duration": args.chunk_duration, "chunk_threshold": 1.2 * args.chunk_duration}
    speaker = stentor.load(args.model, "cpu").speaker(settings)
    # What is loaded and allocated once is not counted.
    next(speaker.speak([speaker.prepare(Utterance(text[:400], instruct=args.instruct))]))
    utterance = speaker.prepare(Utterance(text, instruct=args.instruct))
    codec = speaker.codec
    began, memory, lengths, levels, raw = time.process_time(), [(0, resident())], [], [], []
    samples, spoken = 0, 0
    with open_writer(path, codec.sample_rate, "wav") as put:
        for piece in speaker.stream(utterance, True, args.stream):
            put(piece.audio)
            samples += len(piece.audio)
            spoken += len(piece.texts[0])
            memory.append((spoken, resident()))
            lengths.append(piece.codes.shape[1] / codec.frame_rate)
            levels.append(decibels(piece.audio))
            raw.append(decibels(codec.decode([piece.codes])[0]))
    thirds = [next(size for at, size in memory if at >= spoken * third / 3) for third in range(4)]
    return {
        "seconds_of_speech": round(samples / codec.sample_rate, 1),
        "cpu_seconds": round(time.process_time() - began, 1),
        "pieces": len(lengths),
        "longest_piece_seconds": round(max(lengths), 2),
        "median_piece_seconds": round(float(np.median(lengths)), 2),
        "longest_piece_by_wish": round(max(lengths) / args.chunk_duration, 3),
        "memory_mb": {"start": thirds[0], "third": thirds[1], "two_thirds": thirds[2], "end": thirds[3]},
        "largest_level_step_db": largest_step(levels),
        "largest_level_step_as_decoded_db": largest_step(raw),
    }


def resident() -> float:
    """Megabytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def decibels(audio: np.ndarray) -> float:
    return 20 * float(np.log10(max(loudness(audio), 1e-6)))


def largest_step(levels: list[float]) -> float:
    return round(max(abs(after - before) for before, after in itertools.pairwise(levels)), 2)


def one_by_one(args: argparse.Namespace, text: str) -> Iterator[np.ndarray]:
    speaker = stentor.load(args.model, "cpu").speaker()
    for part in filter(None, re.split(r"[.\s]*\n\n|\. ", text)):
        yield next(speaker.speak([speaker.prepare(Utterance(part, instruct=args.instruct))])).audio


def error_rate(recognizer: str, text: str, recordings: Iterable[Path | np.ndarray]) -> str:
    """Errors over words, of all of the recordings; arrays are at 16 kHz."""
    model = stentor.load(recognizer, "cpu")
    answer = " ".join(transcript.text for transcript in model.transcribe_many(recordings, 16_000))
    words = " ".join(text.replace(".", " ").split())
    errors = int(word_errors([(words, answer.lower())])[:, :3].sum())
    return f"{100 * errors / len(words.split()):.2f} % ({errors}/{len(words.split())})"


if __name__ == "__main__":
    main()
