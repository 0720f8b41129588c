"""`label`: pseudo-labels by one or several recognisers and decodings, which vote for each word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.data.storage import StoragePath
from stentor.inference.labels.consensus import HypothesisWord, align, vote
from stentor.inference.options import DecodingOptions
from stentor.inference.segments.base import BatchedStage, OpenWork, Reject, Segment, loaded
from stentor.inference.segments.transcribe import by_language, difference, transcribed
from stentor.section import Section
from stentor.text.written_words import joined

if TYPE_CHECKING:
    from stentor.inference.transcribe import Transcript


class Decoding(Section):
    """Decoding settings. Several decodings of one model make different errors where it is uncertain."""

    beams: int | None = Field(None, ge=1)
    """Beam size. 1: greedy search. Null: the setting of the model's task."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature of the tokens; the same audio always gives the same sample. Null: the task's setting."""
    speed: float = Field(1.0, ge=0.5, le=2)
    """Playback speed of the audio, which also changes the pitch: 0.9 and 1.1 sound like other speakers."""

    language_model: StoragePath | None = None
    """Path of a text file, one sentence per line, for an n-gram language model (`language_model` of the task)."""
    language_model_weight: float | None = Field(None, gt=0)
    """Weight of the language model. Null: the setting of the model's task."""

    def options(self) -> DecodingOptions:
        """Return the options for a recogniser."""
        return DecodingOptions(
            beams=self.beams,
            temperature=None if self.temperature is None else [self.temperature],
            language_model=self.language_model,
            language_model_weight=self.language_model_weight,
        )


class LabelStage(BatchedStage):
    """Transcribe with all `models` and `decodings`, and let them vote for each word (ROVER). Adds `text`, `confidence`,
    `agreement`, and each hypothesis with its text and its word error rate against the consensus. Sets `label_source` to
    pseudo, because no person has checked the text."""

    type: Literal["label"] = "label"
    models: list[str] = Field(min_length=1)
    """Recognisers, the best one first: run folders, exports or Hub ids. Different kinds make different errors."""
    decodings: list[Decoding] = Field([Decoding()], min_length=1)
    """Decodings of each model, the best one first."""
    round: int = Field(1, ge=0)
    """Number of the labelling round, stored in the records."""
    batch_seconds: float = Field(120.0, gt=0)
    """Maximum seconds of padded audio per batch."""

    reasons: ClassVar = {"no_text": "most recognisers find no words"}
    _calibrations: list[list[float]] | None = None
    """Map from certainty features to confidence, for each hypothesis; see `calibrated`."""

    def calibrated(self, calibrations: list[list[float]]) -> LabelStage:
        """Return the stage with calibration maps (see `stentor.metrics.calibration`), by model and decoding."""
        stage = self.model_copy()
        stage._calibrations = calibrations
        return stage

    def setup(self, device: str) -> None:
        self._device = device
        for model in self.models:
            loaded(model, device).for_transcription()

    def process_many(self, work: Sequence[OpenWork]) -> list[list[Segment | Reject]]:
        from stentor.inference.transcribe import batches

        pairs = [(recording, segment) for recording, segments in work for segment in segments]
        hypotheses: dict[int, tuple[dict[str, Any], ...]] = {}
        for same in by_language(segment for _, segment in pairs).values():
            for batch in batches(same, lambda i: round(1000 * pairs[i][1].seconds), round(1000 * self.batch_seconds)):
                hypotheses |= zip(batch, self._hypotheses([(pairs[i][0], [pairs[i][1]]) for i in batch]), strict=True)
        following = map(hypotheses.__getitem__, range(len(pairs)))
        return [[self.judge(segment, next(following)) for segment in segments] for _, segments in work]

    def _hypotheses(self, work: Sequence[OpenWork]) -> Iterator[tuple[dict[str, Any], ...]]:
        """Return the hypotheses of each segment of a batch. A model encodes the batch once for all decodings."""
        columns = []
        for model in self.models:
            with loaded(model, self._device).bundle.cache_encoder():
                for decoding in self.decodings:
                    transcripts = transcribed(
                        model, self._device, work, self.batch_seconds, decoding.speed, decoding.options(), tokens=True
                    )
                    columns.append([_hypothesis(model, decoding, t) for t in transcripts])
        return zip(*columns, strict=True)

    def judge(self, segment: Segment, hypotheses: Sequence[dict[str, Any]]) -> Segment | Reject:
        """Return the segment with the consensus of the hypotheses, `{"model", "text", "words"}` and optionally
        `language`; `words` are `[word, feature, ...]`."""
        languages = [h["language"] for h in hypotheses if h.get("language")]
        language = segment.measures.get("language") or max(languages, key=languages.count, default=None)
        word_lists = [self._words(i, h["words"], language) for i, h in enumerate(hypotheses)]
        votes, agreement = vote(align(word_lists))
        text = hypotheses[0]["text"] if agreement == 1 else joined(v.word.written for v in votes)
        named = [
            {
                **{k: v for k, v in h.items() if k not in ("language", "words")},
                "wer": round(difference(text, h["text"], language), 4),
                "confidence": round(fmean(w.confidence for w in words) if words else 0.0, 4),
            }
            for h, words in zip(hypotheses, word_lists)
        ]
        labelled = segment.measured(
            text=text,
            **({"language": language} if language else {}),
            label_source="pseudo",
            round=self.round,
            labelled_by=self.models,
            confidence=round(fmean(v.confidence for v in votes) if votes else 0.0, 4),
            agreement=round(agreement, 4),
            hypotheses=named,
            signs=[h["words"] for h in hypotheses],
        )
        return labelled if votes else labelled.drop("no_text")

    def again(self, segment: Segment) -> Segment | Reject:
        """Repeat `judge` for a labelled segment, for example with other calibrations."""
        hypotheses = [{**h, "words": s} for h, s in zip(segment.measures["hypotheses"], segment.measures["signs"])]
        return self.judge(segment, hypotheses)

    def _words(self, number: int, words: Sequence[Sequence[Any]], language: str | None) -> list[HypothesisWord]:
        from stentor.text.normalize import normalize

        words_of_text = [
            HypothesisWord(word, normalize(word, language=language), self._confidence(number, signs))
            for word, *signs in words
        ]
        return [word for word in words_of_text if word.key]

    def _confidence(self, number: int, signs: Sequence[float]) -> float:
        from stentor.metrics.calibration import confidence

        return confidence(signs, self._calibrations[number]) if self._calibrations else signs[0]


def _hypothesis(model: str, decoding: Decoding, transcript: Transcript) -> dict[str, Any]:
    """Return a model's transcript as plain data, with the certainty features of each word: the lowest and the mean
    probability of its tokens."""
    words = [word for part in transcript.segments for word in _signs(part["tokens"])]
    return {
        "model": model,
        **decoding.model_dump(mode="json", exclude_defaults=True),
        "language": transcript["language"],
        "text": transcript.text.strip(),
        "words": words,
    }


def _signs(tokens: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return the words of `{"token", "logprob"}` as `[word, lowest probability of a token, mean probability]`."""
    from stentor.tasks.decode_checks import word_tokens

    words = word_tokens(range(len(tokens)), lambda positions: "".join(tokens[i]["token"] for i in positions))
    certain = [(word, [math.exp(tokens[i]["logprob"]) for i in positions]) for word, positions in words]
    return [[word, round(min(each), 4), round(fmean(each), 4)] for word, each in certain]
