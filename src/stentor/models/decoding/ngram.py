"""N-gram language model over a recogniser's tokens, whose say is added while it writes (shallow fusion).

Texts without recordings show which words there are and how they follow one another (Gulcehre et al. 2015). Like
hotwords (`decoding.bias`) it is a bonus of each next token after a state: what favours hotwords takes it.
"""

from __future__ import annotations

import copy
import logging
import math
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.jsonl import open_text
from stentor.data.storage import is_remote
from stentor.errors import ConfigError, DataError
from stentor.models.decoding.bias import START

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

log = logging.getLogger("stentor")

ORDER = 8
"""Tokens of an n-gram: a word or two in letters, a clause in subwords."""
BEGIN, END, SHIFT = 0, 1, 2
"""Marks around a text, and what is added to tokens so that they lie above these."""
HELD_OUT = 20
"""One text in this many is held out to measure the average surprise of a token."""
ROW_BYTES = 64 * 2**20
"""Most memory for rows of probabilities that are remembered."""


class NGram:
    """Probabilities of the next token, smoothed as Witten and Bell (1991): a context that was followed by many
    different tokens leaves more to the shorter one.

    Contexts are the nodes of a trie, numbered level by level: 0 is the empty one, 1 the beginning of a text. Entries
    (`tokens`, `counts`) are what followed a context, sorted by node and token; entry e leads to node e + 1.
    """

    def __init__(self, texts: Sequence[Sequence[int]], order: int = ORDER):
        import numpy as np

        lines = [[BEGIN, *(token + SHIFT for token in text), END] for text in texts]
        stream = np.concatenate([np.array(line, np.int64) for line in lines])
        place = np.concatenate([np.arange(len(line)) for line in lines])
        width = self.width = int(stream.max()) + 1
        context = np.zeros(len(stream) + 1, np.int64)  # the node of as many tokens before each as the level has
        first_node, entries = 0, 0
        tokens, counts, firsts, fallbacks = [], [], [], [np.zeros(1, np.int64)]
        for level in range(order):
            here = np.flatnonzero(place >= level)
            keys, index, count = np.unique(
                context[here] * width + stream[here], return_inverse=True, return_counts=True
            )
            nodes = np.arange(first_node, first_node + len(fallbacks[-1]))
            firsts.append(entries + np.searchsorted(keys // width, nodes))
            tokens.append(keys % width)
            counts.append(count)
            fallbacks.append(np.zeros(len(keys), np.int64))
            fallbacks[-1][index] = context[here + 1]
            context[here + 1] = entries + index + 1
            first_node += len(nodes)
            entries += len(keys)
        self.tokens, self.counts = np.concatenate(tokens), np.concatenate(counts)
        self.firsts = np.append(np.concatenate(firsts), entries)
        self.fallback = np.concatenate(fallbacks[:-1])  # the longest contexts have order - 1 tokens
        self._known: dict[int, np.ndarray] = {}

    def advance(self, node: int, token: int) -> int:
        """The node of the longest context that is known, after another token."""
        while True:
            start, end = self.firsts[node], self.firsts[node + 1]
            entry = start + self.tokens[start:end].searchsorted(token + SHIFT)
            if entry < end and self.tokens[entry] == token + SHIFT and entry + 1 < len(self.fallback):
                return int(entry) + 1
            if node == 0:
                return 0
            node = int(self.fallback[node])

    def probs(self, node: int) -> np.ndarray:
        """After a context: of `END` (at 1), of each token (from `SHIFT` on) and, last, of one that is in no text."""
        import numpy as np

        known = self._known.get(node)
        if known is None:
            start, end = int(self.firsts[node]) + (node == 0), int(self.firsts[node + 1])  # no text begins within one
            counts, kinds = self.counts[start:end], end - start
            shorter = self.probs(int(self.fallback[node])) if node else np.full(self.width + 1, 1 / self.width)
            total = counts.sum() + kinds
            known = shorter * (kinds / total) if kinds else shorter.copy()
            known[self.tokens[start:end]] += counts / max(total, 1)
            if len(self._known) * known.nbytes > ROW_BYTES:
                self._known.clear()
            self._known[node] = known
        return known


class LanguageModel:
    """Scores of the n-grams for a recogniser: `weight` times the log-probability of a token, above that which
    tokens of such texts have on average, so that longer answers are neither favoured nor shunned."""

    def __init__(self, texts: Sequence[Sequence[int]], weight: float, end: int | None):
        """`texts` as tokens; `end` is the token that ends an answer, where one does."""
        held_out = texts[::HELD_OUT] if len(texts) > HELD_OUT else []
        self.ngram = NGram([text for i, text in enumerate(texts) if not held_out or i % HELD_OUT])
        self.weight, self.end = weight, end
        self.average = 0.0
        self.average = self._mean(held_out or texts)
        self._rows: dict[tuple[int, int], Tensor] = {}

    def weighted(self, weight: float) -> LanguageModel:
        """The same with another weight."""
        other = copy.copy(self)
        other.weight = weight
        return other

    def _mean(self, texts: Sequence[Sequence[int]]) -> float:
        """Mean log-probability of a token of texts."""
        log_probs = []
        for text in texts:
            state = START
            for token in text:
                log_probs.append(math.log(self.ngram.probs(state)[min(token + SHIFT, self.ngram.width)]))
                state = self.advance(state, token)
        return sum(log_probs) / len(log_probs)

    def advance(self, state: int, token: int) -> int:
        """The state after another token."""
        return self.ngram.advance(state, token)

    def withdrawn(self, state: int) -> float:
        """Score that a hypothesis loses when it ends in a state without an end token."""
        return -self.weight * math.log(self.ngram.probs(state)[END])

    def rows(self, states: Sequence[int], like: Tensor, greedy: bool = False) -> Tensor:
        """Bonus of each token for the log-probabilities `like` [N, V] after these states, [N, V]. Greedy decoding gets
        the same."""
        import torch

        return self.weight * torch.stack([self._row(state, like) for state in states])

    def _row(self, state: int, like: Tensor) -> Tensor:
        """Without the weight."""
        import numpy as np

        key = (state, like.shape[-1])
        if key not in self._rows:
            log_probs = np.log(self.ngram.probs(state))
            row = np.full(max(key[1], self.ngram.width - SHIFT), log_probs[-1])
            row[: self.ngram.width - SHIFT] = log_probs[SHIFT:-1]
            row -= self.average
            if self.end is not None:
                row[self.end] = log_probs[END]
            if len(self._rows) * row.nbytes > ROW_BYTES:
                self._rows.clear()
            self._rows[key] = like.new_tensor(row[: key[1]])
        return self._rows[key]


def language_model(processor: Any, path: Path, weight: float) -> LanguageModel:
    """The model of a file of texts, one per line, plain or gzipped, as `processor.ids` writes them, in the letters that
    it knows. Raises DataError for a file that cannot be read or holds no text, ConfigError where the model lacks its
    letters."""
    stat = path.stat() if not is_remote(path) and path.exists() else None
    return _learned(processor, path, stat and (stat.st_mtime_ns, stat.st_size)).weighted(weight)


@lru_cache(2)
def _learned(processor: Any, path: Path, version: tuple[int, int] | None) -> LanguageModel:
    """`version`: other ones are other files."""
    with open_text(path) as file:
        lines = [line.strip() for line in file if _bare(line)]
    if not lines:
        raise DataError(f"{path} holds no text to learn a language model from.")
    texts = [ids for line in lines if (ids := _written(processor, line))]
    if not texts:
        raise ConfigError(
            f"The texts of the language model, {path}: The model has no letters for '{lines[0]}', nor for any other "
            "line: write them as they are spoken, or leave the file out."
        )
    if len(texts) < len(lines):
        log.warning(
            f"{path}: {len(lines) - len(texts):,} of {len(lines):,} lines have letters that the model cannot write; "
            "the language model is made of the others. Write them as they are spoken."
        )
    return LanguageModel(texts, 1.0, processor.eos_id)


def _written(processor: Any, line: str) -> list[int] | None:
    """A line in the model's spelling: unchanged, in lower case or in capitals; None where it lacks letters."""
    for variant in (line, line.lower(), line.upper()):
        ids: list[int] = processor.ids(variant)
        if _bare(processor.decode(ids)) == _bare(line):
            return ids
    return None


def _bare(text: str) -> str:
    """A text without case, punctuation and spaces, which a model may leave out."""
    folded = unicodedata.normalize("NFKC", text.casefold())
    return "".join(c for c in folded if not c.isspace() and unicodedata.category(c)[0] != "P")
