"""The losses of transducers beside their textbook forms, joint included: time of forward and backward, and memory.

    python benchmarks/transducer_loss.py [--threads 1] [--rounds 5]

`tdt` stands beside transformers' own `tdt_loss`, `rnnt` beside log-softmax over all pairs of frame and token and a
lattice by anti-diagonals under autograd (transformers' `rnnt_loss` needs torchaudio). Both peers get the logits of the
same joint. Items have 50 to 100 % of the longest. Ours and the peer take turns in one process; the time is CPU time of
the process, the ratio the median over rounds of peer / ours. Gradients are compared, too.

Memory is that of 16 items of 400 frames and 100 tokens, 1,024 tokens and a blank, states of 640 numbers, all of full
length: what a process of its own holds at most above what it held before (Linux). The peer's is measured with 4 items
and multiplied by 4, so that it fits into a small machine: its tensors are all in proportion to the items.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import results
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.loss.loss_tdt import tdt_loss

from stentor.losses.rnnt import RNNTLoss
from stentor.losses.tdt import TDTLoss

DURATIONS = [0, 1, 2, 3, 4]
SIZES = {
    "characters, 5 s": {"batch": 16, "frames": 125, "tokens": 60, "classes": 30, "width": 144},
    "1,024 tokens, 10 s": {"batch": 4, "frames": 125, "tokens": 40, "classes": 1025, "width": 640},
}
LARGE = {"batch": 16, "frames": 400, "tokens": 100, "classes": 1025, "width": 640}
PART = 4
"""The peer's memory is that of so many times fewer items, multiplied."""
GB = 1e9


class Joint(nn.Module):
    """ReLU of the sum, and a linear layer, as Parakeet's."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        return self.head((encoder + predictor).relu_())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", nargs=2, metavar=("LOSS", "WAY"), help="one case, in this process")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        print(memory_of(*args.memory))
        return
    rows: list[dict[str, Any]] = []
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.rounds} rounds\n")
    print(f"{'loss':6}{'items':22}{'ours':>10}{'peer':>10}{'ratio':>8}{'loss off by':>14}{'gradient off by':>17}")
    for title, size in SIZES.items():
        for loss in ("rnnt", "tdt"):
            rows.append({"loss": loss, "items": title, **compare(loss, size, args.rounds)})
            row = rows[-1]
            print(
                f"{loss:6}{title:22}{row['ours_s']:8.2f} s{row['peer_s']:8.2f} s{row['ratio']:7.2f}x"
                f"{row['loss_off']:14.1e}{row['gradient_off']:17.1e}",
                flush=True,
            )
    print(f"\n{'loss':6}{'ours':>10}{'peer':>10}   16 items, 400 frames, 100 tokens, 1,025 classes")
    memory: list[dict[str, Any]] = []
    for loss in ("rnnt", "tdt"):
        memory.append({"loss": loss, **{f"{way}_gb": in_a_process(loss, way) for way in ("ours", "peer")}})
        print(f"{loss:6}{memory[-1]['ours_gb']:7.2f} GB{memory[-1]['peer_gb']:7.2f} GB", flush=True)
    results.write("transducer_loss", rows, threads=args.threads, memory=memory)


def random_case(loss: str, size: dict[str, int], shortest: float) -> dict[str, Any]:
    """Arguments of our loss. Frames and tokens of the items lie between `shortest` and all of the size's."""
    torch.manual_seed(0)
    batch, frames, tokens, width = (size[k] for k in ("batch", "frames", "tokens", "width"))
    share = torch.linspace(shortest, 1, batch)
    extra = len(DURATIONS) if loss == "tdt" else 0
    return {
        "encoder": torch.randn(batch, frames, width).requires_grad_(),
        "predictor": torch.randn(batch, tokens + 1, width).requires_grad_(),
        "joint": Joint(width, size["classes"] + extra),
        "lengths": (share * frames).long(),
        "targets": torch.randint(size["classes"] - 1, (batch, tokens)),
        "target_lengths": (share * tokens).long(),
        "blank": size["classes"] - 1,
    }


def ours(loss: str, case: dict[str, Any]) -> Tensor:
    return RNNTLoss().sum(**case) if loss == "rnnt" else TDTLoss().sum(**case, durations=DURATIONS)


def peer(loss: str, case: dict[str, Any]) -> Tensor:
    logits = case["joint"](case["encoder"][:, :, None], case["predictor"][:, None])
    rest = (case["targets"], case["lengths"], case["target_lengths"], case["blank"])
    if loss == "rnnt":
        return plain_rnnt(logits, *rest)
    size = logits.shape[-1] - len(DURATIONS)
    return tdt_loss(logits[..., :size], logits[..., size:], *rest, DURATIONS, reduction="sum")


def plain_rnnt(logits: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The RNN-T loss as one writes it down: log-softmax of everything, alpha by anti-diagonals, autograd."""
    log_probs = logits.log_softmax(-1)
    batch, frames, nodes, _ = logits.shape
    diagonals = torch.arange(frames + nodes - 1)
    frame = diagonals[:, None] - torch.arange(nodes)  # [D, U + 1]
    outside = (frame < 0) | (frame >= frames)
    index = frame.clamp(0, frames - 1).expand(batch, -1, -1)
    blanks = log_probs[..., blank].gather(1, index).masked_fill(outside, -1e30)
    labels = log_probs[:, :, :-1].gather(-1, targets[:, None, :, None].expand(-1, frames, -1, 1))[..., 0]
    labels = labels.gather(1, index[..., :-1]).masked_fill(outside[:, :-1], -1e30)
    alpha = [torch.full((batch, nodes), -1e30).index_fill(1, torch.tensor([0]), 0.0)]
    for n in range(1, len(diagonals)):
        stay = alpha[-1] + blanks[:, n - 1]
        move = F.pad(alpha[-1][:, :-1] + labels[:, n - 1], (1, 0), value=-1e30)
        alpha.append(torch.logaddexp(stay, move))
    rows, last = torch.arange(batch), lengths - 1
    ends = torch.stack(alpha, 1)[rows, last + target_lengths, target_lengths]
    return -(ends + log_probs[rows, last, target_lengths, blank]).sum()


WAYS: dict[str, Callable[[str, dict[str, Any]], Tensor]] = {"ours": ours, "peer": peer}


def compare(loss: str, size: dict[str, int], rounds: int) -> dict[str, float]:
    """CPU seconds of both, their ratio, and how far loss and gradients are apart in relation to their size."""
    case = random_case(loss, size, 0.5)
    leaves = [case["encoder"], case["predictor"], *case["joint"].parameters()]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    answers: dict[str, tuple[Tensor, tuple[Tensor, ...]]] = {}
    for turn in range(rounds + 1):  # the first one warms up
        for way, compute in WAYS.items():
            began = time.process_time()
            total = compute(loss, case)
            answers[way] = total.detach(), torch.autograd.grad(total, leaves)
            if turn:
                seconds[way].append(time.process_time() - began)
            del total
    (a, ours_gradients), (b, peer_gradients) = answers["ours"], answers["peer"]
    off = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(ours_gradients, peer_gradients))
    return {
        "ours_s": round(statistics.median(seconds["ours"]), 3),
        "peer_s": round(statistics.median(seconds["peer"]), 3),
        "ratio": round(statistics.median(p / o for o, p in zip(seconds["ours"], seconds["peer"])), 2),
        "loss_off": float((a - b).abs() / b),
        "gradient_off": off,
    }


def in_a_process(loss: str, way: str) -> float:
    """Gigabytes of one case."""
    # Memory that was freed is rest back at once, so that the peak is of what is held at one time.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [sys.executable, __file__, *sys.argv[1:], "--memory", loss, way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{loss} ({way}) failed with {done.returncode}:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


def memory_of(loss: str, way: str) -> float:
    """Gigabytes that forward and backward take, without the states themselves."""
    WAYS[way](loss, random_case(loss, SIZES["characters, 5 s"], 0.5)).backward()  # all code is loaded
    part = 1 if way == "ours" else PART
    case = random_case(loss, LARGE | {"batch": LARGE["batch"] // part}, 1.0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    WAYS[way](loss, case).backward()
    return round(part * (resident("VmHWM") - before) / GB, 2)


def resident(what: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{what}:"))


if __name__ == "__main__":
    main()
