"""Decoding of a CTC head: the likeliest path, or prefix beam search (Graves et al. 2006; Hannun et al. 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log1p

from torch import Tensor

from stentor.models.biasing import START, Bias
from stentor.models.decoding import Result

MARGIN = 12.0
"""Classes whose log-probability is so much below that of the frame's best one go on from no prefix."""
BIASED = 8
"""Least beams where phrases are favoured: what is favoured shows only after some frames."""


def decode(
    log_probs: Tensor,
    frames: Tensor,
    blank: int,
    beams: int = 1,
    bias: Bias | None = None,
    best: list[list[Result]] | None = None,
) -> list[Result]:
    """Classes of each item without repeats and blanks, each with the log-probability at the frame that is surest of it,
    from log-probabilities [B, T, V] of which items have `frames` [B]. Greedily, or with `beams` > 1 the prefix whose
    paths together are likeliest (an empty list as `best` is filled with the best `beams` of each item); `bias` favours
    phrases and takes `BIASED` beams at least."""
    if beams == 1 and bias is None:
        values, path = log_probs.max(-1)
        rows = zip(path.tolist(), values.tolist(), frames.tolist())
        return [merge(classes[:n], values[:n], blank) for classes, values, n in rows]
    beams = max(beams, BIASED) if bias else beams
    ranked = [_search(item[:n], blank, beams, bias) for item, n in zip(log_probs, frames.tolist())]
    if best is not None:
        best += ranked
    return [ranking[0] for ranking in ranked]


def merge(path: Sequence[int], values: Sequence[float], blank: int) -> Result:
    """A path of one class per frame without repeats and blanks, with the largest value of each run."""
    ids: list[int] = []
    best: list[float] = []
    last = blank
    for c, value in zip(path, values):
        if c == last and c != blank:
            best[-1] = max(best[-1], value)
        elif c != blank:
            ids.append(c)
            best.append(value)
        last = c
    return ids, best


@dataclass
class _Prefix:
    """What was written up to a frame."""

    values: tuple[float, ...] = ()
    """The largest log-probability of each class."""
    state: int = START
    """Where it is in the favoured phrases, or was before its last class while that is `unread`."""
    unread: bool = False
    bonus: float = 0.0
    """What they earned."""
    blank: float = -inf
    """Log-probability of all its paths that end in blank."""
    label: float = -inf
    """That of those which end in its last class."""

    @property
    def total(self) -> float:
        return _add(self.blank, self.label)


def _search(log_probs: Tensor, blank: int, beams: int, bias: Bias | None) -> list[Result]:
    """The best prefixes, the likeliest first."""
    prefixes: dict[tuple[int, ...], _Prefix] = {(): _Prefix(blank=0.0)}
    best, classes = log_probs.topk(min(4 * beams, log_probs.shape[1]))
    bonuses: dict[int, list[float]] = {}  # of each class, after each state
    for frame, row, candidates in zip(log_probs.tolist(), best.tolist(), classes.tolist()):
        following: dict[tuple[int, ...], _Prefix] = {}
        for ids, prefix in prefixes.items():
            if bias and prefix.unread:
                prefix.state, prefix.unread = bias.advance(prefix.state, ids[-1]), False
            if bias and prefix.state not in bonuses:
                bonuses[prefix.state] = bias.rows([prefix.state], log_probs)[0].tolist()
            same = following.setdefault(ids, _Prefix(prefix.values, prefix.state, False, prefix.bonus))
            same.state, same.unread = prefix.state, False
            same.blank = _add(same.blank, prefix.total + frame[blank])
            if ids:
                again = frame[ids[-1]]
                same.label = _add(same.label, prefix.label + again)
                same.values = (*prefix.values[:-1], max(prefix.values[-1], again))
            for value, c in zip(row, candidates):
                before = prefix.blank if ids and c == ids[-1] else prefix.total
                if c == blank or before == -inf or value < row[0] - MARGIN:
                    continue
                longer = following.get((*ids, c))
                if longer is None:
                    longer = _Prefix((*prefix.values, value), prefix.state, True, prefix.bonus)
                    if bias:
                        longer.bonus += bonuses[prefix.state][c]
                    following[(*ids, c)] = longer
                longer.label = _add(longer.label, before + value)
        ranked = sorted(following.items(), key=lambda entry: -entry[1].total - entry[1].bonus)
        prefixes = dict(ranked[:beams])

    def final(ids: tuple[int, ...]) -> float:
        prefix = prefixes[ids]
        if bias is None:
            return prefix.total
        state = bias.advance(prefix.state, ids[-1]) if prefix.unread else prefix.state
        return prefix.total + prefix.bonus - bias.withdrawn(state)

    return [(list(ids), list(prefixes[ids].values)) for ids in sorted(prefixes, key=final, reverse=True)]


def _add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -inf else high + log1p(exp(low - high))
