"""Greedy decoding of transducers in batches: from label to label, as NeMo's label looping (Bataev et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stentor.models.transducer.modeling import TransducerModel

State = tuple[Tensor, ...]
"""What a predictor remembers: tensors [layers, B, width]."""
AHEAD = 8
"""Frames that the joint looks at in one call: until a token is written, what was written before stays the same."""


@dataclass
class Path:
    """What was written for one item, and where in its frames decoding is."""

    frames: int
    limit: int
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """The frame of each token and the frame after it; with durations the one that it jumps to."""
    at: int = 0
    at_frame: int = 0
    """Tokens written at the present frame."""

    @property
    def going(self) -> bool:
        return self.at < self.frames and len(self.ids) < self.limit

    def read(self, tokens: Sequence[int], jumps: Sequence[int], blank: int, max_symbols: int) -> int | None:
        """Go along the best tokens of the next frames and the frames they jump; the place of the first that is not
        blank among them, with its token noted down, None when there is none."""
        first = self.at
        while self.going and self.at - first < len(tokens):
            place = self.at - first
            if tokens[place] == blank:
                self._jump(max(jumps[place], 1))
                continue
            self.ids.append(tokens[place])
            self.spans.append((self.at, self.at + max(jumps[place], 1)))
            self.at_frame += 1
            self._jump(jumps[place] or int(self.at_frame >= max_symbols))
            return place
        return None

    def _jump(self, frames: int) -> None:
        self.at += frames
        self.at_frame = 0 if frames else self.at_frame


def greedy(model: TransducerModel, states: Tensor, frames: Tensor, limits: Sequence[int]) -> list[Path]:
    """The best token at each frame, for encoded frames [B, T, J] of which items have `frames` [B]; at most `limits`
    tokens for each. All items go on to their next token together, and an item writes what it would write alone."""
    paths = [Path(n, limit) for n, limit in zip(frames.tolist(), limits, strict=True)]
    follow(model, states, paths, *start(model, len(paths), states.device))
    return paths


def start(model: TransducerModel, rows: int, device: torch.device) -> tuple[Tensor, State]:
    """What the predictor says before the first token of so many items, [rows, 1, J], and its state."""
    return model.predict(torch.full((rows, 1), model.blank, device=device), None)


def follow(model: TransducerModel, states: Tensor, paths: Sequence[Path], output: Tensor, state: State) -> None:
    """Go on with paths along their encoded frames [B, T, J], from what the predictor said behind their last tokens,
    [B, 1, J], and its state; all are changed in place."""
    device, size = states.device, states.shape[1]
    jumps = None if model.durations is None else torch.tensor(model.durations, device=device)
    ahead = torch.arange(AHEAD, device=device)
    while live := [row for row, path in enumerate(paths) if path.going]:
        rows = torch.tensor(live, device=device)
        index = torch.tensor([paths[row].at for row in live], device=device)[:, None] + ahead
        logits = model.joint(states[rows[:, None], index.clamp(max=size - 1)], output[rows]).float()
        tokens = logits if jumps is None else logits[..., : -len(jumps)]
        log_probs, best = tokens.log_softmax(-1).max(-1)
        if jumps is None:
            steps = (best == model.blank).long()
        else:
            steps = jumps[logits[..., -len(jumps) :].argmax(-1)]
        written = []
        for row, probabilities, ids, jump in zip(live, log_probs.tolist(), best.tolist(), steps.tolist()):
            place = paths[row].read(ids, jump, model.blank, model.max_symbols)
            if place is not None:
                paths[row].log_probs.append(probabilities[place])
                written.append(row)
        if written:
            rows = torch.tensor(written, device=device)
            last = torch.tensor([[paths[row].ids[-1]] for row in written], device=device)
            output[rows], after = model.predict(last, tuple(part[:, rows] for part in state))
            for part, new in zip(state, after):
                part[:, rows] = new
