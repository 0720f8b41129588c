"""`transcribe`: what is said in segments, by a recogniser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.inference.segments.base import Reject, Segment, Stage, loaded

if TYPE_CHECKING:
    from stentor.inference.recording import Recording


class TranscribingStage(Stage):
    """Stages with a recogniser."""

    model: str
    """A recogniser: run folder, export or Hub id. Its own checks decode again what looks made up."""
    batch_seconds: float = 120.0
    """Most padded audio that is decoded at a time."""
    _device: str = "cpu"

    def setup(self, device: str) -> None:
        self._device = device
        loaded(self.model, device).for_transcription()

    def transcripts(self, recording: Recording, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        """`{"text", "confidence", "language"}` of each segment; `confidence` is the mean probability of a token."""
        from stentor.inference.recording import ArrayRecording

        model = loaded(self.model, self._device)
        rate, results = model.bundle.processor.sample_rate, dict[int, dict[str, Any]]()
        for language in dict.fromkeys(s.measures.get("language") for s in segments):
            chosen = [i for i, s in enumerate(segments) if s.measures.get("language") == language]
            clips = (ArrayRecording(segments[i].audio(recording, rate), rate, rate) for i in chosen)
            options: dict[str, Any] = {
                "language": language,
                "words": False,
                "keep_failed": True,
                "batch_seconds": self.batch_seconds,
            }
            for i, transcript in zip(chosen, model.transcribe_many(clips, **options), strict=True):
                parts = transcript.segments
                seconds = sum(p["end"] - p["start"] for p in parts)
                log_prob = sum(p["log_prob"] * (p["end"] - p["start"]) for p in parts) / seconds if seconds else 0.0
                confidence = round(math.exp(log_prob), 4) if transcript.text else 0.0
                found = transcript["language"]
                results[i] = {"text": transcript.text.strip(), "confidence": confidence} | (
                    {"language": found} if found else {}
                )
        return [results[i] for i in range(len(segments))]


class TranscribeStage(TranscribingStage):
    """Write down what is said (`text`, `confidence`), in the `language` of each segment where it is known."""

    type: Literal["transcribe"] = "transcribe"
    reasons: ClassVar = {"no_text": "the recogniser hears nothing"}

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        for segment, transcript in zip(segments, self.transcripts(recording, segments), strict=True):
            yield segment.measured(**transcript) if transcript["text"] else segment.drop("no_text")
