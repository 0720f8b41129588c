"""Lattice of a transducer: its nodes, the scores of what leaves them, and the sum over all paths.

At node (t, u) frame t is read and u tokens of the target are out. An arc advances by some frames, and by one token or
by none (blank). A path begins at (0, 0) and ends when a blank leaves the last frame with all tokens out. Only the nodes
of the items themselves are computed, none of their padding: they are listed one after the other, and M is their number.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Arc(NamedTuple):
    """Advance of one arc, in frames and in tokens of the target (0: it is a blank)."""

    frames: int
    tokens: int


RNNT_ARCS = (Arc(1, 0), Arc(0, 1))
"""Blank to the next frame, and a token that stays in its frame."""


class Lattice:
    """The nodes of a batch, item by item, frame by frame: `item`, `frame`, `token` int64 [M] each."""

    def __init__(self, lengths: Tensor, targets: Tensor, target_lengths: Tensor, blank: int) -> None:
        """`lengths` and `target_lengths` [B] are frames and tokens of each item, `targets` [B, U] ids of tokens, padded
        with anything."""
        device = targets.device
        self.lengths, self.target_lengths = lengths.to(device), target_lengths.to(device)
        self.frames = int(lengths.max()) if len(lengths) else 0
        self.tokens = targets.shape[1]
        frame, token = (torch.arange(n, device=device) for n in (self.frames, self.tokens + 1))
        inside = (frame[:, None] < self.lengths[:, None, None]) & (token <= self.target_lengths[:, None, None])
        self.item, self.frame, self.token = inside.nonzero().t().contiguous()
        labels = F.pad(targets, (0, 1), value=blank)[self.item, self.token]
        # After the last token there is no label: any valid id, since the arc is not used.
        labels = labels.where(self.token < self.target_lengths[self.item], blank)
        self.ids = torch.stack([torch.full_like(labels, blank), labels], 1)  # [M, 2]: what its arcs put out

    def scores(
        self, joint: nn.Module, encoder: Tensor, predictor: Tensor, rows: int, durations: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities at each node: of blank and of the next label [M, 2], and of the durations [M, `durations`],
        whose logits are the last of the joint's.

        `encoder` [B, T, J] and `predictor` [B, U + 1, J] are the arguments of `joint`, which is called on `rows` nodes
        at a time. Beyond `rows` the logits are computed again in the backward pass, with the same dropout, so that
        those of `rows` nodes are all that is ever held. float32, or float64 if the logits are.
        """

        def score(encoder: Tensor, predictor: Tensor, part: slice) -> Tensor:
            item = self.item[part]
            # Looked up as embeddings are, whose gradient is summed in a fixed order on a GPU too.
            states = F.embedding(item * encoder.shape[1] + self.frame[part], encoder.flatten(0, 1))
            outputs = F.embedding(item * predictor.shape[1] + self.token[part], predictor.flatten(0, 1))
            return _Scores.apply(joint(states, outputs), self.ids[part], durations)

        nodes = len(self.item)
        if nodes <= rows:
            scores = score(encoder, predictor, slice(0, nodes))
        else:
            parts = [slice(at, at + rows) for at in range(0, nodes, rows)]
            scores = torch.cat([checkpoint(score, encoder, predictor, p, use_reentrant=False) for p in parts])
        return scores[:, :2], scores[:, 2:]

    @staticmethod
    def arcs(tokens: Tensor, steps: Tensor, durations: Sequence[int]) -> tuple[Tensor, Sequence[Arc]]:
        """Scores [M, A] of the arcs that leave each node, and the arcs, from what `scores` gives. Without durations
        those of an RNN-T."""
        if not durations:
            return tokens, RNNT_ARCS
        waits = [i for i, frames in enumerate(durations) if frames]  # a blank that stays would go round for ever
        arcs = [Arc(durations[i], 0) for i in waits] + [Arc(frames, 1) for frames in durations]
        return torch.cat([tokens[:, :1] + steps[:, waits], tokens[:, 1:] + steps], 1), arcs

    def loss(self, scores: Tensor, arcs: Sequence[Arc], emphasis: float = 1.0) -> Tensor:
        """`losses`, summed over items: a scalar."""
        return self.losses(scores, arcs, emphasis).sum()

    def losses(self, scores: Tensor, arcs: Sequence[Arc], emphasis: float = 1.0) -> Tensor:
        """Negative log of the summed probability of all paths of each item [B].

        `scores` [M, A] are log-probabilities of the `arcs` that leave each node. An item without any path counts as
        zero. The gradient of arcs with a token is multiplied by `emphasis` (FastEmit)."""
        return _PathSum.apply(scores, self, arcs, emphasis)


class _Scores(torch.autograd.Function):
    """Log-probabilities of two tokens a row from logits, whose gradient is computed in one buffer of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, durations: int) -> Tensor:
        size = logits.shape[-1] - durations
        exact = logits if logits.dtype == torch.float64 else logits.float()
        normalizer = exact[:, :size].logsumexp(-1, keepdim=True)
        ctx.save_for_backward(logits, ids, normalizer)
        ctx.size = size
        return torch.cat([exact.gather(1, ids) - normalizer, exact[:, size:].log_softmax(-1)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, ids, normalizer = ctx.saved_tensors
        tokens, durations = gradient[:, :2], gradient[:, 2:]
        result = logits.to(normalizer.dtype, copy=True)
        probabilities = result[:, : ctx.size].sub_(normalizer).exp_()
        probabilities.mul_(-tokens.sum(1, keepdim=True)).scatter_add_(1, ids, tokens)
        of_durations = result[:, ctx.size :]
        of_durations.copy_(durations - of_durations.softmax(-1) * durations.sum(1, keepdim=True))
        return result.to(logits.dtype), None, None


class _PathSum(torch.autograd.Function):
    """The sum over paths, by anti-diagonals (nodes of one t + u do not depend on one another), all items at once.

    From the last diagonal to the first, the log-probability of what is yet to come at each node (beta); it makes the
    arcs of a node a distribution over the continuations of a path. From the first to the last, the probability that a
    path comes by (occupancy), multiplied along these. An arc's occupancy is its gradient. Both in float64, where there
    is such: the numbers are few beside the logits, and beta of a long item has no digits to spare in float32."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, lattice: Lattice, arcs: Sequence[Arc], emphasis: float) -> Tensor:
        weights, place = by_diagonals(scores, lattice, arcs)
        arc_steps = [arc.frames + arc.tokens for arc in arcs]
        first, width = max(arc_steps), lattice.tokens + 1
        batch, count = len(lattice.lengths), len(arcs)
        items = torch.arange(batch, device=scores.device)

        beta = weights.new_full((len(weights), width + 1, batch), -torch.inf)
        beta[lattice.lengths + lattice.target_lengths, lattice.target_lengths, items] = 0.0
        column = torch.arange(width, device=scores.device)
        ahead = torch.cat([step * (width + 1) + column + arc.tokens for step, arc in zip(arc_steps, arcs)])
        of_nodes, flat = weights[first:, :, 1:], beta.flatten(0, 1)
        for n in range(len(of_nodes) - 1, -1, -1):
            onward = flat[n * (width + 1) :].index_select(0, ahead).view(count, width, batch)
            candidates = of_nodes[n].add_(onward)
            # The end of an item has no arcs, all other nodes begin at -inf.
            torch.maximum(beta[n, :-1], reduce(torch.logaddexp, candidates.unbind()), out=beta[n, :-1])
        total = beta[0, 0]
        aligned = total != -torch.inf
        loss = -total.where(aligned, 0).to(scores.dtype)
        if not ctx.needs_input_grad[0]:
            return loss

        lowest = torch.finfo(beta.dtype).min
        of_nodes.sub_(beta[: len(of_nodes), None, :-1].clamp(min=lowest)).exp_()
        weights[:first], weights[:, :, 0] = 0, 0
        per_diagonal = count * (width + 1)
        behind = torch.cat(
            [
                (first - arc_steps[i]) * per_diagonal + i * (width + 1) + column + 1 - arcs[i].tokens
                for i in range(count)
            ]
        )
        flat = weights.flatten(0, 2)
        occupancy = torch.zeros_like(beta[0, :-1])
        occupancy[0] = aligned
        for n in range(len(of_nodes)):
            if n:
                occupancy = flat[n * per_diagonal :].index_select(0, behind).view(count, width, batch).sum(0)
            of_nodes[n].mul_(occupancy)
        factor = -weights.new_tensor([emphasis if arc.tokens else 1.0 for arc in arcs])
        ctx.save_for_backward((weights[place] * factor).to(scores.dtype), lattice.item)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        occupancy, item = ctx.saved_tensors
        return occupancy * gradient[item, None], None, None, None


def by_diagonals(scores: Tensor, lattice: Lattice, arcs: Sequence[Arc]) -> tuple[Tensor, Any]:
    """Scores [D, A, U + 2, B] of the arcs that leave the nodes of each diagonal, -inf where there are none, and the
    place of each node in them. Ahead lie as many empty diagonals as the longest arc is wide, and one empty column, so
    that what lies behind a node can always be read."""
    first = max(arc.frames + arc.tokens for arc in arcs)
    shape = (first + lattice.frames + lattice.tokens, len(arcs), lattice.tokens + 2, len(lattice.lengths))
    dtype = torch.float64 if scores.device.type != "mps" else torch.float32
    weights = torch.full(shape, -torch.inf, dtype=dtype, device=scores.device)
    place = (first + lattice.frame + lattice.token, slice(None), lattice.token + 1, lattice.item)
    weights[place] = scores.to(dtype)
    last = lattice.lengths[lattice.item] - lattice.frame
    for i, arc in enumerate(arcs):
        if arc.tokens:  # only a blank ends a path
            ends = (last == arc.frames).nonzero()[:, 0]
            weights[place[0][ends], i, place[2][ends], place[3][ends]] = -torch.inf
    return weights, place
