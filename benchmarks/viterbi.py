"""The batched Viterbi beside a plain one that takes items one by one, on the same emissions in one run.

    python benchmarks/viterbi.py [--threads 1] [--items 32] [--rounds 5]

Windows of 30 s at 50 frames a second with about 450 characters (fast speech), and clips of mixed lengths. Prints how
many times faster than real time each is, the ratio, and that the paths are equally good.

The peer is the usual textbook form (as in torchaudio's forced alignment tutorial): for each frame one vector operation
over the states of one item, in numpy, and backtracking. numpy is kinder to it than torch, whose calls cost more on
short vectors; it uses one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import results
import torch
from torch import Tensor

from stentor.models.decoding.viterbi import viterbi

RATE = 50
CLASSES = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    rows = []
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.items} items, {args.rounds} rounds\n")
    print(f"{'items':22} {'ours':>12} {'one by one':>12} {'ratio':>7} {'worst difference of scores':>28}")
    for title, seconds in (
        ("30 s windows", np.full(args.items, 30.0)),
        ("mixed, 2 to 30 s", rng.uniform(2, 30, args.items)),
    ):
        emissions, labels = zip(*(speech(rng, s) for s in seconds))
        rows.append(compare(title, emissions, labels, args.rounds))
    results.write("viterbi", rows, threads=args.threads)


def speech(rng: np.random.Generator, seconds: float) -> tuple[Tensor, list[int]]:
    """Emissions of so many seconds and the characters that they say: 15 a second, rather sure."""
    frames = round(RATE * seconds)
    labels = rng.integers(1, CLASSES, round(15 * seconds))
    scores = rng.normal(size=(frames, CLASSES)).astype(np.float32)
    scores[:, 0] += 3
    at = np.sort(rng.choice(frames, len(labels), replace=False))
    scores[at, labels] += 6
    return torch.from_numpy(scores).log_softmax(-1), labels.tolist()


def plain(emissions: Sequence[Tensor], labels: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, float]]:
    """States and score of the best path of each item, one item after the other."""
    paths = []
    for emission, row in zip(emissions, labels):
        values = emission.numpy()
        states = np.zeros(2 * len(row) + 1, np.int64)
        states[1::2] = row
        skip = np.full(len(states), -np.inf, np.float32)
        skip[3::2] = np.where(states[3::2] != states[1:-2:2], 0, -np.inf)
        score = np.full(len(states), -np.inf, np.float32)
        score[:2] = values[0, states[:2]]
        back = np.zeros((len(values), len(states)), np.uint8)
        ways = np.full((3, len(states)), -np.inf, np.float32)
        for t in range(1, len(values)):
            ways[0] = score
            ways[1, 1:] = score[:-1]
            ways[2, 2:] = score[:-2]
            ways[2] += skip
            back[t] = ways.argmax(0)
            score = ways.max(0) + values[t, states]
        state = len(states) - 1 - int(score[-2] >= score[-1])
        total = float(score[state])
        path = np.zeros(len(values), np.int64)
        for t in range(len(values) - 1, -1, -1):
            path[t] = state
            state -= int(back[t, state])
        paths.append((path, total))
    return paths


def compare(
    title: str, emissions: Sequence[Tensor], labels: Sequence[Sequence[int]], rounds: int
) -> dict[str, float | str]:
    seconds = sum(map(len, emissions)) / RATE
    ours, theirs = viterbi(emissions, labels), plain(emissions, labels)
    difference = max(abs(a.score - b) for a, (_, b) in zip(ours, theirs) if a is not None)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: viterbi(emissions, labels),
        "plain": lambda: plain(emissions, labels),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            taken[name].append(time.perf_counter() - began)
    ratio = statistics.median(b / a for a, b in zip(taken["ours"], taken["plain"]))
    speed = {name: seconds / statistics.median(t) for name, t in taken.items()}
    print(f"{title:22} {speed['ours']:10.0f} x {speed['plain']:10.0f} x {ratio:6.1f}x {difference:28.1e}")
    return {
        "items": title,
        "times_real_time": round(speed["ours"]),
        "one_by_one": round(speed["plain"]),
        "ratio": round(ratio, 2),
        "score_difference": difference,
    }


if __name__ == "__main__":
    main()
