"""Kaldi's features, ours beside lhotse's, and a training item computed beside one that was stored; in one run.

    python benchmarks/kaldi.py [--threads 1] [--clips 16] [--rounds 11]

The first table has milliseconds of processor time per 20 s clip (median over rounds in which both take turns), how many
times faster than real time ours is on one core, and the greatest and the mean difference between the two. The second
has milliseconds per simulated 20 s conversation of the built-in voice, from its metadata to a batch: its audio mixed,
its features computed, joined and normalised, or the same from a store.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import results
import torch
from features import RATE, clip
from lhotse import Fbank, FbankConfig, Mfcc, MfccConfig, Spectrogram, SpectrogramConfig

from stentor.audio.kaldi import KaldiFeatures

SECONDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.clips} clips, {args.rounds} rounds\n")
    rng = np.random.default_rng(0)
    clips = [clip(rng, SECONDS) for _ in range(args.clips)]
    print(f"{'features':12} {'ours':>9} {'lhotse':>9} {'ratio':>6} {'real time':>10} {'greatest':>9} {'mean':>8}")
    lhotse = {
        "fbank": Fbank(FbankConfig(dither=0.0)),
        "mfcc": Mfcc(MfccConfig(num_filters=80, dither=0.0)),
        "spectrogram": Spectrogram(SpectrogramConfig(use_energy=False, dither=0.0)),
    }
    rows = [compare(kind, clips, theirs, args.rounds) for kind, theirs in lhotse.items()]
    print(f"\n{'training item':34} {'ms':>7}")
    rows += [*items(args.clips, args.rounds)]
    results.write("kaldi", rows, threads=args.threads)


def compare(kind: str, clips: list[np.ndarray], theirs: Any, rounds: int) -> dict[str, Any]:
    ours = KaldiFeatures(type=kind)
    pairs = [(ours.extract(c), theirs.extract(c, RATE)) for c in clips]
    differences = [np.abs(a - b) / (np.maximum(1, np.abs(b)) if kind == "spectrogram" else 1) for a, b in pairs]
    ms = medians({"ours": lambda c: ours.extract(c), "lhotse": lambda c: theirs.extract(c, RATE)}, clips, rounds)
    most, mean = max(float(d.max()) for d in differences), float(np.mean([d.mean() for d in differences]))
    ratio, speed = ms["lhotse"] / ms["ours"], SECONDS * 1000 / ms["ours"]
    print(f"{kind:12} {ms['ours']:6.2f} ms {ms['lhotse']:6.2f} ms {ratio:5.1f}x {speed:9.0f}x {most:9.1e} {mean:8.1e}")
    return {"features": kind, "ms": ms, "ratio": ratio, "times_real_time": speed, "greatest": most, "mean": mean}


def items(count: int, rounds: int) -> list[dict[str, Any]]:
    from stentor.data.augment import Augment
    from stentor.dataloading.batch_sampler import Item, PlannedBatch
    from stentor.dataloading.loader import BatchDataset
    from stentor.models.transformer.frontend import Features
    from stentor.models.transformer.processor import TransformerProcessor
    from stentor.sources.base import Source
    from stentor.tasks.diarize.task import Diarize

    speech = {"type": "synth", "texts": {"kind": "sentences"}, "voices": {"count": 12}, "limit": 60}
    source = Source.model_validate(
        {"type": "conversation", "count": count, "seconds": float(SECONDS), "source": speech}
    )
    cuts = list(source.cuts())
    joined = {"stack": 10, "subsample": 10}
    with tempfile.TemporaryDirectory() as folder:
        ways = {}
        for name, more in (("computed", {}), ("stored", {"store": folder})):
            processor = TransformerProcessor(Features(**joined, **more))
            reader = BatchDataset(Diarize(), processor, Augment(), seed=0)
            ways[name] = lambda cut, reader=reader: reader[PlannedBatch([Item(cut, 0)], 0, 0, 0)]
            for cut in cuts:
                ways[name](cut)
        ms = medians(ways, cuts, rounds)
    for name, value in ms.items():
        print(f"{name + ', 20 s conversation':34} {value:7.2f}")
    return [{"item": "conversation of 20 s", "ms": ms, "ratio": ms["computed"] / ms["stored"]}]


def medians(ways: dict[str, Callable[[Any], Any]], things: list[Any], rounds: int) -> dict[str, float]:
    """Milliseconds of processor time per thing."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            for thing in things:
                way(thing)
            times[name].append((time.process_time() - began) / len(things) * 1000)
    return {name: statistics.median(t) for name, t in times.items()}


if __name__ == "__main__":
    main()
