"""`agreement`: a second recogniser must write about the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Limit, Segment
from stentor.inference.segments.transcribe import TranscribingStage

if TYPE_CHECKING:
    from stentor.inference.recording import Recording


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

    def measure(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment]:
        from stentor.metrics.wer import rate, word_errors
        from stentor.text.normalize import normalize

        for segment, other in zip(segments, self.transcripts(recording, segments), strict=True):
            language = segment.measures.get("language")
            texts = [normalize(text, "whisper_basic", language) for text in (segment.measures["text"], other["text"])]
            wer = rate(word_errors([(texts[0], texts[1])], language))
            yield segment.measured(disagreement=round(wer, 4), second_text=other["text"])
