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
"""Hz of the audio that stages look at, other than its bandwidth."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording, and what stages have found out about it."""

    start: float
    """Seconds from the start of the recording."""
    end: float
    measures: dict[str, Any]
    """Keys of the manifest record that it becomes, such as `text`, `speaker` and `snr`."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def measured(self, **measures: Any) -> Segment:
        """The segment with more measures: plain data, or scalars of numpy, which become plain."""
        import numpy as np

        plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in measures.items()}
        return replace(self, measures={**self.measures, **plain})

    def part(self, start: float, end: float, with_text: bool = False) -> Segment:
        """A part of it, in seconds from the start of the recording, to the millisecond. `with_text`: all that is said
        is said in it, so that a `text` that is known stays its own."""
        part = Segment(round(start, 3), round(end, 3), self.measures)
        if with_text or (part.start, part.end) == (self.start, self.end):
            return part
        return replace(part, measures={key: value for key, value in self.measures.items() if key != "text"})

    def audio(self, recording: Recording, rate: int = SPEECH_RATE) -> np.ndarray:
        """float32 [samples] at `rate` Hz."""
        return recording.at(rate).read(round(self.start * rate), round(self.end * rate))

    def drop(self, reason: str, value: Any = None, threshold: Any = None) -> Reject:
        return Reject(self, reason, value, threshold)


@dataclass(frozen=True)
class Reject:
    """A segment that a stage drops: the reason, what was measured, and what it was held against."""

    segment: Segment
    reason: str
    value: Any = None
    threshold: Any = None


OpenWork: TypeAlias = "tuple[Recording, Sequence[Segment]]"
"""A recording with its segments so far."""


@dataclass(frozen=True)
class Limit:
    """A measure that is held against a key of the stage; segments beyond it are dropped."""

    measure: str
    key: str
    """The threshold: a key of the stage that is a number, or null for none."""
    reason: str
    upper: bool = False
    """Whether the key is the most that is kept, and not the least."""


class Stage(Choice):
    """One step from recordings to records: gets the segments of a recording, gives those it keeps and those it drops.

    A kind implements `process`, or `measure` alone where its `limits` say what is dropped. What a stage answers depends
    on nothing but the recording and the segments.
    """

    limits: ClassVar[tuple[Limit, ...]] = ()
    batched: ClassVar[bool] = False
    """See `BatchedStage`."""
    reasons: ClassVar[dict[str, str]] = {}
    """Meaning of each reason that the stage drops segments for, for people."""

    def setup(self, device: str) -> None:
        """Load what `process` needs; called once in each process. Raises ConfigError."""

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        """Segments after the stage, in order of time; a segment may be cut into several. Raises AudioError."""
        for segment in self.measure(recording, segments):
            yield self.check(segment)

    def process_many(self, work: Sequence[OpenWork]) -> list[list[Segment | Reject]]:
        """`process` for several recordings at once."""
        return [list(self.process(recording, segments)) for recording, segments in work]

    def measure(self, recording: Recording, segments: Sequence[Segment]) -> Iterable[Segment]:
        """The segments with measures."""
        raise NotImplementedError

    def check(self, segment: Segment) -> Segment | Reject:
        """The segment, or a reject where it is beyond one of the `limits`, the first of them."""
        for limit in self.limits:
            value, threshold = segment.measures.get(limit.measure), getattr(self, limit.key)
            if value is None or threshold is None:
                continue
            if (value > threshold) if limit.upper else (value < threshold):
                return segment.drop(limit.reason, value, threshold)
        return segment


class BatchedStage(Stage):
    """A stage with models, for which the segments of several recordings at a time are cheaper: it implements
    `process_many`."""

    batched: ClassVar = True
    _device: str = "cpu"

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        yield from self.process_many([(recording, segments)])[0]


class SetStage(Stage):
    """A stage that looks at the segments of all recordings at once, after `process` has seen each recording."""

    def select(self, segments: Sequence[Segment]) -> list[Segment | Reject]:
        """Result for each segment of the set, in its order. `Segment.measures` have an `id` here."""
        raise NotImplementedError


@cache
def loaded(model: str, device: str) -> Model:
    """A model, once in a process for all stages that name it. Raises ConfigError."""
    from stentor.inference.load import load

    return load(model, device)
