"""`language`: identify the language of segments by their audio or their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.errors import ConfigError, require
from stentor.inference.segments.base import Limit, Reject, Segment, Stage, loaded
from stentor.text.languages import LanguageName, among

if TYPE_CHECKING:
    from stentor.inference.recording import Recording

BATCH = 16
"""Number of segments per batch."""


class LanguageStage(Stage):
    """Identify the language of segments, by the audio with a model (`language`, `language_probability`) or, after a
    transcription, by the text (`text_language`). Drop languages other than `languages`, uncertain ones, and segments
    whose audio and text disagree."""

    type: Literal["language"] = "language"
    model: str | None = None
    """A multilingual Whisper model, to identify the language by the audio. Null: by the text, with py3langid."""
    languages: list[LanguageName] | None = None
    """Codes of the languages to keep, such as [en, de]. Null: all."""
    min_probability: float | None = Field(0.5, ge=0, le=1)
    """Lowest probability of the most likely language, by the audio. Short or noisy segments are unsure. Null: no
    limit."""
    agree: bool = True
    """When identifying by the text: drop segments whose text is not in the language of their `language`, if set."""

    limits: ClassVar = (Limit("language_probability", "min_probability", "unsure_language"),)
    reasons: ClassVar = {
        "other_language": "not one of `languages`",
        "unsure_language": "no language has a high enough probability",
        "disagreement": "audio and text are in different languages",
    }
    _device: str = "cpu"

    def setup(self, device: str) -> None:
        self._device = device
        if self.model is None:
            other = "give it a Whisper `model`, which hears the audio"
            require("speak", "The stage `language`", "py3langid", instead=other)
        elif not loaded(self.model, device).bundle.capabilities.detects_language:
            raise ConfigError(
                f"{self.model} cannot identify languages: the stage `language` needs a multilingual Whisper model."
            )

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        heard = self.model is not None
        for segment in self._heard(recording, segments) if heard else map(_read, segments):
            code = segment.measures["language" if heard else "text_language"]
            before = segment.measures.get("language")
            if self.languages is not None and among(code, tuple(self.languages)) is None:
                yield segment.drop("other_language", code, self.languages)
            elif self.agree and before is not None and among(code, (before,)) is None:
                yield segment.drop("disagreement", code, before)
            else:
                yield self.check(segment) if heard else segment

    def _heard(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment]:
        import torch

        from stentor.data.batch import Example

        assert self.model is not None
        bundle = loaded(self.model, self._device).bundle
        processor, network = bundle.processor, bundle.model
        longest = round(processor.max_seconds * processor.sample_rate)
        for first in range(0, len(segments), BATCH):
            batch = segments[first : first + BATCH]
            clips = [s.audio(recording, processor.sample_rate)[:longest] for s in batch]
            features = processor.audio_inputs([Example(str(i), clip) for i, clip in enumerate(clips)])["features"]
            with torch.inference_mode():
                table = network.language_probabilities(features.to(next(network.parameters()).device)).cpu()
            for segment, (probability, index) in zip(batch, zip(*(t.tolist() for t in table.max(-1)))):
                code = processor.named_language([network.languages[index]])
                yield segment.measured(language=code, language_probability=round(probability, 4))


def _read(segment: Segment) -> Segment:
    from stentor.text.detect import detect

    return segment.measured(text_language=detect(segment.measures.get("text", "")))
