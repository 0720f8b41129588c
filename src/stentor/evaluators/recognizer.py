"""A recogniser as a judge of intelligibility: what it writes down is compared with what was to be said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.load import Model

BATCH_SECONDS = 120.0
"""Padded seconds of audio that a recogniser hears together."""
SHORTEST_ANSWER, TOKEN_RATE = 16, 25
"""Tokens that a foreign recogniser may write: so many, and so many a second."""


class Recognizer(SpeechEvaluator):
    """A recogniser: its word and character error rates on synthetic speech say how intelligible that is."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["recognizer"] = "recognizer"
    source: str = Field(alias="from")
    """A run folder, an export folder or a Hub id: a model of Stentor's for the task `transcribe`, or a recogniser of
    transformers (Whisper, a CTC model, or any other that `AutoModelForSpeechSeq2Seq` knows)."""
    language: str | None = None
    """The language that every clip is in. Null: that of its record."""

    gives: ClassVar = "text"

    def open(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.errors import ConfigError
        from stentor.inference.load import CONFIG, find_export, load
        from stentor.models.base import Family

        folder = find_export(self.source)
        try:
            config = json.loads((folder / CONFIG).read_text("utf-8"))
        except ValueError as error:
            raise ConfigError(f"{folder / CONFIG} is no JSON ({error}): get the recogniser again.") from None
        families: list[type[Family]] = list(Family.choices().values())
        family = next((known for known in families if known.can_load(config)), None)
        if family is None:
            return _foreign(folder, self.source, device)
        if "transcribe" not in family.tasks:
            raise ConfigError(f"{self.source} is no recogniser: its family is {family.__name__}.")
        model = load(folder, device)
        task = model.for_transcription()
        return LoadedEvaluator(model.bundle.processor.sample_rate, partial(_stentor, model, task, self.language))


def _stentor(
    model: Model, task: Any, language: str | None, audios: Sequence[np.ndarray], languages: Sequence[str | None]
) -> list[str]:
    """Answers as in `stentor evaluate`; clips longer than the model takes are cut at pauses, as by `transcribe`."""
    from stentor.data.batch import Example
    from stentor.inference.transcribe import batches

    processor = model.bundle.processor
    rate = processor.sample_rate
    most = processor.max_seconds and round(processor.max_seconds * rate)
    answers: dict[int, str] = {}
    items = []
    for i, (audio, spoken) in enumerate(zip(audios, languages, strict=True)):
        named = _known(model, language or spoken)
        if most and len(audio) > most:
            answers[i] = model.transcribe(audio, rate, language=named).text
        else:
            items.append((i, Example(f"clip {i}", audio, language=named, context=task.context)))
    for batch in batches(items, lambda item: len(item[1].audio), round(BATCH_SECONDS * rate)):
        outputs = task.predict(model.bundle, [example for _, example in batch])
        answers |= {i: output["text"] for (i, _), output in zip(batch, outputs, strict=True)}
    return [answers[i] for i in range(len(audios))]


def _known(model: Model, language: str | None) -> str | None:
    """The language, or None where the recogniser does not know it: then it hears for itself."""
    from stentor.data.cut import cut_from_record

    if language is None:
        return None
    cut = cut_from_record({"id": "clip", "audio_path": "-", "duration": 1.0, "language": language}, Path(), "clip")
    return None if model.bundle.family.drop_reason(model.bundle.processor, cut, False) else language


def _foreign(folder: Path, name: str, device: str) -> LoadedEvaluator:
    """A sequence-to-sequence recogniser of transformers that is no family here, one clip at a time."""
    import torch

    from stentor.errors import ConfigError
    from stentor.inference.load import pick_device

    try:
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

        model = AutoModelForSpeechSeq2Seq.from_pretrained(str(folder), use_safetensors=True)
        processor = AutoProcessor.from_pretrained(str(folder))
        rate = int(processor.feature_extractor.sampling_rate)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{name} is no recogniser, neither of Stentor's nor one of transformers with its processor ({said})."
        ) from None
    place = pick_device(device)
    model.to(place).eval()

    @torch.no_grad()
    def hear(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[str]:
        texts = []
        for audio in audios:
            inputs = processor(audio, sampling_rate=rate, return_tensors="pt").to(place)
            most = SHORTEST_ANSWER + round(TOKEN_RATE * len(audio) / rate)
            ids = model.generate(**inputs, max_new_tokens=most, do_sample=False)
            texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0].strip())
        return texts

    return LoadedEvaluator(rate, hear)
