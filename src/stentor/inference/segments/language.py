"""`language`: which language is spoken in segments, by their audio or by their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.errors import ConfigError
from stentor.inference.segments.base import Limit, Reject, Segment, Stage, loaded

if TYPE_CHECKING:
    from stentor.inference.recording import Recording

BATCH = 16
"""Segments whose language is found at a time."""


class LanguageStage(Stage):
    """Find the language of segments, by the audio with a model (`language`, `language_probability`) or, after a
    transcription, by the text (`text_language`); drop others than `languages`, unsure ones, and those whose audio and
    text disagree."""

    type: Literal["language"] = "language"
    model: str | None = None
    """A multilingual Whisper model: its language head hears the audio. Null: py3langid reads the text."""
    languages: list[str] | None = None
    """Codes of the languages that are kept, such as [en, de]. Null: all."""
    min_probability: float | None = Field(0.5, ge=0, le=1)
    """Lowest probability of the most likely language, by the audio. Short or noisy segments are unsure. Null: no
    limit."""
    agree: bool = True
    """By the text: drop segments whose text is in another language than `language` says, where it says one."""

    limits: ClassVar = (Limit("language_probability", "min_probability", "unsure_language"),)
    reasons: ClassVar = {
        "other_language": "not one of `languages`",
        "unsure_language": "no language is likely enough",
        "disagreement": "audio and text are in different languages",
    }
    _device: str = "cpu"

    @model_validator(mode="after")
    def _known(self) -> LanguageStage:
        from stentor.text.languages import find, unknown_language

        for code in self.languages or ():
            if find(code) is None:
                raise ValueError(unknown_language(code))
        return self

    def setup(self, device: str) -> None:
        self._device = device
        if self.model is None:
            from importlib.util import find_spec

            if find_spec("py3langid") is None:
                raise ConfigError(
                    "The language of a text is found by the package py3langid: `pip install 'stentor[speak]'`, or give "
                    "the stage `language` a Whisper `model`, which hears the audio."
                )
        elif not loaded(self.model, device).bundle.capabilities.detects_language:
            raise ConfigError(
                f"{self.model} knows no languages: the stage `language` needs a multilingual Whisper model."
            )

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        heard = self.model is not None
        for segment in self._heard(recording, segments) if heard else map(_read, segments):
            code = segment.measures["language" if heard else "text_language"]
            before = segment.measures.get("language")
            if self.languages is not None and code not in self.languages:
                yield segment.drop("other_language", code, self.languages)
            elif self.agree and before is not None and code != before:
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
