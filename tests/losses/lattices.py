"""Small transducers in float64, and the probability of a target as the sum over all of its paths, one by one."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

WIDTH, TOKENS = 5, 6


class Joint(nn.Module):
    """tanh of the sum, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, classes).double()

    def forward(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        return self.head(torch.tanh(encoder + predictor))


def random_case(seed: int, durations: int = 0, frames: int = 5, tokens: int = 3) -> dict:
    """Arguments of `RNNTLoss.sum` for one to three items of up to so many frames and tokens. Padding holds NaN and ids
    that there are not."""
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    batch = int(torch.randint(1, 4, (), generator=random))
    lengths = torch.randint(1, frames + 1, (batch,), generator=random)
    sizes = torch.randint(0, tokens + 1, (batch,), generator=random)
    encoder = torch.randn(batch, int(lengths.max()) + 1, WIDTH, dtype=torch.float64, generator=random)
    predictor = torch.randn(batch, int(sizes.max()) + 1, WIDTH, dtype=torch.float64, generator=random)
    blank = int(torch.randint(TOKENS, (), generator=random))
    targets = (torch.randint(1, TOKENS, (batch, int(sizes.max())), generator=random) + blank) % TOKENS
    for i in range(batch):
        encoder[i, lengths[i] :] = torch.nan
        predictor[i, sizes[i] + 1 :] = torch.nan
        targets[i, sizes[i] :] = -100
    return {
        "encoder": encoder.requires_grad_(),
        "predictor": predictor.requires_grad_(),
        "joint": Joint(TOKENS + durations),
        "lengths": lengths,
        "targets": targets,
        "target_lengths": sizes,
        "blank": blank,
    }


def gradients(total: Tensor, case: dict) -> list[Tensor]:
    return list(torch.autograd.grad(total, [case["encoder"], case["predictor"], *case["joint"].parameters()]))


def item_logits(case: dict, item: int) -> tuple[Tensor, list[int]]:
    """Logits [T, U + 1, V] of one item and its target."""
    frames, size = int(case["lengths"][item]), int(case["target_lengths"][item])
    encoder, predictor = case["encoder"][item, :frames, None], case["predictor"][item, None, : size + 1]
    return case["joint"](encoder, predictor), case["targets"][item, :size].tolist()


def paths(frames: int, tokens: int, durations: Sequence[int] | None) -> Iterator[list[tuple[int, int, bool, int]]]:
    """All ways through a lattice as steps (frame, token, is a blank, index of the duration). `durations` None: RNN-T,
    where a blank goes on by a frame and a token by none."""

    def onward(t: int, u: int) -> Iterator[list[tuple[int, int, bool, int]]]:
        if t == frames and u == tokens:
            yield []
        if t >= frames:
            return
        steps = [(1, True, 0), (0, False, 0)]
        if durations is not None:
            steps = [(d, blank, i) for i, d in enumerate(durations) for blank in (True, False) if d or not blank]
        for frames_on, blank, i in steps:
            if (blank and t + frames_on == frames and u < tokens) or (
                not blank and (u == tokens or t + frames_on == frames)
            ):
                continue
            for rest in onward(t + frames_on, u + (not blank)):
                yield [(t, u, blank, i), *rest]

    return onward(0, 0)


def scored_paths(
    case: dict, item: int, durations: Sequence[int] | None = None, sigma: float = 0.0
) -> list[tuple[Tensor, list[tuple[int, int, bool, int]]]]:
    """Log-probability of every path of an item, with the path as `paths` gives it."""
    logits, target = item_logits(case, item)
    tokens = logits[..., :TOKENS].log_softmax(-1) - sigma
    steps = logits[..., TOKENS:].log_softmax(-1)
    scored = []
    for path in paths(len(logits), len(target), durations):
        frames, sizes, blanks, index = map(list, zip(*path))
        ids = [case["blank"] if blank else target[u] for u, blank in zip(sizes, blanks)]
        score = tokens[frames, sizes, ids].sum()
        scored.append((score if durations is None else score + steps[frames, sizes, index].sum(), path))
    return scored


def brute_force(case: dict, durations: Sequence[int] | None = None, sigma: float = 0.0) -> Tensor:
    """The loss as the sum over all paths; items without any count as zero."""
    total = torch.zeros((), dtype=torch.float64)
    for item in range(len(case["lengths"])):
        scores = [score for score, _ in scored_paths(case, item, durations, sigma)]
        if scores:
            total = total - torch.stack(scores).logsumexp(0)
    return total
