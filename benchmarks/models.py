"""Parts of models: attention, losses of transducers, greedy decoding of transducers, Viterbi."""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import harness
from benchmarks.harness import Result, Row, Rows, Table, benchmark

# Attention

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
WAYS = ("softmax", "matrix", "linear", "causal")
MATRIX = 4096
"""Longest sequence whose matrix of scores is made."""
WARM = 1100
"""Frames of the sequence that warms up: enough for all code to have been loaded."""
ROUNDS, SECONDS = 9, 2.0


@benchmark(threads=2)
def attention(dim: int = 256, heads: int = 4, longest: int = LENGTHS[-1], device: str = "cpu") -> Result:
    """Softmax and linear attention over 512 to 32,768 frames: time and memory of forward and backward.

    One attention layer with its projections, one item, float32. `softmax` goes through torch's fused kernel (SDPA),
    which keeps no matrix of scores; `matrix` is the same computed with that matrix, as textbooks write it (up to 4,096
    frames). `linear` and `causal` are FAVOR+ with its default number of features, d ln d for heads of size d.

    Each case runs in a process of its own, after a short sequence to warm up: once for its time (ms), the median of the
    rounds that fit into two seconds, at least one; once for its memory (MB), what the process (on a GPU: the allocator)
    holds at most above what it held before: sequence, answers, gradients and all that attention keeps between forward
    and backward. Memory of a process is read from /proc, so the CPU's is measured on Linux only.

    The facts say where linear attention begins to be faster and smaller, between which lengths, and how straight its
    memory grows.
    """
    threads, table = harness.set_threads(), Table()
    for length in (n for n in LENGTHS if n <= longest):
        row: Row = {"frames": length}
        for way in WAYS:
            if way != "matrix" or length <= MATRIX:
                case = (way, length, dim, heads, device)
                row[f"{way}_ms"] = harness.apart(attention_time, *case, threads=threads)
                row[f"{way}_mb"] = harness.apart(attention_memory, *case, threads=threads, **harness.GIVE_BACK)
        table.add(row)
    facts: Row = {"device": device, "dim": dim, "heads": heads}
    facts["features"] = int(dim // heads * math.log(dim // heads))
    for way in ("linear", "causal"):
        facts[f"{way}_faster_from"] = crossover(table, way, "ms")
        facts[f"{way}_smaller_from"] = crossover(table, way, "mb")
        facts[f"{way}_memory"] = straight(table, way)
    print(facts)
    return table, facts


def attention_time(way: str, length: int, dim: int, heads: int, device: str) -> float:
    """Milliseconds of forward and backward."""
    attend, x = _ready(way, length, dim, heads, device)
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < ROUNDS and (not taken or time.perf_counter() - began < SECONDS):
        taken += harness.in_turns({"": partial(_once, attend, x)}, 1, time.perf_counter)[""]
    return round(statistics.median(taken) * 1e3, 2)


def attention_memory(way: str, length: int, dim: int, heads: int, device: str) -> float:
    """Megabytes that forward and backward take, the sequence included."""
    attend, x = _ready(way, length, dim, heads, device)
    if not x.is_cuda:
        return round((harness.taken_by(partial(_once, attend, x)) + x.nbytes) / 1e6, 1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - x.nbytes
    _once(attend, x)
    return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)


def _ready(way: str, length: int, dim: int, heads: int, device: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return an attention function that has run once, and the sequence."""
    from stentor.models.transformer.attention import Attention

    torch.manual_seed(0)
    attention = Attention(dim, heads, {"linear": "linear", "causal": "causal_linear"}.get(way, "softmax")).to(device)
    attend = partial(_matrix, attention) if way == "matrix" else attention
    _once(attend, torch.randn(1, WARM, dim, device=device))
    return attend, torch.randn(1, length, dim, device=device)


def _once(attend: Callable[[Tensor], Tensor], x: Tensor) -> None:
    x = x.requires_grad_()
    attend(x).square().sum().backward()
    x.grad = None
    if x.is_cuda:
        torch.cuda.synchronize()


def _matrix(attention: Any, x: Tensor) -> Tensor:
    """Softmax attention with all scores in memory."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (p(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2) for p in projections)
    attended = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
    return attention.out_proj(attended.transpose(1, 2).flatten(2))


def crossover(rows: Rows, way: str, unit: str) -> str:
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


def straight(rows: Rows, way: str) -> dict[str, float]:
    """The straight line through memory over length that is closest to all points in relation to their size."""
    frames = np.array([row["frames"] for row in rows], float)
    used = np.array([row[f"{way}_mb"] for row in rows])
    columns = np.stack([frames, np.ones_like(frames)], 1) / used[:, None]
    (slope, base), *_ = np.linalg.lstsq(columns, np.ones_like(used), rcond=None)
    slope, base = float(slope), float(base)
    worst = float((np.abs(slope * frames + base - used) / used).max()) * 100
    return {"kb_per_frame": round(slope * 1e3, 3), "mb_at_0": round(base, 2), "worst_percent": round(worst, 2)}


# Losses of transducers

DURATIONS = [0, 1, 2, 3, 4]
SIZES = {
    "characters, 5 s": {"batch": 16, "frames": 125, "tokens": 60, "classes": 30, "width": 144},
    "1,024 tokens, 10 s": {"batch": 4, "frames": 125, "tokens": 40, "classes": 1025, "width": 640},
}
LARGE = {"batch": 16, "frames": 400, "tokens": 100, "classes": 1025, "width": 640}
PART = 4
"""The peer's memory is that of so many times fewer items, multiplied."""


@benchmark(threads=1)
def transducer_loss(rounds: int = 5) -> Result:
    """The losses of transducers beside their textbook forms, joint included: time of forward and backward, and memory.

    `tdt` stands beside transformers' own `tdt_loss`, `rnnt` beside log-softmax over all pairs of frame and token and a
    lattice by anti-diagonals under autograd (transformers' `rnnt_loss` needs torchaudio). Both peers get the logits of
    the same joint. Items have 50 to 100 % of the longest. Ours and the peer take turns in one process; the time is CPU
    time of the process, the ratio the median over rounds of peer / ours. Gradients are compared, too.

    Memory is that of 16 items of 400 frames and 100 tokens, 1,024 tokens and a blank, states of 640 numbers, all of
    full length: what a process of its own holds at most above what it held before (Linux). The peer's is measured with
    4 items and multiplied by 4, so that it fits into a small machine: its tensors are all in proportion to the items.
    """
    table, used = Table(), Table()
    for title, size in SIZES.items():
        for loss in ("rnnt", "tdt"):
            table.add({"loss": loss, "items": title, **_losses(loss, size, rounds)})
    for loss in ("rnnt", "tdt"):
        settings = {"threads": harness.set_threads(), **harness.GIVE_BACK}
        used.add({"loss": loss, **{f"{way}_gb": harness.apart(loss_memory, loss, way, **settings) for way in LOSSES}})
    return table, {"memory": list(used)}


class Joint(nn.Module):
    """ReLU of the sum, and a linear layer, as Parakeet's."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        return self.head((encoder + predictor).relu_())


def _random_case(loss: str, size: dict[str, int], shortest: float) -> dict[str, Any]:
    """Arguments of our loss. Frames and tokens of the items lie between `shortest` and all of the size's."""
    torch.manual_seed(0)
    batch, frames, tokens, width = (size[k] for k in ("batch", "frames", "tokens", "width"))
    share = torch.linspace(shortest, 1, batch)
    return {
        "encoder": torch.randn(batch, frames, width).requires_grad_(),
        "predictor": torch.randn(batch, tokens + 1, width).requires_grad_(),
        "joint": Joint(width, size["classes"] + (len(DURATIONS) if loss == "tdt" else 0)),
        "lengths": (share * frames).long(),
        "targets": torch.randint(size["classes"] - 1, (batch, tokens)),
        "target_lengths": (share * tokens).long(),
        "blank": size["classes"] - 1,
    }


def _our_loss(loss: str, case: dict[str, Any]) -> Tensor:
    from stentor.losses.all_paths import RNNTLoss, TDTLoss

    return RNNTLoss().sum(**case) if loss == "rnnt" else TDTLoss().sum(**case, durations=DURATIONS)


def _peer_loss(loss: str, case: dict[str, Any]) -> Tensor:
    from transformers.loss.loss_tdt import tdt_loss

    logits = case["joint"](case["encoder"][:, :, None], case["predictor"][:, None])
    rest = (case["targets"], case["lengths"], case["target_lengths"], case["blank"])
    if loss == "rnnt":
        return _plain_rnnt(logits, *rest)
    size = logits.shape[-1] - len(DURATIONS)
    return tdt_loss(logits[..., :size], logits[..., size:], *rest, DURATIONS, reduction="sum")


def _plain_rnnt(logits: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
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


LOSSES: dict[str, Callable[[str, dict[str, Any]], Tensor]] = {"ours": _our_loss, "peer": _peer_loss}


def _losses(loss: str, size: dict[str, int], rounds: int) -> Row:
    """CPU seconds of both, their harness.ratio, and how far loss and gradients are apart in relation to their size."""
    case = _random_case(loss, size, 0.5)
    leaves = [case["encoder"], case["predictor"], *case["joint"].parameters()]
    answers: dict[str, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def compute(way: str) -> None:
        total = LOSSES[way](loss, case)
        answers[way] = total.detach(), torch.autograd.grad(total, leaves)

    seconds = harness.in_turns({way: partial(compute, way) for way in LOSSES}, rounds, warm=1)
    (a, ours_gradients), (b, peer_gradients) = answers["ours"], answers["peer"]
    off = max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(ours_gradients, peer_gradients))
    row = {f"{way}_s": median for way, median in harness.medians(seconds, digits=3).items()}
    row["ratio"] = round(harness.ratio(seconds["peer"], seconds["ours"]), 2)
    return row | {"loss_off": float((a - b).abs() / b), "gradient_off": off}


def loss_memory(loss: str, way: str) -> float:
    """Gigabytes that forward and backward take, without the states themselves."""
    compute = LOSSES[way]
    compute(loss, _random_case(loss, SIZES["characters, 5 s"], 0.5)).backward()  # all code is loaded
    part = 1 if way == "ours" else PART
    case = _random_case(loss, LARGE | {"batch": LARGE["batch"] // part}, 1.0)
    return round(part * harness.taken_by(lambda: compute(loss, case).backward()) / 1e9, 2)


# Greedy decoding of transducers

CLASSES, BLANK = 1025, 1024
ENCODER = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
FRAMES = 100  # of log-mel a second
TOKENS = 4.0  # a second


@benchmark
def transducer_decoding(rounds: int = 3, seconds: float = 6.0, batches: tuple[int, ...] = (1, 8, 32)) -> Result:
    """Greedy decoding of transducers beside `generate` of transformers: CPU time of the same model and features.

    A Parakeet with a small encoder (4 layers of 256) and the predictor and joint of the released ones (two LSTM layers
    of 640, 1025 classes), so that decoding is what counts. Weights are random, with the blank as likely as makes the
    model write about four tokens a second. Clips are noise from a third of `--seconds` up to all of them. Both sides
    encode the batch and decode it in turns, on one thread; the encoder alone is given beside them. That both write the
    same tokens is checked up to the end of each clip: transformers continues to write behind the shorter ones of a
    batch.
    """
    harness.set_threads(1)
    table = Table()
    for kind in ("parakeet_tdt", "parakeet_rnnt"):
        model = _transducer(kind, seconds)
        for size in batches:
            table.add({"model": kind, "batch": size, **_decoding(model, _noise(size, seconds), rounds)})
    return table, {"rounds": rounds, "seconds": seconds}


def _transducer(kind: str, seconds: float) -> Any:
    """A model that writes about TOKENS a second of noise."""
    from transformers import AutoConfig, AutoModelForRNNT, AutoModelForTDT

    from stentor.models.transducer.config import KINDS
    from stentor.models.transducer.pretrained.modeling import PretrainedTransducer

    torch.manual_seed(0)
    encoder = {**ENCODER, "subsampling_conv_channels": 64}
    config = AutoConfig.for_model(kind, encoder_config=encoder, vocab_size=CLASSES, blank_token_id=BLANK)
    recogniser: Any = (AutoModelForTDT if kind == "parakeet_tdt" else AutoModelForRNNT).from_config(config)
    for name, parameter in recogniser.named_parameters():
        if not name.startswith("encoder."):
            parameter.data.normal_(std=0.1)
    recogniser.generation_config.decoder_start_token_id = BLANK
    bias = recogniser.joint.head.bias.data
    if kind == "parakeet_tdt":  # all durations but none, below the tokens, of whose logits `generate` takes the best
        bias[CLASSES:] = torch.tensor([-50.0, -20.0, -20.0, -20.0, -20.0])
    model = PretrainedTransducer(recogniser.eval(), KINDS[kind], 0.08)
    inputs = _noise(2, seconds)
    low, high = -20.0, 60.0
    for _ in range(8):
        bias[BLANK] = middle = (low + high) / 2
        written = sum(len(ids) for ids, *_ in model.generate(inputs, [10**6] * 2))
        low, high = (middle, high) if written > TOKENS * inputs["lengths"].sum() / FRAMES else (low, middle)
    return model


def _noise(size: int, seconds: float) -> dict[str, Tensor]:
    """Log-mel [B, 80, T] of noise, zero at padding, with lengths [B]."""
    generator = torch.Generator().manual_seed(size)
    lengths = torch.linspace(seconds, seconds / 3, size).mul(FRAMES).long()
    features = torch.randn(size, 80, int(lengths[0]), generator=generator)
    return {"features": features * (torch.arange(int(lengths[0])) < lengths[:, None])[:, None], "lengths": lengths}


@torch.no_grad()
def _decoding(model: Any, inputs: dict[str, Tensor], rounds: int) -> Row:
    size = len(inputs["lengths"])
    mask = torch.arange(int(inputs["lengths"].max())) < inputs["lengths"][:, None]
    theirs = {"input_features": inputs["features"].transpose(1, 2), "attention_mask": mask}
    ways = {
        "ours": lambda: model.generate(inputs, [10**6] * size),
        "generate": lambda: model.recogniser.generate(**theirs, max_length=10**5),
        "encoder": lambda: model.encode(**inputs),
    }
    ours, generated, (_, frames) = (way() for way in ways.values())
    taken = harness.in_turns(ways, rounds)
    rows = zip(generated.sequences.tolist(), generated.durations.tolist(), frames.tolist())
    expected = [_emitted(*row) for row in rows]
    row: Row = {"audio_seconds": round(float(inputs["lengths"].sum()) / FRAMES, 1)}
    row |= {f"{name}_cpu_seconds": median for name, median in harness.medians(taken, digits=3).items()}
    row |= {"ratio": round(harness.ratio(taken["generate"], taken["ours"]), 2), "tokens": sum(map(len, expected))}
    return row | {"same_tokens": [ids for ids, *_ in ours] == expected}


def _emitted(sequence: list[int], steps: list[int], frames: int) -> list[int]:
    """Return the tokens of a row of `generate` up to the end of its clip."""
    at, ids = 0, []
    for token, step in zip(sequence[1:], steps[1:]):
        if at < frames and token != BLANK:
            ids.append(token)
        at += step
    return ids


# Viterbi

RATE = 50
"""Frames a second of emissions."""


@benchmark(threads=1)
def viterbi(items: int = 32, rounds: int = 5) -> Result:
    """The batched Viterbi, a plain one that takes items one by one, and a compiled kernel, in one run.

    Windows of 30 s at 50 frames a second with about 450 characters (fast speech), and clips of mixed lengths: how many
    times faster than real time each is in processor time, the ratio of times (theirs / ours), and that the paths are
    equally good.

    `kernel` is torchaudio's `forced_align` in C++: torchaudio's own where it is installed, or its copy in the package
    ctc-forced-aligner. Without either it is null. `one_by_one` is the textbook form in numpy: for each frame one vector
    operation over the states of one item, and backtracking.
    """
    from stentor.models.decoding.viterbi import viterbi as ours

    rng, table = np.random.default_rng(0), Table()
    name, kernel = compiled_viterbi()
    lengths = {"30 s windows": np.full(items, 30.0), "mixed, 2 to 30 s": rng.uniform(2, 30, items)}
    for title, seconds in lengths.items():
        case = tuple(zip(*(_emissions(rng, s) for s in seconds)))
        scores = [path.score for path in ours(*case) if path is not None]
        peers = [[score for _, score in plain_viterbi(*case)], kernel(*case) if kernel else scores]
        difference = max(abs(a - b) for peer in peers for a, b in zip(scores, peer, strict=True))
        ways = {"times_real_time": partial(ours, *case), "one_by_one": partial(plain_viterbi, *case)}
        ways |= {"kernel": partial(kernel, *case)} if kernel else {}
        taken = harness.in_turns(ways, rounds)
        audio = sum(map(len, case[0])) / RATE
        row: Row = {"items": title, **{name: round(audio / median) for name, median in harness.medians(taken).items()}}
        row["ratio"] = round(harness.ratio(taken["one_by_one"], taken["times_real_time"]), 2)
        row["kernel"] = row.pop("kernel", None)
        row["kernel_ratio"] = round(harness.ratio(taken["kernel"], taken["times_real_time"]), 2) if kernel else None
        table.add(row | {"score_difference": difference})
    return table, {"kernel": name}


def compiled_viterbi() -> tuple[str | None, Callable[..., list[float]] | None]:
    """Name of the package that has torchaudio's kernel, and the scores of the best paths, one item after the other."""
    if importlib.util.find_spec("torchaudio"):
        from torchaudio.functional import forced_align as torch_align

        return "torchaudio", lambda emissions, labels: [
            float(torch_align(e[None], torch.tensor([row]))[1].sum()) for e, row in zip(emissions, labels)
        ]
    if importlib.util.find_spec("ctc_forced_aligner"):
        from ctc_forced_aligner import forced_align

        return "ctc-forced-aligner", lambda emissions, labels: [
            float(forced_align(e.numpy()[None], np.array([row]))[1].sum()) for e, row in zip(emissions, labels)
        ]
    return None, None


def _emissions(rng: np.random.Generator, seconds: float, classes: int = 32) -> tuple[Tensor, list[int]]:
    """Emissions of so many seconds and the characters that they say: 15 a second, rather sure."""
    frames = round(RATE * seconds)
    labels = rng.integers(1, classes, round(15 * seconds))
    scores = rng.normal(size=(frames, classes)).astype(np.float32)
    scores[:, 0] += 3
    at = np.sort(rng.choice(frames, len(labels), replace=False))
    scores[at, labels] += 6
    return torch.from_numpy(scores).log_softmax(-1), labels.tolist()


def plain_viterbi(emissions: Sequence[Tensor], labels: Sequence[Sequence[int]]) -> list[tuple[np.ndarray, float]]:
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
