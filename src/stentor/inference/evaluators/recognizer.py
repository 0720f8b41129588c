"""Recogniser evaluator of intelligibility: its transcripts are compared with the texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.base import Family
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator
from stentor.text.languages import LanguageName

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.model import Model

BATCH_SECONDS = 120.0
"""Maximum padded seconds of audio per batch."""
MIN_TOKENS, TOKEN_RATE = 16, 25
"""Maximum tokens of a transformers recogniser: a constant, plus a number per second."""


class Recognizer(SpeechEvaluator):
    """Speech recognition model: its word and character error rates on synthetic speech measure intelligibility."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["recognizer"] = "recognizer"
    source: str = Field(alias="from")
    """Run folder, export folder or Hub id of a Stentor model for the task `transcribe`, or of a transformers recogniser
    (Whisper, a CTC model, or any other of `AutoModelForSpeechSeq2Seq`)."""
    language: LanguageName | None = None
    """Language of all clips. Null: the language of each record."""

    gives: ClassVar = "text"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.inference.load import CONFIG, find_export, load

        folder = find_export(self.source)
        try:
            config = json.loads((folder / CONFIG).read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(f"{folder / CONFIG} is not JSON ({error}): download the recogniser again.") from None
        families: list[Any] = list(Family.choices().values())
        family = next((known for known in families if known.can_load(config)), None)
        if family is None:
            return _transformers_recognizer(folder, self.source, device)
        if "transcribe" not in family.tasks:
            raise ConfigError(f"{self.source} is not a recogniser: its family is {family.__name__}.")
        model = load(folder, device)
        task = model.for_transcription()
        return LoadedEvaluator(model.bundle.processor.sample_rate, partial(_transcribe, model, task, self.language))


def _transcribe(
    model: Model, task: Any, language: str | None, audios: Sequence[np.ndarray], languages: Sequence[str | None]
) -> list[str]:
    """Transcripts as in `stentor evaluate`; clips longer than the model takes are cut at pauses, as by `transcribe`."""
    from stentor.inference.transcribe import batches

    processor = model.bundle.processor
    rate = processor.sample_rate
    most = processor.max_seconds and round(processor.max_seconds * rate)
    texts: dict[int, str] = {}
    items = []
    for i, (audio, clip_language) in enumerate(zip(audios, languages, strict=True)):
        known = _known(model, language or clip_language)
        if most and len(audio) > most:
            texts[i] = model.transcribe(audio, rate, language=known, keep_failed=True).text
        else:
            items.append((i, Example(f"clip {i}", audio, language=known, context=task.context)))
    for batch in batches(items, lambda item: len(item[1].audio), round(BATCH_SECONDS * rate)):
        outputs = task.predict(model.bundle, [example for _, example in batch])
        texts |= {i: output["text"] for (i, _), output in zip(batch, outputs, strict=True)}
    return [texts[i] for i in range(len(audios))]


def _known(model: Model, language: str | None) -> str | None:
    """The language, or None where the recogniser does not know it: then it identifies it itself."""
    import numpy as np

    processor = model.bundle.processor
    second = Example("clip", np.zeros(processor.sample_rate, np.float32), language=language)
    return language if language is None or processor.drop_reason(second, False) is None else None


def _transformers_recognizer(folder: Path, name: str, device: str) -> LoadedEvaluator:
    """A sequence-to-sequence recogniser of transformers that is no family here, one clip at a time."""
    import torch

    from stentor.inference.load import pick_device

    try:
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

        model = AutoModelForSpeechSeq2Seq.from_pretrained(str(folder), trust_remote_code=False, use_safetensors=True)
        processor = AutoProcessor.from_pretrained(str(folder), trust_remote_code=False)
        rate = int(processor.feature_extractor.sampling_rate)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{name} is not a recogniser, neither of Stentor nor of transformers with its processor ({reason})."
        ) from None
    torch_device = pick_device(device)
    model.to(torch_device).eval()

    @torch.no_grad()
    def transcribe(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[str]:
        texts = []
        for audio in audios:
            inputs = processor(audio, sampling_rate=rate, return_tensors="pt").to(torch_device)
            most = MIN_TOKENS + round(TOKEN_RATE * len(audio) / rate)
            ids = model.generate(**inputs, max_new_tokens=most, do_sample=False)
            texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0].strip())
        return texts

    return LoadedEvaluator(rate, transcribe)
