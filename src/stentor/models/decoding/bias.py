"""Biasing: a trie over tokens that favours listed phrases while a model writes.

Each token that continues a phrase earns a bonus. In a search over hypotheses a phrase that breaks off loses what it
earned, but for a phrase within it that was written out (Aho and Corasick 1975, as in icefall's context graph). Greedy
decoding takes nothing back: what was written stays, and its next token should not be drawn to the rest of a phrase.
Phrases begin where a word begins and count only where the word ends, except in scripts without spaces.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

ROOT, START = 0, 1
MOST_ROWS = 256
"""Rows of bonuses that are remembered."""


@dataclass
class _Node:
    """The last tokens written, as far as they are the beginning of a phrase."""

    bonus: float = 0.0
    """Bonus that its tokens earned."""
    following: dict[int, int] = field(default_factory=dict)
    fallback: int = ROOT
    """The node of its longest end that is the beginning of a phrase, too."""
    ends: bool = False
    """Whether it is a phrase."""
    open_ended: bool = False
    """Whether a word may continue after the phrase."""
    earned: tuple[float, float] = (0.0, 0.0)
    """Bonus that stays when it breaks off: as a new word begins, and as the word continues."""


class Bias(Protocol):
    """Bonus added to the scores of the next token, after a state that stands for the text so far, first `START`."""

    def rows(self, states: Sequence[int], like: Tensor, greedy: bool = False) -> Tensor:
        """Bonus of each token to the log-probabilities `like` [N, V] after these states, [N, V]; `greedy` where no
        other hypotheses are followed."""

    def advance(self, state: int, token: int) -> int:
        """The state after another token."""

    def withdrawn(self, state: int) -> float:
        """Bonus that a hypothesis loses when it ends in a state."""


class Biasing:
    """Phrases as tokens, and the bonus of each next token after what was written: a number for each state."""

    def __init__(self, text_of: Callable[[int], str]):
        """`text_of` gives a token's text within a line, with the space before it."""
        self.text_of = text_of
        self.nodes = [_Node(), _Node()]
        self._rows: dict[tuple[int, bool, int], Tensor] = {}
        self._inside: Tensor | None = None

    def add(self, ids: Sequence[int], root: int, open_ended: bool, strength: float) -> None:
        """Add a phrase that may begin anywhere (`ROOT`) or at the beginning of the text only (`START`). `strength` is
        the bonus of a token, in units of its log-probability; tokens of earlier phrases keep theirs."""
        at = root
        for token in ids:
            if token not in self.nodes[at].following:
                self.nodes[at].following[token] = len(self.nodes)
                earns = strength if self.text_of(token).strip() else 0.0
                self.nodes.append(_Node(self.nodes[at].bonus + earns))
            at = self.nodes[at].following[token]
        if at != root:
            self.nodes[at].ends = True
            self.nodes[at].open_ended |= open_ended

    def link(self) -> None:
        """Connect the phrases, after the last one was added."""
        queue = deque([ROOT, START])
        while queue:
            at = queue.popleft()
            node = self.nodes[at]
            for token, child in node.following.items():
                below = self.nodes[child]
                below.fallback = ROOT if at == ROOT else self._child(node.fallback, token)[1]
                suffix = self.nodes[below.fallback]
                stays = max(node.earned[self._carries_on(token)], suffix.earned[1])
                written = max(stays, suffix.earned[0], below.bonus if below.ends else 0.0)
                below.earned = (written, written if below.open_ended else stays)
                queue.append(child)

    def _child(self, state: int, token: int) -> tuple[int, int]:
        """The node, of a state or of its ends, that a token continues, and the node it leads to."""
        while token not in self.nodes[state].following and state != ROOT:
            state = self.nodes[state].fallback
        return state, self.nodes[state].following.get(token, ROOT)

    def advance(self, state: int, token: int) -> int:
        """The state after another token."""
        return self._child(state, token)[1]

    def withdrawn(self, state: int) -> float:
        """Bonus that a hypothesis loses when it ends in a state."""
        node = self.nodes[state]
        return node.bonus - node.earned[0]

    def rows(self, states: Sequence[int], like: Tensor, greedy: bool = False) -> Tensor:
        """Bonus of each token to the log-probabilities `like` [N, V] after these states, [N, V]."""
        import torch

        return torch.stack([self._row(state, greedy, like) for state in states])

    def _row(self, state: int, greedy: bool, like: Tensor) -> Tensor:
        key = (state, greedy, like.shape[-1])
        if key not in self._rows:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            self._rows[key] = self._make_row(state, greedy, like)
        return self._rows[key]

    def _make_row(self, state: int, greedy: bool, like: Tensor) -> Tensor:
        import torch

        node = self.nodes[state]
        loss = (0.0, 0.0) if greedy else (node.bonus - node.earned[0], node.bonus - node.earned[1])
        row = like.new_full(like.shape[-1:], -loss[0])
        if loss[0] != loss[1]:
            if self._inside is None or len(self._inside) != len(row):
                self._inside = torch.tensor([self._carries_on(t) for t in range(len(row))], device=like.device)
            row[self._inside] = -loss[1]
        ends = [state]
        while ends[-1] != ROOT:
            ends.append(self.nodes[ends[-1]].fallback)
        for before in (self.nodes[at] for at in reversed(ends)):
            for token, child in before.following.items():
                inside = self._carries_on(token)
                row[token] = self.nodes[child].bonus - (
                    before.bonus if greedy else before.earned[inside] + loss[inside]
                )
        return row

    def _carries_on(self, token: int) -> bool:
        """Whether a token continues the word before it."""
        first = self.text_of(token)[:1]
        return bool(first) and (first in "'’" or (_spaced(first) and unicodedata.category(first)[0] in "LMN"))


def _spaced(character: str) -> bool:
    """Whether words of the character's script are written with spaces; not exact for letters without capitals."""
    return unicodedata.category(character) != "Lo"


def favour(log_probs: Tensor, bias: Bias | None, states: Sequence[int], greedy: bool = False) -> Tensor:
    """Log-probabilities [N, V] with the bonuses of tokens after these states; as they are without a `bias`."""
    return log_probs if bias is None else log_probs + bias.rows(states, log_probs, greedy)


def advance(bias: Bias | None, state: int, token: int) -> int:
    """The state after another token; the same without a `bias`."""
    return state if bias is None else bias.advance(state, token)


@lru_cache(2)
def biasing(processor: Any, phrases: tuple[str, ...], strength: float) -> Biasing:
    """The phrases as `processor.ids` writes them, in the letters that it knows; a number behind a tab replaces the
    `strength`. Raises ConfigError for a phrase that the model cannot write."""
    parts = [phrase.partition("\t") for phrase in phrases if phrase.strip()]
    spelled = {_spelled(processor, " ".join(phrase.split())): float(own or strength) for phrase, _, own in parts}
    before = processor.ids(next(iter(spelled), ""))
    length = len(processor.decode(before))
    result = Biasing(cache(lambda token: processor.decode([*before, token])[length:]))
    for phrase, strength in sorted(spelled.items(), key=lambda item: -item[1]):
        alone, open_ended = processor.ids(phrase), not _spaced(phrase[-1])
        within = processor.ids(f"{phrase} {phrase}")[len(alone) :]
        result.add(alone, START if _spaced(phrase[0]) else ROOT, open_ended, strength)
        result.add(within, ROOT, open_ended, strength)
    result.link()
    return result


def _spelled(processor: Any, phrase: str) -> str:
    """The phrase as the model writes it: unchanged, in small letters or in capitals. Raises ConfigError where it has no
    letters for it."""
    for variant in (phrase, phrase.lower(), phrase.upper()):
        if processor.decode(processor.ids(variant)).strip().casefold() == phrase.casefold():
            return variant
    raise ConfigError(f"The model has no letters for '{phrase}': write it as it is spoken, or leave it out.")
