"""Words of tokens that come one after another: they stay when the next one begins or speech ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stentor.inference.stream.base import Event
from stentor.tasks.decode_checks import word_confidences


class Token(NamedTuple):
    """What was written, and the frames [start, end) that it was heard at."""

    id: int
    log_prob: float
    start: int
    end: int


Seconds = Callable[[list[tuple[int, int]]], Sequence[tuple[float, float]]]
"""The first and the last second of tokens with these frames."""


class TokenWords:
    """The tokens of the word that is being said, and the words before it."""

    def __init__(
        self, decode: Callable[[list[int]], str], seconds: Seconds, calibration: Sequence[float] | None = None
    ):
        """`decode`: text of token ids with the spaces that they write; `calibration`: of the confidences (None: they
        are the least probability of a token)."""
        self.decode, self.seconds, self.calibration = decode, seconds, calibration
        self.done: list[Event] = []
        """Words that stay and were not taken yet."""
        self.tokens: list[Token] = []
        self._frame = 0
        """The first that nothing is written of yet."""
        self._end = 0
        """The frame at which a word ends, whatever follows."""

    @property
    def settled(self) -> bool:
        """Whether the words before that frame are done."""
        return self._frame >= self._end

    def end_at(self, frame: int) -> None:
        """Nobody speaks at this frame, which may be one that nothing is written of yet: a word ends there."""
        if frame <= self._frame:
            self.end()
        else:
            self._end = frame

    def reach(self, frame: int) -> None:
        """All tokens before this frame were added."""
        if not self.settled and frame >= self._end:
            self.end()
        self._frame = frame

    @property
    def text(self) -> str:
        """The word that is being said."""
        return self.decode([token.id for token in self.tokens]).strip()

    def add(self, token: Token) -> None:
        """The next token. A space belongs to the word that follows, as in `word_tokens`."""
        self.reach(token.start)
        begins = len(self.decode([*(t.id for t in self.tokens), token.id]).split()) > 1
        if begins or (self.text and self.decode([token.id]).isspace()):
            self.end()
        self.tokens.append(token)

    def end(self) -> None:
        """The word has ended."""
        spans = self.seconds([(token.start, token.end) for token in self.tokens])
        ids, log_probs = [token.id for token in self.tokens], [token.log_prob for token in self.tokens]
        for word in word_confidences(ids, log_probs, self.decode, spans, self.calibration or (1.0, 0.0, 0.0)):
            sure = word["confidence"] if self.calibration else round(word["signs"][0], 4)
            self.done.append({"word": word["word"], "start": word["start"], "end": word["end"], "confidence": sure})
        self.tokens = []
