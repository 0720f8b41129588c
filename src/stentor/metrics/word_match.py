"""Word matching: the words that a transcript and a reference share, and the differences between their times."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.metrics.wer import matches
from stentor.text.normalize import DEFAULT, normalize, words

Word = Mapping[str, Any]
"""`{"word", "start", "end"}` in seconds, and of hypotheses perhaps `confidence` in [0, 1]. A time may be missing."""


@dataclass
class Match:
    """Reference words in a row that say the same as hypothesis words in a row: nearly always one and one."""

    reference: Sequence[Word]
    hypothesis: Sequence[Word]
    start_error: float | None = field(init=False)
    """Hypothesis minus reference, milliseconds; None where a side has no time."""
    end_error: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.start_error = _difference(self.reference[0], self.hypothesis[0], "start")
        self.end_error = _difference(self.reference[-1], self.hypothesis[-1], "end")

    @property
    def timed(self) -> bool:
        """Whether the reference has both times."""
        return time_of(self.reference[0], "start") is not None and time_of(self.reference[-1], "end") is not None

    @property
    def worst(self) -> float:
        """The larger of its absolute errors, ms; 0 when it has none."""
        return max((abs(e) for e in (self.start_error, self.end_error) if e is not None), default=0.0)

    def within(self, collar: float) -> bool:
        """Whether both boundaries are known and at most `collar` ms off."""
        return self.start_error is not None and self.end_error is not None and self.worst <= collar


@dataclass
class Matches:
    """One item: its scored words (those that the normaliser leaves something of) and what matched, in order."""

    reference: list[Word]
    hypothesis: list[Word]
    pairs: list[Match] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    """For each hypothesis word whether it is in a match."""

    def errors(self, slot: str = "both") -> list[float]:
        """Signed errors in ms of `start`, `end` or `both`, in order of the words."""
        slots = ("start", "end") if slot == "both" else (slot,)
        errors = (m.start_error if s == "start" else m.end_error for m in self.pairs for s in slots)
        return [e for e in errors if e is not None]


def match(
    reference: Sequence[Word], hypothesis: Sequence[Word], normalizer: str = DEFAULT, language: str | None = None
) -> Matches:
    """Match the words of one item by the Levenshtein alignment of the word error rate.

    Each word is normalised by itself and split into the units of the word error rate (characters in languages without
    spaces; "it's" can be two). A match is the shortest run of equal units that begins and ends with a word on both
    sides: where the normaliser writes "it's" as "it is" it matches "it" and "is" together, and a Japanese word matches
    its characters.
    """
    like = " ".join(word["word"] for word in reference or hypothesis)
    left, right = (_units(side, normalizer, language, like) for side in (reference, hypothesis))
    result = Matches(left.scored, right.scored, right=[False] * len(right.scored))
    begin: tuple[int, int] | None = None
    last = (-2, -2)
    for r, h in matches(left.units, right.units):
        if begin is None or (r, h) != (last[0] + 1, last[1] + 1):
            begin = (r, h) if left.opens(r) and right.opens(h) else None
        if begin is not None and left.closes(r) and right.closes(h):
            reference_words, hypothesis_words = left.words(begin[0], r), right.words(begin[1], h)
            result.pairs.append(Match(left.scored[reference_words], right.scored[hypothesis_words]))
            result.right[hypothesis_words] = [True] * len(right.scored[hypothesis_words])
            begin = None
        last = (r, h)
    return result


def time_of(word: Word, slot: str) -> float | None:
    """A number of a word, such as its `start` in seconds; None when it is missing, null or not finite."""
    value = word.get(slot)
    return float(value) if value is not None and math.isfinite(value) else None


def has_times(word: Word) -> bool:
    """Whether both its boundaries are known."""
    return time_of(word, "start") is not None and time_of(word, "end") is not None


def _difference(reference: Word, hypothesis: Word, slot: str) -> float | None:
    a, b = time_of(reference, slot), time_of(hypothesis, slot)
    # Rounded to a nanosecond: 0.37 s - 0.35 s is otherwise more than the 20 ms that it is.
    return None if a is None or b is None else round(1000 * (b - a), 6)


@dataclass
class _Side:
    """One side of a match: its scored words and the units that are aligned."""

    scored: list[Word]
    units: list[str]
    owner: list[int]
    """For each unit the position of its word in `scored`."""

    def opens(self, unit: int) -> bool:
        return unit == 0 or self.owner[unit - 1] != self.owner[unit]

    def closes(self, unit: int) -> bool:
        return unit == len(self.owner) - 1 or self.owner[unit + 1] != self.owner[unit]

    def words(self, first: int, last: int) -> slice:
        """The words of units `first` to `last`."""
        return slice(self.owner[first], self.owner[last] + 1)


def _units(transcript: Sequence[Word], normalizer: str, language: str | None, like: str) -> _Side:
    side = _Side([], [], [])
    for word in transcript:
        if parts := words(normalize(word["word"], normalizer, language), language, like):
            side.owner += [len(side.scored)] * len(parts)
            side.units += parts
            side.scored.append(word)
    return side
