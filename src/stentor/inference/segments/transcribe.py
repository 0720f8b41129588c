"""`transcribe`, what a recogniser hears in segments, and `agreement`: a second one must write about the same."""

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
    """Stages with a recogniser. A kind implements `judge`."""

    model: str
    """A recogniser: run folder, export or Hub id. Its own checks decode again what looks made up."""
    batch_seconds: float = 120.0
    """Most padded audio that is decoded at a time."""

    def setup(self, device: str) -> None:
        self._device = device
        loaded(self.model, device).for_transcription()

    def process_many(self, work: Sequence[OpenWork]) -> list[list[Segment | Reject]]:
        transcripts = map(summarized, transcribed(self.model, self._device, work, self.batch_seconds))
        return [[self.judge(segment, next(transcripts)) for segment in segments] for _, segments in work]

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        """Segment with such a transcript, see `summarized`."""
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
    """Transcripts of all segments of several recordings, in their order, in the `language` of each where it is known.
    The audio is played `speed` times as fast, as on a tape. Raises
    ConfigError for options that the model does not know."""
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
    """The places of the segments of each language; None: not known."""
    places: dict[str | None, list[int]] = {}
    for i, segment in enumerate(segments):
        places.setdefault(segment.measures.get("language"), []).append(i)
    return places


def summarized(transcript: Transcript) -> dict[str, Any]:
    """`{"text", "confidence", "language"}` of a segment; `confidence` is the mean probability of a token, and there is
    no language where it is unknown."""
    parts = transcript.segments
    seconds = sum(p["end"] - p["start"] for p in parts)
    log_prob = sum(p["log_prob"] * (p["end"] - p["start"]) for p in parts) / seconds if seconds else 0.0
    confidence = round(math.exp(log_prob), 4) if transcript.text else 0.0
    language = {"language": transcript["language"]} if transcript["language"] else {}
    return {"text": transcript.text.strip(), "confidence": confidence, **language}


class TranscribeStage(TranscribingStage):
    """Write down what is said (`text`, `confidence`), in the `language` of each segment where it is known."""

    type: Literal["transcribe"] = "transcribe"
    reasons: ClassVar = {"no_text": "the recogniser hears nothing"}

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        return segment.measured(**transcript) if transcript["text"] else segment.drop("no_text")


class AgreementStage(TranscribingStage):
    """Transcribe segments again with another recogniser and drop those whose texts differ (`disagreement`, the word
    error rate of its text against the record's; of characters for languages without spaces). Recognisers of different
    make err differently, so what both write is mostly right."""

    type: Literal["agreement"] = "agreement"
    max_wer: float | None = Field(0.15, ge=0)
    """Highest word error rate between the texts, without case and punctuation: a word in seven, as good recognisers
    differ on clear speech. Null: no limit."""

    limits: ClassVar = (Limit("disagreement", "max_wer", "different_texts", upper=True),)
    reasons: ClassVar = {"different_texts": "two recognisers write different things"}

    def judge(self, segment: Segment, transcript: dict[str, Any]) -> Segment | Reject:
        rate = difference(segment.measures["text"], transcript["text"], segment.measures.get("language"))
        return self.check(segment.measured(disagreement=round(rate, 4), second_text=transcript["text"]))


def difference(reference: str, text: str, language: str | None = None) -> float:
    """The word error rate between two texts, without case and punctuation; of characters for languages without
    spaces."""
    from stentor.metrics.wer import rate, word_errors
    from stentor.text.normalize import normalize

    pair = normalize(reference, "whisper_basic", language), normalize(text, "whisper_basic", language)
    return rate(word_errors([pair], language))
