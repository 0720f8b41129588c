"""Batching: share of speech in a batch, our layouts beside random batches, linear buckets, lhotse and next-fit packing.

    python benchmarks/batching.py [--items 20000] [--budget 2000 8000] [--rounds 5]

No audio is read: lengths follow well-known corpora (and real LibriSpeech where `../shared/data` is there), an item
costs its audio at 12.5 positions a second, its transcript and a prompt. Fill is real positions over all positions of
the batches. A batch has at most `budget` positions, padding included; a random batch has 16 items, whatever it takes.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import numpy as np
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.sampling.base import TimeConstraint
from results import write

from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler
from stentor.dataloading.mixing import Mix, Pool

REAL = Path(__file__).parents[1] / ".." / "shared" / "data" / "librispeech" / "train.jsonl"
TARGETS = {"padded": 0.94, "packed": 0.98}


def librispeech_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Chapters cut at pauses: most clips are just under the limit; 12 s in the mean."""
    return np.where(rng.random(count) < 0.65, rng.normal(14.4, 1.2, count), rng.uniform(1.5, 13, count))


def commonvoice_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Single sentences, read; 5 s in the mean."""
    return rng.lognormal(np.log(4.9), 0.32, count)


def emilia_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Podcasts cut into turns; 10 s in the mean, with a long tail."""
    return rng.gamma(2.2, 3.8, count) + 1.5


def librispeech(rng: np.random.Generator, count: int) -> np.ndarray:
    """Real lengths, drawn from the manifest with repetition."""
    return rng.choice([json.loads(line)["duration"] for line in REAL.read_text().splitlines()], count)


class Corpus:
    """Cuts without audio, with the cost of each."""

    def __init__(self, draw, count: int):
        rng = np.random.default_rng(1)
        seconds = np.clip(draw(rng, count), 1.0, 30.0)
        spoken = np.maximum(seconds * rng.normal(3.4, 0.6, count), 1)  # subwords
        self.cuts = [MonoCut(str(i), 0.0, round(float(s), 2), 0, []) for i, s in enumerate(seconds)]
        self.costs = {c.id: self.cost(c.duration, float(subwords)) for c, subwords in zip(self.cuts, spoken)}

    def cost(self, seconds: float, subwords: float) -> int:
        return int(12.5 * seconds + subwords) + 9

    def plan(self, layout: str, budget: int) -> BatchSampler:
        mix = Mix([Pool(self.cuts, 1.0, None)])
        return BatchSampler(
            lambda epoch: mix.epoch(0, epoch),
            lambda cut, seconds: self.costs[cut.id],
            BatchLimits(layout, budget),
            seed=0,
        )


# Each way answers lists of costs, a batch each.


def ours(corpus: Corpus, layout: str, budget: int) -> list[list[int]]:
    return [[corpus.costs[i.cut.id] for i in items] for items in corpus.plan(layout, budget).epoch(0)]


def random_batches(corpus: Corpus, budget: int, items: int = 16) -> list[list[int]]:
    costs = list(corpus.costs.values())
    random.Random(0).shuffle(costs)
    return [costs[i : i + items] for i in range(0, len(costs), items)]


def linear_buckets(corpus: Corpus, budget: int, count: int = 20) -> list[list[int]]:
    """Buckets of equal width in length, each filled from a shuffled stream until the next item would not fit."""
    costs = list(corpus.costs.values())
    random.Random(0).shuffle(costs)
    shortest, width = min(costs), (max(costs) + 1 - min(costs)) / count
    open_: dict[int, list[int]] = {}
    done = []
    for cost in costs:
        row = open_.setdefault(int((cost - shortest) / width), [])
        if row and max(*row, cost) * (len(row) + 1) > budget:
            done.append(row[:])
            row.clear()
        row.append(cost)
    return done + [row for row in open_.values() if row]


def lhotse_buckets(corpus: Corpus, budget: int) -> list[list[int]]:
    """DynamicBucketingSampler as its documentation has it: a limit in seconds, 30 buckets estimated from the data."""
    rate = sum(corpus.costs.values()) / sum(c.duration for c in corpus.cuts)  # so that batches are about as large
    sampler = DynamicBucketingSampler(
        CutSet.from_cuts(corpus.cuts),
        constraint=TimeConstraint(max_duration=budget / rate),
        num_buckets=30,
        shuffle=True,
        seed=0,
    )
    return [[corpus.costs[c.id] for c in batch] for batch in sampler]


def next_fit(corpus: Corpus, budget: int) -> list[list[int]]:
    """Packing without looking ahead: a pack ends at the first item that does not fit."""
    costs = list(corpus.costs.values())
    random.Random(0).shuffle(costs)
    done, row = [], []
    for cost in costs:
        if sum(row) + cost > budget:
            done.append(row)
            row = []
        row.append(cost)
    return [*done, row]


WAYS = {
    "random, 16 items": ("padded", random_batches),
    "20 linear buckets": ("padded", linear_buckets),
    "lhotse, 30 buckets": ("padded", lhotse_buckets),
    "stentor padded": ("padded", lambda corpus, budget: ours(corpus, "padded", budget)),
    "next-fit packing": ("packed", next_fit),
    "stentor packed": ("packed", lambda corpus, budget: ours(corpus, "packed", budget)),
}


def fill(batches: list[list[int]], layout: str, budget: int) -> float:
    if layout == "packed":
        return sum(map(sum, batches)) / (budget * len(batches))
    return sum(map(sum, batches)) / sum(max(b) * len(b) for b in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--budget", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    corpora = [librispeech_like, commonvoice_like, emilia_like] + [librispeech] * REAL.is_file()
    rows = []
    for budget in args.budget:
        print(f"\n{args.items:,} items, at most {budget} positions in a batch")
        print(f"{'':22}" + "".join(f"{draw.__name__.replace('_', '-'):>20}" for draw in corpora) + f"{'items/s':>12}")
        for name, (layout, way) in WAYS.items():
            fills, speeds = {}, []
            for draw in corpora:
                corpus = Corpus(draw, args.items)
                for _ in range(args.rounds):
                    began = time.perf_counter()
                    batches = way(corpus, budget)
                    speeds.append(args.items / (time.perf_counter() - began))
                assert sum(map(len, batches)) == args.items, "every item is in one batch"
                fills[draw.__name__.replace("_", "-")] = round(fill(batches, layout, budget), 4)
            speed = statistics.median(speeds)
            print(f"{name:22}" + "".join(f"{value:20.1%}" for value in fills.values()) + f"{speed:12,.0f}")
            rows.append(
                {"way": name, "layout": layout, "budget": budget, "fill": fills, "items_per_second": round(speed)}
            )
    print()
    for layout, target in TARGETS.items():
        worst = min(v for row in rows if row["way"] == f"stentor {layout}" for v in row["fill"].values())
        print(f"Target for {layout}: {target:.0%} at least; {'met' if worst >= target else 'missed'} ({worst:.1%}).")
    write("batching", rows, items=args.items, targets=TARGETS)


if __name__ == "__main__":
    main()
