"""Viterbi search for the best CTC path that spells a known text: exact, in batches, with bounded memory.

A path goes through the states blank, label 1, blank, label 2, ... blank; a blank may be left out between labels that
differ (Graves et al. 2006; the Viterbi form is that of Kürzinger et al. 2020, arXiv:2007.09127). Blanks and labels are
kept in two arrays, so that each step is a handful of vector operations on [batch, labels].

Short items go together, with one backpointer byte for each state and frame. Long ones go one by one: the forward pass
keeps the scores of every `BLOCK`-th frame only, and the way back computes each block again, for the states from which
the path can have come (at most one label a frame), with their backpointers. Past `BAND` labels, the forward pass
computes a band of labels that follows the best path so far, and is widened until the end of the text is reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stentor.losses.base import WILDCARD

CELLS = 48_000_000
"""Most states times frames whose backpointers are held at once: a byte each."""
BLOCK = 2048
"""Frames between the scores that are kept of a long item."""
BAND = 16384
"""Labels that are followed at a time in a long item: about 18 minutes of speech. Fewer labels than that: exact."""
_CHUNK = 64  # frames whose label scores are gathered at once
_WORST = -1e30  # stands for minus infinity: sums of it stay finite and lose against every real path


@dataclass(frozen=True)
class Path:
    """The best path of one item."""

    states: np.ndarray  # int64 [frames]: 2 * i + 1 in label i, an even number 2 * i in the blank before it
    score: float  # log-probability of the path

    def labels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """First frame of each of `count` labels, and the frame after its last: int64 [count] each."""
        first = np.searchsorted(self.states, 2 * np.arange(count) + 1, "left")
        return first, np.searchsorted(self.states, 2 * np.arange(count) + 1, "right")


def frames_needed(labels: Sequence[int] | np.ndarray) -> int:
    """Fewest frames that can spell the labels: one each, and a blank between equal neighbours."""
    row = np.asarray(labels)
    return len(row) + int(np.sum(~_skips(row)[1:]))


def with_wildcard(log_probs: Tensor, blank: int, penalty: float) -> Tensor:
    """The emissions [..., C] with a column more, [..., C + 1], for `WILDCARD`: the best class of the frame.

    Where that is blank, `penalty` (nats) is taken off, so that real silence is rather spelled as blank; elsewhere a
    tenth of it, so that the sound of a known neighbour stays the neighbour's.
    """
    others = log_probs - 0.1 * penalty
    others[..., blank] -= 0.9 * penalty
    return torch.cat([log_probs, others.max(-1, keepdim=True).values], -1)


@torch.no_grad()
def viterbi(emissions: Sequence[Tensor], labels: Sequence[Sequence[int]], blank: int = 0) -> list[Path | None]:
    """The best path of each item.

    `emissions`: log-probabilities [T, C] of each item, on one device (C may differ: columns that no label needs can be
    left out); `labels`: the classes to be spelled, without blanks; `WILDCARD` stands for the last column (see
    `with_wildcard`). None for an item with no labels or with fewer frames than `frames_needed`. Where paths are equally
    good, the one that stays longest where it ends wins.
    """
    paths: list[Path | None] = [None] * len(emissions)
    rows = [np.asarray(row, np.int64) for row in labels]
    fits = [i for i, row in enumerate(rows) if len(row) and frames_needed(row) <= len(emissions[i])]
    fits.sort(key=lambda i: (len(rows[i]), len(emissions[i])))
    batch: list[int] = []
    for i in fits:
        if len(emissions[i]) * (2 * len(rows[i]) + 1) > CELLS:
            paths[i] = long_path(emissions[i], rows[i], blank)
            continue
        frames = max(len(emissions[k]) for k in [*batch, i])
        if batch and (len(batch) + 1) * frames * (2 * len(rows[i]) + 1) > CELLS:
            _solve(batch, emissions, rows, blank, paths)
            batch = []
        batch.append(i)
    if batch:
        _solve(batch, emissions, rows, blank, paths)
    return paths


def _skips(row: np.ndarray) -> np.ndarray:
    """Whether each label may follow the one before without a blank: bool [L]. Two wildcards may be any two sounds."""
    may = np.zeros(len(row), bool)
    may[1:] = (row[1:] != row[:-1]) | (row[1:] == WILDCARD)
    return may


def _solve(
    batch: list[int], emissions: Sequence[Tensor], rows: list[np.ndarray], blank: int, paths: list[Path | None]
) -> None:
    """Fill in the paths of items that are short enough to go together."""
    device, classes = emissions[batch[0]].device, max(emissions[i].shape[1] for i in batch)
    lengths = np.array([len(emissions[i]) for i in batch])
    counts = np.array([len(rows[i]) for i in batch])
    size, frames, most = len(batch), int(lengths.max()), int(counts.max())
    padded = torch.zeros(frames, size, classes, device=device)
    targets = np.zeros((size, most), np.int64)
    may = np.zeros((size, most), bool)
    for k, i in enumerate(batch):
        width = emissions[i].shape[1]
        padded[: lengths[k], k, :width] = emissions[i]
        targets[k, : counts[k]] = rows[i] % width  # the wildcard, -1, becomes the last column
        may[k, : counts[k]] = _skips(rows[i])
    index = torch.from_numpy(targets).to(device)
    step = _Step(torch.from_numpy(may).to(device))
    # Which way each state was reached, in one byte: blanks [0, most], then labels; see `_Step`.
    back = torch.empty(frames, size, 2 * most + 1, dtype=torch.uint8, device=device)
    ends = torch.full((size, 2), _WORST, device=device)  # scores in the last label and in the blank after it
    last = torch.from_numpy(counts).to(device)[:, None]
    offset = torch.zeros(size, 1, device=device)
    closing: dict[int, list[int]] = {}
    for k, length in enumerate(lengths.tolist()):
        closing.setdefault(length - 1, []).append(k)
    for begin in range(0, frames, _CHUNK):
        part = padded[begin : begin + _CHUNK]
        label_scores = part.gather(2, index.expand(len(part), -1, -1))
        blank_scores = part[:, :, blank : blank + 1].contiguous()
        offset += step.rescale()
        for t in range(len(part)):
            step(blank_scores[t], label_scores[t], back[begin + t])
            if begin + t in closing:
                done = torch.tensor(closing[begin + t], device=device)
                final = step.labels[done].gather(1, last[done] - 1), step.blanks[done].gather(1, last[done])
                ends[done] = torch.cat(final, 1) + offset[done]
    scores, choice = (x.cpu().numpy() for x in ends.max(1))
    for k, states in enumerate(_trace(back.cpu().numpy(), lengths, counts, choice)):
        paths[batch[k]] = Path(states, float(scores[k]))


class _Step:
    """One frame of the recursion on `blanks` [B, L + 1] and `labels` [B, L], the best scores of paths that end there.

    Before the first frame a path can only be in the first blank, at no cost. Backpointers are bytes, blanks then
    labels [B, 2 L + 1]: for a blank, 1 when it was reached from the label before it; for a label, 0 when it was
    reached from itself, 1 from the blank before it, 2 or 3 from the label before.
    """

    def __init__(self, may_skip: Tensor):
        size, count = may_skip.shape
        self.skip = torch.where(may_skip, 0.0, _WORST)[:, 1:].contiguous()
        self.blanks = torch.full((size, count + 1), _WORST, device=may_skip.device)
        self.blanks[:, 0] = 0.0
        self.labels = torch.full((size, count), _WORST, device=may_skip.device)
        self._blanks, self._labels = torch.empty_like(self.blanks), torch.empty_like(self.labels)
        self._skipped = torch.empty_like(self.skip)
        self._far = torch.zeros_like(self.skip, dtype=torch.bool)

    def __call__(self, blank_scores: Tensor, label_scores: Tensor, back: Tensor | None = None) -> None:
        """Advance by a frame, with the log-probabilities of blank [B, 1] and labels [B, L]."""
        blanks, labels, count = self.blanks, self.labels, self.labels.shape[1]
        before = blanks[:, :-1]
        torch.add(labels[:, :-1], self.skip, out=self._skipped)
        if back is not None:
            back[:, 0] = 0
            torch.gt(labels, blanks[:, 1:], out=back[:, 1 : count + 1])
            torch.gt(before, labels, out=back[:, count + 1 :])
        torch.maximum(labels, before, out=self._labels)
        if back is not None:
            torch.gt(self._skipped, self._labels[:, 1:], out=self._far)
            back[:, count + 2 :].add_(self._far, alpha=2)
        torch.maximum(self._labels[:, 1:], self._skipped, out=self._labels[:, 1:])
        self._labels += label_scores
        torch.maximum(blanks[:, 1:], labels, out=self._blanks[:, 1:])
        self._blanks[:, 0] = blanks[:, 0]
        self._blanks += blank_scores
        self.blanks, self._blanks = self._blanks, blanks
        self.labels, self._labels = self._labels, labels

    def rescale(self) -> Tensor:
        """Take the best score off all, so that float32 tells paths apart however long they are; answers it, [B, 1]."""
        best = torch.cat([self.blanks, self.labels], 1).amax(1, keepdim=True)
        self.blanks -= best
        self.labels -= best
        return best


def _trace(back: np.ndarray, lengths: np.ndarray, counts: np.ndarray, choice: np.ndarray) -> list[np.ndarray]:
    """States of each item from backpointers [T, B, 2 L + 1]; `choice` is 1 where the path ends in the last blank."""
    frames, size, width = back.shape
    most = width // 2
    states = np.zeros((frames, size), np.int64)
    state = 2 * counts - 1 + choice
    rows = np.arange(size)
    for t in range(frames - 1, -1, -1):
        states[t] = state
        odd = state & 1
        way = back[t, rows, (state >> 1) + odd * (most + 1)]
        state = state - np.minimum(way, 1 + odd) * (t < lengths)
    return [states[:length, k] for k, length in enumerate(lengths)]


def long_path(emissions: Tensor, labels: np.ndarray, blank: int = 0, block: int = BLOCK, band: int = BAND) -> Path:
    """The best path of one long item, whose labels must fit in its frames. `emissions` [T, C], see `viterbi`.

    Memory: a score for each label in the band, every `block` frames, and `block` squared bytes.
    """
    frames, count = len(emissions), len(labels)
    index = torch.from_numpy(labels % emissions.shape[1]).to(emissions.device)
    may = torch.from_numpy(_skips(labels)).to(emissions.device)
    while True:
        checkpoints, scores = _forward(emissions, index, may, blank, block, band)
        choice = int(scores[1] > scores[0])
        if band >= count or scores[choice] > _WORST / 2:
            break
        band *= 2
    states = np.zeros(frames, np.int64)
    state = 2 * count - 1 + choice
    for number in range(len(checkpoints) - 1, -1, -1):
        begin, end = number * block, min(frames, (number + 1) * block)
        state = _back(checkpoints[number], emissions[begin:end], index, may, blank, state, states[begin:end])
    return Path(states, float(scores[choice]))


@dataclass
class _Checkpoint:
    """The scores before the first frame of a block: blanks [labels + 1] and labels [labels] from `first` on."""

    first: int
    blanks: Tensor
    labels: Tensor


def _forward(
    emissions: Tensor, index: Tensor, may: Tensor, blank: int, block: int, band: int
) -> tuple[list[_Checkpoint], list[float]]:
    """The scores before each block, and those of the last label and the last blank at the end."""
    frames, count = len(emissions), len(index)
    first, offset = 0, 0.0
    checkpoints: list[_Checkpoint] = []
    step = _Step(may[None, : min(band, count)])
    for begin in range(0, frames, block):
        if count > band:
            best = first + int(torch.maximum(step.labels, step.blanks[:, 1:]).argmax())
            to = max(first, min(best - band // 2, count - band))
            if to > first:
                step, first = _moved(step, may, first, to, band), to
        checkpoints.append(_Checkpoint(first, step.blanks[0].clone(), step.labels[0].clone()))
        window = index[first : first + band]
        for at in range(begin, min(frames, begin + block), _CHUNK):
            part = emissions[at : min(at + _CHUNK, begin + block)]
            label_scores, blank_scores = part.index_select(1, window), part[:, blank].contiguous()
            offset += float(step.rescale())
            for t in range(len(part)):
                step(blank_scores[t : t + 1, None], label_scores[t : t + 1])
    if first + step.labels.shape[1] < count:
        return checkpoints, [_WORST, _WORST]
    return checkpoints, [float(step.labels[0, -1]) + offset, float(step.blanks[0, -1]) + offset]


def _moved(step: _Step, may: Tensor, first: int, to: int, band: int) -> _Step:
    """The recursion on the labels from `to` on. What it held of earlier labels is given up."""
    moved = _Step(may[None, to : to + band])
    by = to - first
    moved.blanks[:] = _WORST
    moved.blanks[:, : band + 1 - by] = step.blanks[:, by:]
    moved.labels[:, : band - by] = step.labels[:, by:]
    return moved


def _back(
    checkpoint: _Checkpoint, part: Tensor, index: Tensor, may: Tensor, blank: int, state: int, states: np.ndarray
) -> int:
    """Fill in the states of a block that ends in `state`; answers the state before its first frame.

    A path gains at most one label a frame, so only the labels that lie that near are computed again.
    """
    frames = len(part)
    last = (state + 1) // 2  # labels up to the one that the path ends in or after
    first = max(checkpoint.first, last - frames - 1)
    step = _Step(may[None, first:last])
    at = first - checkpoint.first
    step.blanks[0] = checkpoint.blanks[at : at + last - first + 1]
    step.labels[0] = checkpoint.labels[at : at + last - first]
    window = index[first:last]
    back = torch.empty(frames, 1, 2 * (last - first) + 1, dtype=torch.uint8, device=part.device)
    for begin in range(0, frames, _CHUNK):
        piece = part[begin : begin + _CHUNK]
        label_scores, blank_scores = piece.index_select(1, window), piece[:, blank].contiguous()
        for t in range(len(piece)):
            step(blank_scores[t : t + 1, None], label_scores[t : t + 1], back[begin + t])
    ways = back[:, 0].cpu().numpy()
    state -= 2 * first
    count = last - first
    for t in range(frames - 1, -1, -1):
        states[t] = state + 2 * first
        odd = state & 1
        state -= min(int(ways[t, (state >> 1) + odd * (count + 1)]), 1 + odd)
    return state + 2 * first
