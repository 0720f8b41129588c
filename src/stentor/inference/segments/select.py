"""`select`: of pseudo-labels as many as stay under an error that is wished for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Limit, Reject, Segment, SetStage

if TYPE_CHECKING:
    from stentor.inference.labels.calibration import ErrorModel
    from stentor.inference.labels.selection import Pace
    from stentor.inference.recording import Recording


class SelectStage(SetStage):
    """Keep the most certain labels, as many as stay under an error; `confidence` becomes one minus the share of errors
    that is expected of a record."""

    type: Literal["select"] = "select"
    max_error: float = Field(0.1, gt=0, le=1)
    """Word error rate that all that is kept may have together, expected by the labelled records."""
    assurance: float = Field(0.8, ge=0.5, lt=1)
    """Required certainty that the error is not higher, given how few the labelled records are: the share of their
    resamples. 0.5: as likely higher as lower."""
    by: Literal["confidence", "random"] = "confidence"
    """`random` keeps as many seconds at random: the baseline that a filter has to beat."""
    hours: float | None = Field(None, gt=0)
    """Most hours that are kept. Null: no limit."""
    seed: int = 0
    """Random seed of the selection and of the resamples."""

    limits: ClassVar = (Limit("confidence", "min_confidence", "low_confidence"),)
    reasons: ClassVar = {
        "low_confidence": "with it the error, or the hours, would be more than is wished for",
        "not_drawn": "not in the random selection",
        "too_fast": "more text than the labelled records have in the time",
        "too_slow": "less text than the labelled records have in the time",
    }
    _model: ErrorModel | None = None
    _pace: Pace | None = None
    _selection: dict[str, Any] = {}

    def informed(self, model: ErrorModel, pace: Pace | None) -> SelectStage:
        """The stage with what labelled records have shown of errors and of the speaking rate."""
        stage = self.model_copy()
        stage._model, stage._pace = model, pace
        return stage

    @property
    def min_confidence(self) -> float | None:
        """The threshold, after `select`."""
        return self._selection.get("min_confidence")

    @property
    def selection(self) -> dict[str, Any]:
        """Choice after `select`; see `stentor.inference.labels.selection.Choice`."""
        return self._selection

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        for segment in segments:
            if self._pace is None:
                yield segment
                continue
            factor = self._pace.factor(segment.measures["text"], segment.seconds)
            if factor < self._pace.low:
                yield segment.drop("too_fast", round(factor, 3), round(self._pace.low, 3))
            elif factor > self._pace.high:
                yield segment.drop("too_slow", round(factor, 3), round(self._pace.high, 3))
            else:
                yield segment

    def select(self, segments: Sequence[Segment]) -> list[Segment | Reject]:
        from stentor.inference.labels.calibration import ErrorModel, record_signs
        from stentor.inference.labels.selection import choose, drawn
        from stentor.text.normalize import words

        errors = (self._model or ErrorModel()).errors([record_signs(s.measures) for s in segments])
        lengths = [len(words(s.measures["text"], s.measures.get("language"))) for s in segments]
        seconds = [s.seconds for s in segments]
        chosen = choose(errors, lengths, seconds, self.max_error, self.assurance, self.hours)
        self._selection = chosen.summary
        sure = [segment.measured(confidence=round(1 - error, 4)) for segment, error in zip(segments, errors[0])]
        if self.by == "random":
            kept = drawn(seconds, chosen.seconds, self.seed)
            return [s if i in kept else s.drop("not_drawn") for i, s in enumerate(sure)]
        least = self.min_confidence
        return [
            s if i in chosen.kept else s.drop("low_confidence", s.measures["confidence"], least)
            for i, s in enumerate(sure)
        ]
