"""`vad`: cut recordings into segments with speech."""

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
    """Speech detector: energy (built in), silero (the model of the package silero-vad) or the path of a
    silero_vad.onnx. The energy detector takes music and steady babble for speech: use silero for podcasts with
    music."""
    threshold: float | None = None
    """Threshold of speech: dB above the noise floor (energy) or a probability (silero). Null: 6 or 0.5."""
    seconds: Range = (1.0, 30.0)
    """Minimum and maximum seconds of a segment. Under a second there is little to learn; Whisper reads 30 s at once."""
    pause: float = Field(0.3, gt=0)
    """Minimum seconds of a pause at which long speech is cut. Without such a pause, it is cut where it is quietest."""
    silence: float = Field(0.8, gt=0)
    """Seconds of silence that end a segment; such silence belongs to no segment."""
    padding: float = Field(0.15, ge=0)
    """Seconds of silence kept on both sides of speech, so that quiet beginnings and ends of words are not cut off."""

    reasons: ClassVar = {"no_speech": "silence between segments", "too_short": "shorter than the minimum of `seconds`"}
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
