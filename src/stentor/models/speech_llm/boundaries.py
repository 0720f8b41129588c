"""Word boundaries: the aligner's scores over grid points, and their decoding to boundaries in order."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.models.encoders.encode import mask

LOW = -1e4
"""Score of what cannot be: padding never gets probability, and no infinity meets another."""

SHORTEST = 0.05
"""Seconds that a word lasts at least. Of 17,717 silver words of two letters or more, 4 are shorter; of those of one
letter ("a") a quarter are, by 0.01 to 0.02 s."""


@dataclass
class Scores:
    """Scores of a batch of texts and clips; padding has the score `LOW`."""

    start: Tensor
    """Log-probability that a word starts at a grid point [B, W, T]; a distribution over the points."""
    end: Tensor
    """The same of its end."""
    inside: Tensor | None
    """Score of each word, and last of no word, at each grid point [B, W + 1, T]; None with slots."""
    words: Tensor
    """True at words, bool [B, W]."""
    points: Tensor
    """Grid points of each clip [B]; the last one is where the clip ends."""


def decode(scores: Scores, evidence: float = 0.1, shortest: int = 1) -> tuple[Tensor, Tensor]:
    """The most likely start and end of all words, as grid points [B, W], with start + shortest <= end <= next start.

    Exact dynamic programming, one word at a time over all points at once. A path's score is the sum of its boundaries'
    log-probabilities and, `evidence` times, how much more each point inside a word looks like that word than like
    silence. Words of clips that are too short for `shortest` points each may be shorter; items with more words than fit
    come out without meaning.
    """
    size, count = scores.start.shape[2], scores.start.shape[1]
    audible = mask(scores.points, size)
    ratio = torch.zeros_like(scores.start)
    if scores.inside is not None:
        shares = scores.inside.log_softmax(1)
        ratio = (shares[:, :-1] - shares[:, -1:]).clamp(-20, 20) * evidence * audible[:, None]
    gained = F.pad(ratio.cumsum(-1), (1, 0))[..., :-1]  # of the points before each one
    room = (scores.points - 1) // scores.words.sum(1).clamp(min=1)
    # The latest start of a word that ends at each point.
    latest = torch.arange(size, device=room.device) - room.clamp(1, shortest)[:, None]
    early, latest = latest < 0, latest.clamp(min=0)
    best = torch.zeros_like(scores.start[:, 0])
    begun, ended = [], []
    for w in range(count):
        opened, source = (best + scores.start[:, w] - gained[:, w]).cummax(-1)
        opened = opened.gather(1, latest).masked_fill(early, LOW * count * 4)
        begun.append(source.gather(1, latest))
        best, source = (opened + gained[:, w] + scores.end[:, w]).cummax(-1)
        ended.append(source)
    at = (scores.points - 1)[:, None]
    starts = torch.zeros_like(scores.start[..., 0], dtype=torch.long)
    ends = starts.clone()
    for w in reversed(range(count)):
        end = ended[w].gather(1, at)
        start = begun[w].gather(1, end)
        starts[:, w : w + 1], ends[:, w : w + 1] = start, end
        at = torch.where(scores.words[:, w : w + 1], start, at)
    return starts, ends


def repair(scores: Scores) -> tuple[Tensor, Tensor]:
    """Each slot's most likely grid point [B, W] (start, end); those outside the longest increasing subsequence are put
    evenly between their neighbours inside it."""
    best = torch.stack([scores.start.argmax(-1), scores.end.argmax(-1)], -1)
    for row, words, points in zip(best, scores.words.sum(1).tolist(), scores.points.tolist()):
        slots = row[:words].flatten().tolist()
        row[:words] = torch.tensor(increasing(slots, points - 1), device=row.device).view(-1, 2)
    return best[..., 0], best[..., 1]


def increasing(values: list[int], last: int) -> list[int]:
    """The values with the fewest changed so that none is below the one before, within 0 to `last`."""
    tails: list[int] = []  # index of the smallest value that ends a subsequence of each length
    before: list[int] = []
    for i, value in enumerate(values):
        length = bisect_right([values[t] for t in tails], value)
        before.append(tails[length - 1] if length else -1)
        tails[length : length + 1] = [i]
    longest, i = [], tails[-1] if tails else -1
    while i >= 0:
        longest.append(i)
        i = before[i]
    known = [(-1, 0), *((i, values[i]) for i in reversed(longest)), (len(values), last)]
    out = list(values)
    for (i, low), (j, high) in pairwise(known):
        for k in range(i + 1, j):
            out[k] = round(low + (high - low) * (k - i) / (j - i))
    return out


def refine(probabilities: Tensor, chosen: Tensor, reach: int = 2) -> tuple[Tensor, Tensor]:
    """Boundaries between the grid points [B, W]: the centroid of the probability [B, W, T] within `reach` of the chosen
    point, and the probability that lies there."""
    offsets = torch.arange(-reach, reach + 1, device=chosen.device)
    near = F.pad(probabilities, (reach, reach)).gather(2, chosen[..., None] + reach + offsets)
    total = near.sum(-1)
    shift = (near * offsets).sum(-1) / total.clamp(min=1e-9)
    return chosen + shift.clamp(-1, 1), total.clamp(max=1.0)
