"""Log-mel features for Whisper encoders: ours beside transformers' extractor, in one run.

    python benchmarks/features.py [--threads 1] [--clips 16] [--rounds 11]

Prints milliseconds per clip (median over rounds in which all three take turns), the ratio to transformers' torch path,
and the greatest difference of our features from transformers' on the frames of each clip.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
import results
import torch
from transformers import WhisperFeatureExtractor

from stentor.audio.features import WhisperMel

RATE = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} thread(s), batches of {args.clips} clips, {args.rounds} rounds\n")
    print(
        f"{'batch':24} {'n_mels':>6} {'ours':>8} {'torch path':>11} {'numpy path':>11} {'ratio':>7} {'difference':>11}"
    )
    rng = np.random.default_rng(0)
    rows = []
    for title, seconds in (
        ("15 s clips", np.full(args.clips, 15.0)),
        ("mixed, 1 to 29 s", rng.uniform(1, 29, args.clips)),
        ("30 s clips", np.full(args.clips, 30.0)),
    ):
        clips = [clip(rng, s) for s in seconds]
        for n_mels in (80, 128):
            rows.append(compare(title, clips, n_mels, args.rounds))
    results.write("features", rows, threads=args.threads)


def clip(rng: np.random.Generator, seconds: float) -> np.ndarray:
    """Tones over noise whose loudness changes like that of speech."""
    t = np.arange(round(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * f * t) / k for k, f in enumerate(rng.uniform(100, 4000, 5), 1))
    noise = rng.normal(size=len(t))
    return (0.1 * (1 + np.sin(2 * np.pi * 4 * t)) * (tones + 0.1 * noise)).astype(np.float32)


def compare(title: str, clips: list[np.ndarray], n_mels: int, rounds: int) -> dict[str, Any]:
    ours = WhisperMel(n_mels)
    theirs = WhisperFeatureExtractor(feature_size=n_mels)
    # The extractor falls back to its numpy path without torch; this is what it then computes, one 30 s window per clip.
    windows = [np.pad(c, (0, 30 * RATE - len(c))) for c in clips]
    ways = {
        "ours": lambda: ours(clips),
        "torch": lambda: theirs(clips, sampling_rate=RATE, return_tensors="pt"),
        "numpy": lambda: theirs._np_extract_fbank_features(np.stack(windows[:1]), "cpu"),
    }
    features, lengths = ours(clips)
    reference = ways["torch"]().input_features
    difference = max(float((f[:, :n] - r[:, :n]).abs().max()) for f, r, n in zip(features, reference, lengths.tolist()))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            way()  # not timed: the threads and the memory of the way before settle
            began = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - began) / (1 if name == "numpy" else len(clips)) * 1000)
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["torch"]))
    ms = {name: statistics.median(t) for name, t in times.items()}
    columns = "".join(f"{ms[name]:{width}.2f} ms" for name, width in (("ours", 6), ("torch", 9), ("numpy", 9)))
    print(f"{title:24} {n_mels:6}{columns} {ratio:6.1f}x {difference:11.1e}")
    return {"data": title, "n_mels": n_mels, "ms": ms, "ratio_to_torch": ratio, "difference": difference}


if __name__ == "__main__":
    main()
