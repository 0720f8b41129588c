"""Softmax and linear attention over sequences of 512 to 32,768 frames: time and memory of forward and backward.

    python benchmarks/attention.py [--threads 2] [--dim 256] [--heads 4] [--longest 32768] [--device cpu]

One attention layer with its projections, one item, float32. `softmax` goes through torch's fused kernel (SDPA), which
keeps no matrix of scores; `matrix` is the same computed with that matrix, as textbooks write it (up to 4,096 frames).
`linear` and `causal` are FAVOR+ with its default number of features, d ln d for heads of size d.

Each case runs in a process of its own, after a short sequence to warm up: once for its time, the median of the rounds
that fit into two seconds, at least one; once for its memory, what the process (on a GPU: the allocator) holds at most
above what it held before: sequence, answers, gradients and all that attention keeps between forward and backward.
Memory of a process is read from /proc, so the CPU's is measured on Linux only.

Says where linear attention begins to be faster and smaller, between which lengths, and how straight its memory grows.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import results
import torch
from torch import Tensor

from stentor.models.transformer.attention import Attention

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
WAYS = ("softmax", "matrix", "linear", "causal")
MATRIX = 4096
"""Longest sequence whose matrix of scores is made."""
WARM = 1100
"""Frames of the sequence that warms up: enough for all code to have been loaded."""
ROUNDS, SECONDS = 9, 2.0
MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", nargs=3, metavar=("UNIT", "WAY", "FRAMES"), help="one case, in this process")
    args = parser.parse_args()
    if args.case:
        unit, way, frames = args.case
        print((time_of if unit == "ms" else memory_of)(args, way, int(frames)))
        return
    size = args.dim // args.heads
    features = int(size * math.log(size))
    print(
        f"torch {torch.__version__}, {args.device}, {args.threads} thread(s), {args.heads} heads of {size}, "
        f"{features} features\n"
    )
    print(f"{'frames':>7} " + "".join(f"{way + ' ms':>12}" for way in WAYS) + "".join(f"{w + ' MB':>12}" for w in WAYS))
    rows = []
    for length in (n for n in LENGTHS if n <= args.longest):
        row: dict[str, float] = {"frames": length}
        for way in WAYS:
            if way != "matrix" or length <= MATRIX:
                row |= {f"{way}_{unit}": in_a_process(unit, way, length) for unit in ("ms", "mb")}
        rows.append(row)
        cells = [row.get(f"{way}_{unit}") for unit in ("ms", "mb") for way in WAYS]
        print(f"{length:7} " + "".join(f"{'' if c is None else f'{c:.1f}':>12}" for c in cells), flush=True)
    print()
    facts = {
        f"{way}_{what}": crossover(rows, way, unit)
        for way in ("linear", "causal")
        for what, unit in (("faster_from", "ms"), ("smaller_from", "mb"))
    }
    for name, value in facts.items():
        print(f"{name.replace('_', ' ')}: {value}")
    for way in ("linear", "causal"):
        facts[f"{way}_memory"] = fit = straight(rows, way)
        print(
            f"memory of {way}: {fit['kb_per_frame']:.2f} KB a frame + {fit['mb_at_0']:.1f} MB; no length is further "
            f"off than {fit['worst_percent']:.1f} %"
        )
    results.write(
        "attention",
        rows,
        device=args.device,
        threads=args.threads,
        dim=args.dim,
        heads=args.heads,
        features=features,
        **facts,
    )


def in_a_process(unit: str, way: str, length: int) -> float:
    environment = dict(os.environ)
    if unit == "mb":  # memory that was freed is given back at once, so that the peak is of what is held at one time
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, __file__, *sys.argv[1:], "--case", unit, way, str(length)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} over {length} frames failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def time_of(args: argparse.Namespace, way: str, length: int) -> float:
    """Milliseconds of forward and backward."""
    attend, x = ready(args, way, length)
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < ROUNDS and (not taken or time.perf_counter() - began < SECONDS):
        start = time.perf_counter()
        once(attend, x)
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken) * 1e3, 2)


def memory_of(args: argparse.Namespace, way: str, length: int) -> float:
    """Megabytes that forward and backward take, the sequence included."""
    attend, x = ready(args, way, length)
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() - x.nbytes
        once(attend, x)
        return round((torch.cuda.max_memory_allocated() - before) / MB, 1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS") - x.nbytes
    once(attend, x)
    return round((resident("VmHWM") - before) / MB, 1)


def resident(what: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{what}:"))


def ready(args: argparse.Namespace, way: str, length: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """What attends, having done so once, and the sequence."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    kind = {"linear": "linear", "causal": "causal_linear"}.get(way, "softmax")
    attention = Attention(args.dim, args.heads, kind).to(args.device)
    attend = (lambda x: matrix(attention, x)) if way == "matrix" else attention
    once(attend, torch.randn(1, WARM, args.dim, device=args.device))
    return attend, torch.randn(1, length, args.dim, device=args.device)


def once(attend: Callable[[Tensor], Tensor], x: Tensor) -> None:
    x = x.requires_grad_()
    attend(x).square().sum().backward()
    x.grad = None
    if x.is_cuda:
        torch.cuda.synchronize()


def matrix(attention: Attention, x: Tensor) -> Tensor:
    """Softmax attention with all scores in memory."""
    q, k, v = (
        p(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    attended = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
    return attention.out_proj(attended.transpose(1, 2).flatten(2))


def crossover(rows: list[dict[str, float]], way: str, unit: str) -> str:
    """The length from which `way` needs less than fused softmax, read off a straight line between two measured lengths
    in logarithms."""
    ratios = [(row["frames"], math.log(row[f"{way}_{unit}"] / row[f"softmax_{unit}"])) for row in rows]
    if all(ratio < 0 for _, ratio in ratios):
        return f"{rows[0]['frames']} frames or fewer"
    if ratios[-1][1] >= 0:
        return f"no length up to {rows[-1]['frames']} frames"
    (short, over), (long, under) = [pair for pair in pairwise(ratios) if pair[0][1] >= 0 > pair[1][1]][-1]
    at = math.exp(math.log(short) + math.log(long / short) * over / (over - under))
    return f"about {at:.0f} frames (between {short} and {long})"


def straight(rows: list[dict[str, float]], way: str) -> dict[str, float]:
    """The straight line through memory over length that is closest to all points in relation to their size."""
    frames = np.array([row["frames"] for row in rows], float)
    memory = np.array([row[f"{way}_mb"] for row in rows])
    (slope, base), *_ = np.linalg.lstsq(
        np.stack([frames, np.ones_like(frames)], 1) / memory[:, None], np.ones_like(memory), rcond=None
    )
    off = np.abs(slope * frames + base - memory) / memory
    return {
        "kb_per_frame": round(slope * 1e3, 3),
        "mb_at_0": round(base, 2),
        "worst_percent": round(off.max() * 100, 2),
    }


if __name__ == "__main__":
    main()
