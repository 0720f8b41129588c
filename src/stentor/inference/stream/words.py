"""Words of tokens that come one after another: they stay when the next one begins or speech ends."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stentor.inference.stream.base import Event
from stentor.tasks.decode_checks import word_confidences, word_tokens


class Token(NamedTuple):
    """Text, and its frames [start, end)."""

    id: int
    log_prob: float
    start: int
    end: int


Seconds = Callable[[list[tuple[int, int]]], Sequence[tuple[float, float]]]
"""The first and the last second of tokens with these frames."""


def tokens_before_last_word(ids: Sequence[int], decode: Callable[[list[int]], str]) -> int:
    """Number of first tokens that spell words that others follow. A token that reaches into two words is of the last:
    more of that one may come."""
    places = [positions for _, positions in word_tokens(ids, decode)]
    return max((after[0] for before, after in pairwise(places) if before[-1] < after[0]), default=0)


class TokenWords:
    """The tokens of the word that is being said, and the words before it."""

    def __init__(
        self, decode: Callable[[list[int]], str], seconds: Seconds, calibration: Sequence[float] | None = None
    ):
        """`decode`: text of token ids with the spaces that they write; `calibration`: of the confidences (None: they
        are the least probability of a token)."""
        self.decode, self.times, self.calibration = decode, seconds, calibration
        self.words: list[Event] = []
        """Words that stay and were not taken yet."""
        self.tokens: list[Token] = []
        self._frame = 0
        """The first that nothing is written of yet."""
        self._ends: list[int] = []
        """Frames from there on at which a word ends, whatever follows."""

    @property
    def words_ended(self) -> bool:
        """Whether the words before those frames are done."""
        return not self._ends

    def end_at(self, frame: int) -> None:
        """No speech at this frame, which may be one without output yet: a word ends there."""
        self._ends.append(frame)
        self.advance(self._frame)

    def advance(self, frame: int) -> None:
        """All tokens before this frame were added."""
        self._frame = frame
        if any(end <= frame for end in self._ends):
            self.end()
            self._ends = [end for end in self._ends if end > frame]

    @property
    def partial(self) -> str:
        """The word that is being said."""
        return self.decode([token.id for token in self.tokens]).strip()

    def write(self, token: Token) -> None:
        """The next token. A space belongs to the word that follows, as in `word_tokens`."""
        self.advance(token.start)
        if self.partial and self.decode([token.id]).isspace():
            self.end()
        self.tokens.append(token)
        if count := tokens_before_last_word([t.id for t in self.tokens], self.decode):
            self.end(count)

    def end(self, count: int | None = None) -> None:
        """The word has ended, or those of the first `count` tokens."""
        count = len(self.tokens) if count is None else count
        tokens, self.tokens = self.tokens[:count], self.tokens[count:]
        spans = self.times([(token.start, token.end) for token in tokens])
        ids, log_probs = [token.id for token in tokens], [token.log_prob for token in tokens]
        for word in word_confidences(ids, log_probs, self.decode, spans, self.calibration or (1.0, 0.0, 0.0)):
            sure = word["confidence"] if self.calibration else round(word["signs"][0], 4)
            self.words.append({"word": word["word"], "start": word["start"], "end": word["end"], "confidence": sure})
