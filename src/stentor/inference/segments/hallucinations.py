"""`hallucinations`: drop texts that a recogniser hallucinated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Limit, Reject, Segment, Stage

if TYPE_CHECKING:
    from stentor.inference.recording import Recording

CLOSINGS = (
    "thank you",
    "thanks for watching",
    "thank you for watching",
    "thank you so much for watching",
    "please subscribe",
    "please subscribe to my channel",
    "like and subscribe",
    "see you next time",
    "see you in the next video",
    "vielen dank",
    "danke fürs zuschauen",
    "bis zum nächsten mal",
    "merci d'avoir regardé cette vidéo",
    "gracias por ver el video",
    "gracias",
    "grazie a tutti",
    "obrigado",
    "tack för att ni tittade",
    "bedankt voor het kijken",
    "izlediğiniz için teşekkür ederim",
    "dziękuję za uwagę",
    "спасибо за просмотр",
    "продолжение следует",
    "ご視聴ありがとうございました",
    "谢谢大家",
    "시청해주셔서 감사합니다",
)
"""Typical hallucinations of Whisper models for silence and noise (Baranski et al., "Investigation of Whisper ASR
hallucinations induced by non-speech audio", ICASSP 2025), normalised. They count if they are the whole text."""
CREDITS = (
    "amara org",
    "subtitles by the",
    "transcribed by https",
    "untertitel im auftrag des zdf",
    "untertitelung des zdf",
    "sous titres réalisés par",
    "sous titrage st 501",
    "subtítulos realizados por",
    "sottotitoli creati dalla comunità",
    "legendas pela comunidade",
    "субтитры сделал",
    "редактор субтитров",
    "altyazı m k",
    "请不吝点赞 订阅 转发",
    "字幕由",
)
"""Credits of subtitles, which are not speech. They count anywhere in a text."""
MAX_PHRASE = 12
"""Maximum number of words of a repeated phrase."""


class HallucinationsStage(Stage):
    """Drop hallucinated texts: phrases repeated in a loop (`repeats`, `compression_ratio`), more or less text than can
    be said in the time (`speaking_rate`, in letters per second, other characters by their weight), typical output for
    silence, and texts of low `confidence`."""

    type: Literal["hallucinations"] = "hallucinations"
    max_repeats: float | None = Field(4, ge=1)
    """Maximum number of consecutive repetitions of a phrase of up to 12 words: people say "no, no, no, no", loops
    repeat more often. Null: no limit."""
    max_compression_ratio: float | None = Field(2.4, gt=1)
    """Maximum ratio of the bytes of the text to its bytes after zlib, as in Whisper. Null: no limit."""
    max_speaking_rate: float | None = Field(30.0, gt=0)
    """Maximum letters per second; fast speech has 20. Null: no limit."""
    min_speaking_rate: float | None = Field(3.0, ge=0)
    """Minimum letters per second; with fewer, part of the speech is missing from the text. Null: no limit."""
    min_confidence: float | None = Field(0.4, ge=0, le=1)
    """Minimum mean probability of the tokens; Whisper decodes again below 0.37. Null: no limit."""
    phrases: list[str] = []
    """Additional phrases that are hallucinations if they are the whole text."""

    limits: ClassVar = (
        Limit("repeats", "max_repeats", "loop", upper=True),
        Limit("compression_ratio", "max_compression_ratio", "loop", upper=True),
        Limit("speaking_rate", "max_speaking_rate", "too_fast", upper=True),
        Limit("speaking_rate", "min_speaking_rate", "too_slow"),
        Limit("confidence", "min_confidence", "unsure_text"),
    )
    reasons: ClassVar = {
        "known_phrase": "a typical hallucination for silence",
        "loop": "a phrase is repeated",
        "too_fast": "more text than can be said in the time",
        "too_slow": "less text than is said in the time",
        "unsure_text": "the recogniser's confidence is low",
    }

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        from stentor.data.speaking_rate import weight
        from stentor.metrics.wer import words
        from stentor.tasks.decode_checks import compression_ratio
        from stentor.text.normalize import normalize

        closings = {normalize(phrase) for phrase in (*CLOSINGS, *self.phrases)}
        for segment in segments:
            text, language = segment.measures.get("text", ""), segment.measures.get("language")
            plain = normalize(text, language=language)
            measured = segment.measured(
                repeats=repeats(words(plain, language)),
                compression_ratio=round(compression_ratio(text), 2),
                speaking_rate=round(weight(text) / segment.seconds, 2),
            )
            phrase = plain if plain in closings else next((c for c in CREDITS if c in plain), None)
            yield measured.drop("known_phrase", phrase) if phrase is not None else self.check(measured)


def repeats(words: Sequence[str]) -> int:
    """Return the highest number of consecutive occurrences of a phrase; 1 without repetition."""
    most = 1
    for length in range(1, min(MAX_PHRASE, len(words) // 2) + 1):
        equal = 0
        for before, word in zip(words, words[length:]):
            equal = equal + 1 if before == word else 0
            most = max(most, equal // length + 1)
    return most
