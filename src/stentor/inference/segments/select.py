"""`select`: keep as many pseudo-labels as possible under a target error rate."""

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
    """Keep the most certain labels, as many as stay under a target error rate. Sets `confidence` to one minus the
    expected error rate of the record."""

    type: Literal["select"] = "select"
    max_error: float = Field(0.1, gt=0, le=1)
    """Maximum word error rate of all kept records together, estimated from the labelled records."""
    assurance: float = Field(0.8, ge=0.5, lt=1)
    """Required probability that the error rate is not higher, given the number of labelled records: the share of their
    resamples. 0.5: equally likely higher or lower."""
    by: Literal["confidence", "random"] = "confidence"
    """Criterion of selection. `random` keeps the same number of seconds, chosen at random, as a baseline."""
    hours: float | None = Field(None, gt=0)
    """Maximum hours to keep. Null: no limit."""
    seed: int = 0
    """Random seed of the random selection and of the resamples."""

    limits: ClassVar = (Limit("confidence", "min_confidence", "low_confidence"),)
    reasons: ClassVar = {
        "low_confidence": "with it, the error rate or the hours would exceed the limit",
        "not_drawn": "not selected at random",
        "too_fast": "more text per second than in the labelled records",
        "too_slow": "less text per second than in the labelled records",
    }
    _model: ErrorModel | None = None
    _pace: Pace | None = None
    _selection: dict[str, Any] = {}

    def informed(self, model: ErrorModel, pace: Pace | None) -> SelectStage:
        """Return the stage with an error model and a speaking rate from labelled records."""
        stage = self.model_copy()
        stage._model, stage._pace = model, pace
        return stage

    @property
    def min_confidence(self) -> float | None:
        """Threshold of the confidence, after `select`."""
        return self._selection.get("min_confidence")

    @property
    def selection(self) -> dict[str, Any]:
        """Summary of the selection, after `select`; see `stentor.inference.labels.selection.Choice`."""
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
