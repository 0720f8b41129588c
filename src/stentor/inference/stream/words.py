"""Words from a stream of tokens: a word is final when the next one begins or speech ends."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stentor.inference.stream.base import Event
from stentor.tasks.decode_checks import word_confidences, word_tokens


class Token(NamedTuple):
    """A written token and its frames [start, end)."""

    id: int
    log_prob: float
    start: int
    end: int


Seconds = Callable[[list[tuple[int, int]]], Sequence[tuple[float, float]]]
"""Function from the frames of tokens to their start and end in seconds."""


def tokens_before_last_word(ids: Sequence[int], decode: Callable[[list[int]], str]) -> int:
    """Return the number of first tokens whose words are followed by another word. A token of two words belongs to the
    second one, which may still continue."""
    places = [positions for _, positions in word_tokens(ids, decode)]
    return max((after[0] for before, after in pairwise(places) if before[-1] < after[0]), default=0)


class TokenWords:
    """The tokens of the current word, and the words before it."""

    def __init__(
        self, decode: Callable[[list[int]], str], seconds: Seconds, calibration: Sequence[float] | None = None
    ):
        """`decode`: function from token ids to text, with spaces; `calibration`: of the confidences (None: the lowest
        probability of a token)."""
        self.decode, self.times, self.calibration = decode, seconds, calibration
        self.words: list[Event] = []
        """Final words that have not been collected yet."""
        self.tokens: list[Token] = []
        self._frame = 0
        """First frame without output so far."""
        self._ends: list[int] = []
        """Later frames at which a word ends in any case."""

    @property
    def words_ended(self) -> bool:
        """Whether all words that must end have ended."""
        return not self._ends

    def end_at(self, frame: int) -> None:
        """End a word at this frame, which has no speech. The frame may have no output yet."""
        self._ends.append(frame)
        self.advance(self._frame)

    def advance(self, frame: int) -> None:
        """Mark that all tokens before this frame were added."""
        self._frame = frame
        if any(end <= frame for end in self._ends):
            self.end()
            self._ends = [end for end in self._ends if end > frame]

    @property
    def partial(self) -> str:
        """Text of the current word."""
        return self.decode([token.id for token in self.tokens]).strip()

    def write(self, token: Token) -> None:
        """Add the next token. A space belongs to the word after it, as in `word_tokens`."""
        self.advance(token.start)
        if self.partial and self.decode([token.id]).isspace():
            self.end()
        self.tokens.append(token)
        if count := tokens_before_last_word([t.id for t in self.tokens], self.decode):
            self.end(count)

    def end(self, count: int | None = None) -> None:
        """End the current word, or the words of the first `count` tokens."""
        count = len(self.tokens) if count is None else count
        tokens, self.tokens = self.tokens[:count], self.tokens[count:]
        spans = self.times([(token.start, token.end) for token in tokens])
        ids, log_probs = [token.id for token in tokens], [token.log_prob for token in tokens]
        for word in word_confidences(ids, log_probs, self.decode, spans, self.calibration or (1.0, 0.0, 0.0)):
            sure = word["confidence"] if self.calibration else round(word["signs"][0], 4)
            self.words.append({"word": word["word"], "start": word["start"], "end": word["end"], "confidence": sure})
