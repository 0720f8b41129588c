"""Decoding of a CTC head: the likeliest path, or prefix beam search (Graves et al. 2006; Hannun et al. 2014)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from torch import Tensor

from stentor.models.contracts import GenerationOutput
from stentor.models.decoding.bias import START, Bias
from stentor.models.decoding.search import ranked
from stentor.models.decoding.viterbi import viterbi

BIASED = 8
"""Least beams where phrases are favoured: what is favoured shows only after some frames."""


def decode(
    log_probs: Tensor, frames: Tensor, blank: int, beams: int = 1, bias: Bias | None = None, num_answers: int = 1
) -> list[GenerationOutput]:
    """Classes of each item without repeats and blanks, each with its log-probability at the surest frame that the
    likeliest path has it in, from log-probabilities [B, T, V] of which items have `frames` [B]. Greedily, or with
    `beams` > 1 the prefix whose paths together are likeliest (with `num_answers` > 1 the best `beams` are its
    `alternatives`); `bias` favours phrases and takes `BIASED` beams at least."""
    if beams == 1 and bias is None:
        values, path = log_probs.max(-1)
        rows = zip(path.tolist(), values.tolist(), frames.tolist())
        return [merge(classes[:n], values[:n], blank) for classes, values, n in rows]
    beams = max(beams, BIASED) if bias else beams
    silence = log_probs.new_full(log_probs.shape[-1:], -inf)
    silence[blank] = 0.0
    log_probs = log_probs.where(~log_probs.isnan().any(-1, keepdim=True), silence)  # a frame that says nothing
    items = [item[:n] for item, n in zip(log_probs, frames.tolist())]
    rankings = [_search(item, blank, beams, bias)[: 1 if num_answers == 1 else None] for item in items]
    certainties = _values(items, rankings, blank)
    answers = [[GenerationOutput(ids, next(certainties)) for ids in ranking] for ranking in rankings]
    return [few[0] if num_answers == 1 else ranked(few) for few in answers]


def merge(path: Sequence[int], values: Sequence[float], blank: int) -> GenerationOutput:
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
    return GenerationOutput(ids, best)


@dataclass
class _Prefix:
    """Prefix that was written up to a frame: a node of a tree, of which `classes` leads to the root."""

    parent: _Prefix | None
    last: int
    """Its last class."""
    state: int
    """Where it is in what is favoured."""
    bonus: float
    """Its bonus there."""
    children: dict[int, _Prefix] = field(default_factory=dict)

    def classes(self) -> list[int]:
        ids: list[int] = []
        node = self
        while node.parent is not None:
            ids.append(node.last)
            node = node.parent
        return ids[::-1]


class _Beam:
    """The best prefixes at a frame, with the log-probability of all paths of each that end in blank, and of those that
    end in its last class."""

    def __init__(self, blank: int, classes: int, bias: Bias | None, like: Tensor):
        self.blank, self.bias, self.like = blank, bias, like
        self.prefixes = [_Prefix(None, blank, START, 0.0)]
        self.ends_in_blank, self.ends_in_last = np.zeros(1), np.full(1, -inf)
        self._rows: dict[int, np.ndarray] = {}  # what each class earns after a state
        self._nothing = np.zeros(classes)

    def advance(self, frame: np.ndarray, beams: int) -> None:
        """Read a frame [V], and keep the best `beams` prefixes."""
        last = np.array([prefix.last for prefix in self.prefixes])
        bonus = np.array([prefix.bonus for prefix in self.prefixes])
        earned = np.stack([self._earned(prefix.state) for prefix in self.prefixes])
        total = np.logaddexp(self.ends_in_blank, self.ends_in_last)
        longer = np.repeat(total[:, None], len(frame), 1)
        longer[np.arange(len(last)), last] = self.ends_in_blank  # a class twice wants a blank between
        longer += frame
        longer[:, self.blank] = -inf
        in_blank, in_last = total + frame[self.blank], self.ends_in_last + frame[last]
        place = {id(prefix): i for i, prefix in enumerate(self.prefixes)}
        for i, prefix in enumerate(self.prefixes):
            if (source := place.get(id(prefix.parent))) is not None:  # longer by this class, it is this prefix
                in_last[i] = np.logaddexp(in_last[i], longer[source, prefix.last])
                longer[source, prefix.last] = -inf
        scores = np.concatenate([np.logaddexp(in_blank, in_last) + bonus, (longer + bonus[:, None] + earned).ravel()])
        best = np.argpartition(-scores, min(beams, len(scores)) - 1)[:beams]
        best = best[np.argsort(-scores[best], kind="stable")]
        best = best[scores[best] > -inf]
        stays, (sources, classes) = best < len(last), np.divmod(best - len(last), len(frame))
        chosen = np.where(stays, best, 0)
        self.ends_in_blank = np.where(stays, in_blank[chosen], -inf)
        self.ends_in_last = np.where(stays, in_last[chosen], longer[sources, classes])
        following = [
            self.prefixes[i] if stay else self._child(self.prefixes[source], int(c))
            for i, stay, source, c in zip(best, stays, sources, classes)
        ]
        self.prefixes = following

    def ranking(self) -> list[_Prefix]:
        """The prefixes, the best one first, without what those lose that end here."""
        lost = [self.bias.withdrawn(prefix.state) if self.bias else 0.0 for prefix in self.prefixes]
        bonus = np.array([prefix.bonus for prefix in self.prefixes]) - lost
        scores = np.logaddexp(self.ends_in_blank, self.ends_in_last) + bonus
        return [self.prefixes[i] for i in np.argsort(-scores, kind="stable")]

    def _earned(self, state: int) -> np.ndarray:
        if self.bias is None:
            return self._nothing
        if state not in self._rows:
            self._rows[state] = self.bias.rows([state], self.like)[0].cpu().double().numpy()
        return self._rows[state]

    def _child(self, parent: _Prefix, c: int) -> _Prefix:
        child = parent.children.get(c)
        if child is None:
            state = self.bias.advance(parent.state, c) if self.bias else START
            child = _Prefix(parent, c, state, parent.bonus + float(self._earned(parent.state)[c]))
            parent.children[c] = child
        return child


def _search(log_probs: Tensor, blank: int, beams: int, bias: Bias | None) -> list[list[int]]:
    """The best prefixes of log-probabilities [T, V], the likeliest first."""
    beam = _Beam(blank, log_probs.shape[1], bias, log_probs[:1])
    for frame in log_probs.cpu().double().numpy():
        beam.advance(frame, beams)
    return [prefix.classes() for prefix in beam.ranking()]


def _values(items: Sequence[Tensor], ranked: Sequence[Sequence[list[int]]], blank: int) -> Iterator[list[float]]:
    """Results of `merge` for a greedy path, of the best path through each item [T, V] for each of its prefixes.

    The search itself cannot tell: a prefix begins before the frame that is surest of it, and has many paths.
    """
    emissions: list[Tensor] = []
    labels: list[list[int]] = []
    for item, prefixes in zip(items, ranked):
        needed = [blank, *sorted({c for ids in prefixes for c in ids})]
        column = {c: k for k, c in enumerate(needed)}
        emissions += [item[:, needed].float()] * len(prefixes)
        labels += [[column[c] for c in ids] for ids in prefixes]
    for scores, columns, path in zip(emissions, labels, viterbi(emissions, labels)):
        spans = zip(*path.labels(len(columns))) if path is not None else ()  # None: no classes
        yield [float(scores[first:end, c].max()) for c, (first, end) in zip(columns, spans)]
