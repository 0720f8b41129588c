"""`vad`: recordings cut into segments with speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import SPEECH_RATE, Reject, Segment, Stage
from stentor.section import Range

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.recording import Recording


class VadStage(Stage):
    """Cut recordings at pauses into segments with speech."""

    type: Literal["vad"] = "vad"
    detector: str = "energy"
    """energy (built in), silero (the model of the package silero-vad) or the path of a silero_vad.onnx. The first takes
    music and steady babble for speech: for podcasts with music take Silero."""
    threshold: float | None = None
    """Decibels above the noise floor (energy) or a probability (Silero) from which on there is speech. Null: 6 or
    0.5."""
    seconds: Range = (1.0, 30.0)
    """Shortest and longest segment. Under a second there is little to learn from; 30 s is what Whisper reads at
    once."""
    pause: float = Field(0.3, gt=0)
    """Least pause that a longer stretch of speech is cut in; without one it is cut where it is quietest."""
    silence: float = Field(0.8, gt=0)
    """Longer silence ends a segment and belongs to none."""
    padding: float = Field(0.15, ge=0)
    """Seconds of silence that stay on either side of speech, so that weak beginnings and ends of words stay."""

    reasons: ClassVar = {"no_speech": "silence between segments", "too_short": "less speech than `seconds` asks for"}
    _opened: Any = None

    def setup(self, device: str) -> None:
        from stentor.inference.vad import open_detector

        self._opened = open_detector(self.detector, self.threshold)

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        from stentor.inference.vad import cut

        shortest, longest = self.seconds
        for segment in segments:
            blocks = _blocks(recording.at(SPEECH_RATE), segment)
            activity = self._opened.activity(blocks, SPEECH_RATE)
            windows = cut(activity, SPEECH_RATE, longest, self.pause, self.padding, self.silence)
            end = segment.start
            for window in windows:
                start = segment.start + window.start / SPEECH_RATE
                yield from self._gap(segment, end, start)
                end = min(segment.start + window.end / SPEECH_RATE, segment.end)
                piece = segment.part(start, end, with_text=len(windows) == 1)
                yield piece if piece.seconds >= shortest else piece.drop("too_short", piece.seconds, shortest)
            yield from self._gap(segment, end, segment.end)

    def _gap(self, segment: Segment, start: float, end: float) -> Iterator[Reject]:
        gap = segment.part(start, end)
        if gap.seconds > 0:
            yield gap.drop("no_speech", round(gap.seconds, 3), self.silence)


def _blocks(recording: Recording, segment: Segment, seconds: int = 60) -> Iterator[np.ndarray]:
    first, last = round(segment.start * recording.rate), round(segment.end * recording.rate)
    step = seconds * recording.rate
    for at in range(first, last, step):
        yield recording.read(at, min(at + step, last))
