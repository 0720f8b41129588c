"""Calibration of pseudo-labels on labelled records: word confidences, and the expected error rate of a record.

Both are logistic maps (see `stentor.metrics.calibration`). That of records is fitted to their errors, deletions
included, and again to resamples of the labelled records, so that what is expected of other records has an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.metrics.calibration import EDGE, fit
from stentor.metrics.score import units_of
from stentor.metrics.wer import REFERENCE, text_errors
from stentor.metrics.word_match import match
from stentor.text.written_words import written_words

if TYPE_CHECKING:
    from stentor.inference.segments.base import Segment

RESAMPLES = 200
"""Number of resamples of the labelled records, for the upper bound."""


@dataclass(frozen=True)
class Labelled:
    """A labelled record, as the stage `label` has it."""

    segment: Segment
    text: str
    speaker: str | None


@dataclass(frozen=True)
class Outcome:
    """Errors of the label of a record, and the features that predict them."""

    signs: tuple[float, ...]
    """Certainty features from 0 to 1, see `record_signs`."""
    errors: int
    words: int
    """Number of words of the reference."""
    speaker: str | None = None


def record_signs(measures: Mapping[str, Any]) -> tuple[float, float]:
    """Return the certainty features of a record: mean confidence of its words, and agreement of its hypotheses."""
    return measures["confidence"], measures["agreement"]


def outcome(record: Labelled) -> Outcome:
    """Count the errors of the label of a record."""
    measures = record.segment.measures
    (counts,) = text_errors(record.text, measures["text"], measures.get("language"))
    return Outcome(record_signs(measures), int(counts[:REFERENCE].sum()), int(counts[REFERENCE]), record.speaker)


def fit_words(records: Sequence[Labelled], hypothesis: int) -> list[float]:
    """The map from signs of a word to its confidence, of one of the hypotheses of each record: a word is right when the
    reference has it there."""
    signs, right = [], []
    for record in records:
        words = [{"word": word, "signs": s} for word, *s in record.segment.measures["signs"][hypothesis]]
        reference = [{"word": word} for word in written_words(record.text)]
        matched = match(reference, words, language=record.segment.measures.get("language"))
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
    _, index = units_of(speakers, len(speakers))
    units = [np.flatnonzero(index == unit) for unit in range(index.max() + 1)]
    picks = np.random.default_rng(seed).integers(len(units), size=(RESAMPLES, len(units)))
    return [np.concatenate([units[i] for i in row]) for row in picks]
