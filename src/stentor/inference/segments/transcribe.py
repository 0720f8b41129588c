"""`transcribe`: add transcripts to segments, and `agreement`: a second recogniser must give a similar text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.inference.options import DecodingOptions
from stentor.inference.segments.base import BatchedStage, Limit, OpenWork, Reject, Segment, loaded

if TYPE_CHECKING:
    from stentor.inference.transcribe import Transcript


class TranscribingStage(BatchedStage):
    """Base of stages with a recogniser. A subclass implements `judge`."""

    model: str
    """Speech recognition model: run folder, export or Hub id. Its hallucination checks apply."""
    batch_seconds: float = 120.0
    """Maximum seconds of padded audio per batch."""

    def setup(self, device: str) -> None:
        self._device = device
        loaded(self.model, device).for_transcription()

    def process_many(self, work: Sequence[OpenWork]) -> list[list[Segment | Reject]]:
        transcripts = map(summarized, transcribed(self.model, self._device, work, self.batch_seconds))
        return [[self.judge(segment, next(transcripts)) for segment in segments] for _, segments in work]

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        """Return the segment, kept or dropped, given its transcript (see `summarized`)."""
        raise NotImplementedError


def transcribed(
    name: str,
    device: str,
    work: Sequence[OpenWork],
    batch_seconds: float,
    speed: float = 1.0,
    decoding: DecodingOptions | None = None,
    tokens: bool = False,
) -> list[Transcript]:
    """Return the transcripts of all segments of several recordings, in order, with the `language` of each if known.
    The audio is played `speed` times as fast, which changes the pitch. Raises ConfigError for unsupported options."""
    from stentor.inference.recording import ArrayRecording

    model = loaded(name, device)
    rate = model.bundle.processor.sample_rate
    pairs = [(recording, segment) for recording, segments in work for segment in segments]
    decoding = replace(decoding or DecodingOptions(), keep_failed=True, batch_seconds=batch_seconds)
    results: dict[int, Transcript] = {}
    for language, chosen in by_language(segment for _, segment in pairs).items():
        audio = (pairs[i][1].audio(pairs[i][0], rate) for i in chosen)
        clips = (ArrayRecording(clip, round(rate * speed), rate) for clip in audio)
        transcriber = model.transcriber(decoding, tokens=tokens, language=language)
        results |= zip(chosen, transcriber.transcribe(clips), strict=True)
    return [results[i] for i in range(len(pairs))]


def by_language(segments: Iterable[Segment]) -> dict[str | None, list[int]]:
    """Return the indices of the segments of each language; None: unknown."""
    places: dict[str | None, list[int]] = {}
    for i, segment in enumerate(segments):
        places.setdefault(segment.measures.get("language"), []).append(i)
    return places


def summarized(transcript: Transcript) -> dict[str, Any]:
    """Return `{"text", "confidence", "language"}` of a segment; `confidence` is the mean probability of a token. An
    unknown language is left out."""
    parts = transcript.segments
    seconds = sum(p["end"] - p["start"] for p in parts)
    log_prob = sum(p["log_prob"] * (p["end"] - p["start"]) for p in parts) / seconds if seconds else 0.0
    confidence = round(math.exp(log_prob), 4) if transcript.text else 0.0
    language = {"language": transcript["language"]} if transcript["language"] else {}
    return {"text": transcript.text.strip(), "confidence": confidence, **language}


class TranscribeStage(TranscribingStage):
    """Transcribe segments (`text`, `confidence`), with the `language` of each segment if known."""

    type: Literal["transcribe"] = "transcribe"
    reasons: ClassVar = {"no_text": "the recogniser finds no words"}

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        return segment.measured(**transcript) if transcript["text"] else segment.drop("no_text")


class AgreementStage(TranscribingStage):
    """Transcribe segments again with another recogniser and drop those whose texts differ. `disagreement` is the word
    error rate of its text against the record's, or the character error rate for languages without spaces. Recognisers
    of different kinds make different errors, so a text on which both agree is usually right."""

    type: Literal["agreement"] = "agreement"
    max_wer: float | None = Field(0.15, ge=0)
    """Maximum word error rate between the texts, without case and punctuation. The default, one word in seven, is how
    much good recognisers differ on clear speech. Null: no limit."""

    limits: ClassVar = (Limit("disagreement", "max_wer", "different_texts", upper=True),)
    reasons: ClassVar = {"different_texts": "two recognisers disagree"}

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        rate = difference(segment.measures["text"], transcript["text"], segment.measures.get("language"))
        return self.check(segment.measured(disagreement=round(rate, 4), second_text=transcript["text"]))


def difference(reference: str, text: str, language: str | None = None) -> float:
    """Return the word error rate between two texts, without case and punctuation; the character error rate for
    languages without spaces."""
    from stentor.metrics.wer import rate, text_errors

    return rate(text_errors(reference, text, language))
