"""Calibration of pseudo-labels on records whose text is known: how sure a word is, and how many errors a record has.

Both are logistic maps (see `stentor.metrics.calibration`). That of records is fitted to their errors, deletions
included, and again to resamples of the labelled records, so that what is expected of other records has an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.metrics.calibration import EDGE, fit
from stentor.metrics.wer import REFERENCE, word_errors
from stentor.metrics.word_match import match
from stentor.text.normalize import normalize

RESAMPLES = 200
"""Of the labelled records, for the upper bound."""
SPEAKERS = 10
"""From so many on, whole speakers are resampled: records of one speaker err alike."""


@dataclass(frozen=True)
class Outcome:
    """A record whose text is known, labelled by machine."""

    signs: tuple[float, ...]
    """From 0 to 1, see `record_signs`."""
    errors: int
    words: int
    """Of the reference."""
    speaker: str | None = None


def record_signs(measures: dict[str, Any]) -> tuple[float, float]:
    """Signs of certainty of a record: the mean confidence of its words, and the agreement of its hypotheses."""
    return measures["confidence"], measures["agreement"]


def outcome(measures: dict[str, Any], reference: str, speaker: str | None = None) -> Outcome:
    """What a label is worth beside the text that is known."""
    language = measures.get("language")
    pair = normalize(reference, "whisper_basic", language), normalize(measures["text"], "whisper_basic", language)
    (counts,) = word_errors([pair], language)
    return Outcome(record_signs(measures), int(counts[:REFERENCE].sum()), int(counts[REFERENCE]), speaker)


def fit_words(pairs: Sequence[tuple[Sequence[Sequence[Any]], str]], language: str | None = None) -> list[float]:
    """The map from the signs of a hypothesis's words to their confidence, of (words, reference) pairs; words are
    `[word, sign, ...]`. A word is right when the reference has it there."""
    signs, right = [], []
    for words, reference in pairs:
        hypothesis = [{"word": word, "signs": s} for word, *s in words]
        matched = match([{"word": word} for word in reference.split()], hypothesis, language=language)
        signs += [word["signs"] for word in matched.hypothesis]
        right += matched.right
    return fit(signs, right) if signs else [1.0, 0.0, 0.0]


class ErrorModel:
    """The expected share of errors of a record, by its signs. Without labelled records a record is right as often as
    its first sign says."""

    def __init__(self, outcomes: Sequence[Outcome] = (), seed: int = 0):
        self.maps = np.array([[1.0, 0.0, 0.0]])
        """[resamples + 1, signs + 1], the first of all records."""
        if outcomes:
            samples = [np.arange(len(outcomes)), *_resampled([o.speaker for o in outcomes], seed)]
            self.maps = np.array([_fit_records([outcomes[i] for i in rows]) for rows in samples])

    def errors(self, signs: Sequence[Sequence[float]]) -> np.ndarray:
        """[resamples + 1, records]: the expected share of errors of records with such signs."""
        clipped = np.clip(np.array(signs, np.float64).reshape(-1, self.maps.shape[1] - 1), EDGE, 1 - EDGE)
        logits = np.log(clipped / (1 - clipped))
        return 1 / (1 + np.exp(self.maps[:, :-1] @ logits.T + self.maps[:, -1:]))


def _fit_records(outcomes: Sequence[Outcome]) -> list[float]:
    """The map of these records: each is as many trials as it has words that are right or wrong."""
    signs = [o.signs for o in outcomes]
    right = [max(o.words - o.errors, 0) for o in outcomes]
    wrong = [o.errors for o in outcomes]
    return fit([*signs, *signs], [True] * len(signs) + [False] * len(signs), [*right, *wrong])


def _resampled(speakers: Sequence[str | None], seed: int) -> list[np.ndarray]:
    """Rows of resamples with replacement: of speakers where there are enough, else of records."""
    names = sorted({name for name in speakers if name})
    by_speaker = len(names) >= SPEAKERS and None not in speakers
    groups = [[i for i, s in enumerate(speakers) if s == name] for name in names] if by_speaker else None
    units = groups or [[i] for i in range(len(speakers))]
    generator = np.random.default_rng(seed)
    picks = generator.integers(len(units), size=(RESAMPLES, len(units)))
    return [np.concatenate([units[i] for i in row]) for row in picks]
