"""The most probable path of a transducer through the lattice of a known text (Viterbi): a frame for each token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.losses.base import WILDCARD
from stentor.losses.transducer.lattice import Arc, Lattice, by_diagonals

ROWS = 2048
"""Nodes whose logits are in memory at a time."""
PENALTY = 0.1
"""Penalty in nats of a frame after a wildcard, which costs as its best class, unless that is blank."""


class BestPath(NamedTuple):
    """The best path of one item."""

    score: float
    """Log-probability of the path."""
    spans: list[tuple[int, int]]
    """The frame of each token and the frame after it; with durations the one that it jumps to. Of a wildcard the
    frames from the first to the last sound."""
    log_probs: list[float]
    """Log-probability of each token at its frame, without that of its duration."""


@torch.no_grad()
def best_path(
    encoder: Tensor,
    predictor: Tensor,
    joint: nn.Module,
    lengths: Tensor,
    targets: Tensor,
    target_lengths: Tensor,
    blank: int,
    durations: Sequence[int] = (),
) -> BestPath | None:
    """The best path of a batch of one item, of which the arguments are those of the losses `rnnt` and `tdt`. None where
    no path of these durations aligns it. `targets` may hold `WILDCARD`, of which `predictor` knows nothing."""
    wild = targets[0] == WILDCARD
    predictor = predictor[:, F.pad((~wild).cumsum(0), (1, 0))]
    lattice = Lattice(lengths, targets.where(~wild, blank), target_lengths, blank)
    tokens, steps = lattice.scores(joint, encoder, predictor, ROWS, len(durations))
    heard = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for nodes in F.pad(wild, (1, 0))[lattice.token].nonzero()[:, 0].split(ROWS):
        logits = joint(encoder[0, lattice.frame[nodes]], predictor[0, lattice.token[nodes]])
        others = logits[:, : logits.shape[1] - len(durations)].to(tokens.dtype).log_softmax(-1) - PENALTY
        others[:, blank] = -torch.inf
        heard[nodes] = others.amax(1) > tokens[nodes, 0]
        tokens[nodes, 0] = tokens[nodes, 0].maximum(others.amax(1))
    tokens[F.pad(wild, (0, 1))[lattice.token], 1] = 0.0
    scores, arcs = lattice.arcs(tokens, steps, durations)
    weights, _ = by_diagonals(scores, lattice, arcs)
    first = len(weights) - lattice.frames - lattice.tokens
    score, nodes = _walk(weights[first:, :, 1:, 0].cpu().numpy(), arcs, lattice.frames, lattice.tokens)
    if score == -np.inf:
        return None
    log_probs = tokens[:, 1].view(lattice.frames, -1).tolist()
    written = [(frame, token, arc.frames) for frame, token, arc in nodes if arc.tokens]
    sounds = heard.view(lattice.frames, -1).tolist()
    spans = [(frame, frame + max(jump, 1)) for frame, _, jump in written]
    for i in wild.nonzero()[:, 0].tolist():
        if own := [frame for frame, token, arc in nodes if token == i + 1 and not arc.tokens and sounds[frame][token]]:
            spans[i] = own[0], own[-1] + 1
    return BestPath(score, spans, [log_probs[frame][token] for frame, token, _ in written])


def _walk(
    weights: np.ndarray, arcs: Sequence[Arc], frames: int, tokens: int
) -> tuple[float, list[tuple[int, int, Arc]]]:
    """Score of the best path, and frame, tokens written before and arc of each of its nodes. `weights` [D, A, U + 1]
    are the scores of the arcs that leave the nodes of each diagonal."""
    longest = max(arc.frames + arc.tokens for arc in arcs)
    ahead = np.full((len(weights) + longest + 1, tokens + 2), -np.inf)  # best score from each node to the end
    ahead[frames + tokens, tokens] = 0.0
    for n in range(len(weights) - 1, -1, -1):
        for i, (jump, step) in enumerate(arcs):
            np.maximum(ahead[n, :-1], weights[n, i] + ahead[n + jump + step, step : step + tokens + 1], ahead[n, :-1])
    nodes = []
    frame = token = 0
    while ahead[0, 0] != -np.inf and (frame, token) != (frames, tokens):
        n = frame + token
        ways = [weights[n, i, token] + ahead[n + jump + step, token + step] for i, (jump, step) in enumerate(arcs)]
        arc = arcs[int(np.argmax(ways))]
        nodes.append((frame, token, arc))
        frame, token = frame + arc.frames, token + arc.tokens
    return float(ahead[0, 0]), nodes
