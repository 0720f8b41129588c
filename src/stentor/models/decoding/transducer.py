"""Decoding of transducers in batches, for RNN-T and TDT alike.

Greedily: from label to label, as NeMo's label looping (Bataev et al. 2024). Beam search: frame by frame (Graves 2012).
A token with its jump is an arc: blank and the durations of TDT lead to a later frame, a token without a jump leads on
at the same one. Hypotheses are only compared at the same frame, and those that wrote the same are added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log1p
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stentor.models.decoding.bias import START, Bias, advance, favour

State = tuple[Tensor, ...]
"""State of a predictor: tensors [layers, B, width]."""
AHEAD = 8
"""Frames that the joint looks at in one call: until a token is written, what was written before stays the same."""
MARGIN = 12.0
"""Hypotheses whose log-probability is so much below the best one are not followed."""


class TransducerNetwork(Protocol):
    """Interface of a transducer for decoding."""

    blank: int
    durations: Sequence[int] | None
    """Frames that a token and its durations jump (TDT), whose logits follow those of the tokens. None: RNN-T."""
    max_symbols: int
    """Most tokens at one frame."""
    joint: Any
    """`joint(encoder [..., J], predictor [..., J])` gives logits [..., V]; the two are broadcast."""

    def predict(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Outputs [B, U, J] after each of the tokens [B, U], and the state behind them."""


@dataclass
class Path:
    """Tokens of one item, and the frame that decoding has reached."""

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


def greedy(model: TransducerNetwork, states: Tensor, frames: Tensor, limits: Sequence[int]) -> list[Path]:
    """The best token at each frame, for encoded frames [B, T, J] of which items have `frames` [B]; at most `limits`
    tokens for each. All items advance to their next token together, and an item writes what it would write alone."""
    paths = [Path(n, limit) for n, limit in zip(frames.tolist(), limits, strict=True)]
    follow(model, states, paths, *start(model, len(paths), states.device))
    return paths


def start(model: TransducerNetwork, rows: int, device: torch.device) -> tuple[Tensor, State]:
    """Output of the predictor before the first token of this many items, [rows, 1, J], and its state."""
    return model.predict(torch.full((rows, 1), model.blank, device=device), None)


def follow(model: TransducerNetwork, states: Tensor, paths: Sequence[Path], output: Tensor, state: State) -> None:
    """Extend paths along their encoded frames [B, T, J], from the predictor's output after their last tokens,
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


# Beam search


@dataclass
class Hypothesis:
    """Hypothesis up to a frame, with the times of its most likely path."""

    score: float
    """Log-probability of all ways to it that were followed."""
    best: float
    """Log-probability of the likeliest one."""
    row: int
    """Row of the predictor's output after its tokens; while it is `unread`, after all but the last."""
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Log-probability of each token at its frame."""
    spans: tuple[tuple[int, int], ...] = ()
    """As `Path.spans`."""
    unread: bool = False
    phrase: int = START
    """Where it is in the favoured phrases. What they earned is part of the scores."""


class Arc(NamedTuple):
    """A way on from a frame."""

    token: int
    jump: int
    """Frames to the next one."""
    log_prob: float
    """Log-probability of the token."""
    cost: float
    """Log-probability of the token with its jump, and its bonus."""


class Item:
    """Search in one item: hypotheses at the frames ahead by their tokens, and those that are at the present one."""

    def __init__(self, frames: int, limit: int, beams: int, bias: Bias | None = None):
        self.frames, self.limit, self.beams, self.bias = frames, limit, beams, bias
        self.ahead: dict[int, dict[tuple[int, ...], Hypothesis]] = {0: {(): Hypothesis(0.0, 0.0, 0)}}
        self.present: list[Hypothesis] = []

    def waiting(self) -> list[Hypothesis]:
        """All hypotheses at the frames ahead, the best ones first."""
        return sorted((h for beam in self.ahead.values() for h in beam.values()), key=_loss)

    def go_to(self, frame: int) -> None:
        """Go to a frame with the best hypotheses that lead to it."""
        floor = self.waiting()[0].score - MARGIN
        arrived = self.ahead.pop(frame, {}).values() if frame < self.frames else ()
        self.present = sorted((h for h in arrived if h.score > floor), key=_loss)[: self.beams]

    def follow(self, h: Hypothesis, arc: Arc, frame: int, blank: int) -> Hypothesis | None:
        """Lead a hypothesis along an arc; it is returned where it stays at the frame."""
        score, best = h.score + arc.cost, h.best + arc.cost
        if arc.token == blank:
            self._add(replace(h, score=score, best=best), frame + max(arc.jump, 1))
        elif len(h.ids) < self.limit:
            spans = (*h.spans, (frame, frame + max(arc.jump, 1)))
            ids, log_probs = (*h.ids, arc.token), (*h.log_probs, arc.log_prob)
            h = Hypothesis(score, best, h.row, ids, log_probs, spans, True, advance(self.bias, h.phrase, arc.token))
            if not arc.jump:
                return h
            self._add(h, frame + arc.jump)
        return None

    def _add(self, h: Hypothesis, frame: int) -> None:
        """Put a hypothesis at a later frame, together with the one that wrote the same."""
        beam = self.ahead.setdefault(min(frame, self.frames), {})
        other = beam.get(h.ids)
        if other is not None:
            score = max(h.score, other.score) + log1p(exp(-abs(h.score - other.score)))
            likelier, read = h if h.best > other.best else other, other if h.unread else h
            h = replace(likelier, score=score, row=read.row, unread=read.unread)
        beam[h.ids] = h

    def stay(self, written: list[Hypothesis]) -> None:
        """Follow the best that wrote at the present frame and stay there, as far as they are above the best that left
        it: what comes after can only cost."""
        waiting = self.waiting()
        floor = waiting[0].score - MARGIN
        if len(waiting) >= self.beams:
            floor = max(floor, waiting[self.beams - 1].score)
        self.present = sorted((h for h in written if h.score > floor), key=_loss)[: self.beams]


def _loss(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


class Memory:
    """Output and state of the predictor after the tokens of hypotheses, a row for each."""

    def __init__(self, model: TransducerNetwork, device: torch.device):
        self.model = model
        self.outputs, self.state = start(model, 1, device)

    def read(self, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Outputs [N, J] after the tokens of hypotheses."""
        device = self.outputs.device
        unread = [h for h in hypotheses if h.unread]
        if unread:
            rows = torch.tensor([h.row for h in unread], device=device)
            tokens = torch.tensor([[h.ids[-1]] for h in unread], device=device)
            outputs, state = self.model.predict(tokens, tuple(part[:, rows] for part in self.state))
            for row, h in enumerate(unread, len(self.outputs)):
                h.row, h.unread = row, False
            self.outputs = torch.cat([self.outputs, outputs])
            self.state = tuple(torch.cat(parts, 1) for parts in zip(self.state, state, strict=True))
        return self.outputs[torch.tensor([h.row for h in hypotheses], device=device), 0]

    def keep(self, hypotheses: Sequence[Hypothesis]) -> None:
        """Forget what none of the hypotheses needs."""
        used = sorted({h.row for h in hypotheses})
        rows, place = torch.tensor(used, device=self.outputs.device), {row: i for i, row in enumerate(used)}
        self.outputs, self.state = self.outputs[rows], tuple(part[:, rows] for part in self.state)
        for h in hypotheses:
            h.row = place[h.row]


@torch.no_grad()
def search(
    model: TransducerNetwork,
    states: Tensor,
    frames: Tensor,
    limits: Sequence[int],
    beams: int,
    bias: Bias | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses, `beams` at most, for each item of encoded frames [B, T, J], of which items have `frames`
    [B]; at most `limits` tokens for each, `beams` hypotheses followed. An item gets what it would get alone. `bias`
    favours phrases."""
    items = [Item(n, limit, beams, bias) for n, limit in zip(frames.tolist(), limits, strict=True)]
    memory = Memory(model, states.device)
    for frame in range(states.shape[1]):
        for item in items:
            item.go_to(frame)
        for place in range(model.max_symbols + 1):
            live = [(i, h) for i, item in enumerate(items) for h in item.present]
            if not live:
                break
            rows = torch.tensor([i for i, _ in live], device=states.device)
            logits = model.joint(states[rows, frame], memory.read([h for _, h in live])).float()
            written: list[list[Hypothesis]] = [[] for _ in items]
            following = _arcs(model, logits, beams, bias, [h.phrase for _, h in live])
            for (i, h), arcs in zip(live, following, strict=True):
                full = place == model.max_symbols  # only blank leads on from here
                ways = [arc for arc in arcs if arc.token == model.blank or not full]
                followed = [items[i].follow(h, arc, frame, model.blank) for arc in ways]
                written[i] += [h for h in followed if h is not None]
            for item, hypotheses in zip(items, written):
                item.stay(hypotheses)
        memory.keep([h for item in items for h in item.waiting()])

    def loss(h: Hypothesis) -> float:
        return bias.withdrawn(h.phrase) - h.score if bias else -h.score

    return [sorted(item.waiting(), key=loss)[:beams] for item in items]


def _arcs(
    model: TransducerNetwork, logits: Tensor, beams: int, bias: Bias | None, states: Sequence[int]
) -> list[list[Arc]]:
    """Candidates of each row of logits [N, V], with durations [N, V + D]: blank and the best tokens, each with its
    jumps. `states` are those of the rows in the favoured phrases."""
    jumps = len(model.durations or ())
    tokens = logits[:, : logits.shape[1] - jumps].log_softmax(-1)
    favoured = favour(tokens, bias, states).clone()
    favoured[:, model.blank] = -inf
    _, ids = favoured.topk(min(beams, tokens.shape[1] - 1), dim=-1)
    favoured[:, model.blank] = tokens[:, model.blank]
    ids = torch.cat([torch.full_like(ids[:, :1], model.blank), ids], 1)
    rows = zip(ids.tolist(), tokens.gather(1, ids).tolist(), favoured.gather(1, ids).tolist())
    if not jumps:
        return [[Arc(i, int(i == model.blank), p, cost) for i, p, cost in zip(*row)] for row in rows]
    costs = logits[:, -jumps:].log_softmax(-1).tolist()
    return [
        [Arc(i, jump, p, c + cost) for i, p, c in zip(*row) for jump, cost in zip(model.durations or (), of_jumps)]
        for row, of_jumps in zip(rows, costs)
    ]
