"""`agreement`: a second recogniser must write about the same."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Limit, Reject, Segment
from stentor.inference.segments.transcribe import TranscribingStage


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
