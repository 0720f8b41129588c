"""Stage: the base of all kinds of `stages` of `stentor prepare segments`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.model import Model
    from stentor.inference.recording import Recording

SPEECH_RATE = 16000
"""Sample rate in Hz of the audio that stages read, except to measure the bandwidth."""


@dataclass(frozen=True)
class Segment:
    """A part of a recording with the measures of the stages so far."""

    start: float
    """Start in seconds from the start of the recording."""
    end: float
    measures: dict[str, Any]
    """Keys of its manifest record, such as `text`, `speaker` and `snr`."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def measured(self, **measures: Any) -> Segment:
        """Return the segment with more measures: plain data, or NumPy scalars, which are converted."""
        import numpy as np

        plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in measures.items()}
        return replace(self, measures={**self.measures, **plain})

    def part(self, start: float, end: float, with_text: bool = False) -> Segment:
        """Return a part of the segment, in seconds from the start of the recording, rounded to milliseconds.
        `with_text`: the part contains all speech, so it keeps the `text`."""
        part = Segment(round(start, 3), round(end, 3), self.measures)
        if with_text or (part.start, part.end) == (self.start, self.end):
            return part
        return replace(part, measures={key: value for key, value in self.measures.items() if key != "text"})

    def audio(self, recording: Recording, rate: int = SPEECH_RATE) -> np.ndarray:
        """Return its audio, float32 [samples] at `rate` Hz."""
        return recording.at(rate).read(round(self.start * rate), round(self.end * rate))

    def drop(self, reason: str, value: Any = None, threshold: Any = None) -> Reject:
        """Return the segment as a `Reject`."""
        return Reject(self, reason, value, threshold)


@dataclass(frozen=True)
class Reject:
    """A segment that a stage drops: the reason, the measured value and the threshold."""

    segment: Segment
    reason: str
    value: Any = None
    threshold: Any = None


OpenWork: TypeAlias = "tuple[Recording, Sequence[Segment]]"
"""A recording with its segments so far."""


@dataclass(frozen=True)
class Limit:
    """A measure with a threshold; segments beyond it are dropped."""

    measure: str
    key: str
    """Key of the stage with the threshold, a number or null for none."""
    reason: str
    upper: bool = False
    """Whether the threshold is a maximum instead of a minimum."""


class Stage(Choice):
    """One step from recordings to records: takes the segments of a recording and returns which are kept and dropped.

    A subclass implements `process`, or only `measure` if its `limits` decide what is dropped. The result of a stage
    must only depend on the recording and the segments.
    """

    limits: ClassVar[tuple[Limit, ...]] = ()
    batched: ClassVar[bool] = False
    """See `BatchedStage`."""
    reasons: ClassVar[dict[str, str]] = {}
    """Explanation, for users, of each reason for which the stage drops segments."""

    def setup(self, device: str) -> None:
        """Load everything that `process` needs. Called once in each process. Raises ConfigError."""

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        """Yield kept and dropped segments in order of time; a segment may be split. Raises AudioError."""
        for segment in self.measure(recording, segments):
            yield self.check(segment)

    def process_many(self, work: Sequence[OpenWork]) -> list[list[Segment | Reject]]:
        """Run `process` for several recordings."""
        return [list(self.process(recording, segments)) for recording, segments in work]

    def measure(self, recording: Recording, segments: Sequence[Segment]) -> Iterable[Segment]:
        """Yield the segments with their measures."""
        raise NotImplementedError

    def check(self, segment: Segment) -> Segment | Reject:
        """Return the segment, or a `Reject` for the first of the `limits` that it exceeds."""
        for limit in self.limits:
            value, threshold = segment.measures.get(limit.measure), getattr(self, limit.key)
            if value is None or threshold is None:
                continue
            if (value > threshold) if limit.upper else (value < threshold):
                return segment.drop(limit.reason, value, threshold)
        return segment


class BatchedStage(Stage):
    """A stage that is faster with the segments of several recordings at once, such as one with a model. A subclass
    implements `process_many`."""

    batched: ClassVar = True
    _device: str = "cpu"

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        yield from self.process_many([(recording, segments)])[0]


class SetStage(Stage):
    """A stage that decides on the segments of all recordings at once, after `process` of each recording."""

    def select(self, segments: Sequence[Segment]) -> list[Segment | Reject]:
        """Return each segment of the set, kept or dropped, in order. `Segment.measures` have an `id` here."""
        raise NotImplementedError


@cache
def loaded(model: str, device: str) -> Model:
    """Load a model once per process, shared by all stages that name it. Raises ConfigError."""
    from stentor.inference.load import load

    return load(model, device)
