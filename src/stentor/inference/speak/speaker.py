"""A model that speaks, with what was asked of it for all its texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stentor.errors import ConfigError
from stentor.inference.speak import Speech, Utterance, check, printed, speak, spelled
from stentor.inference.speak.reference import make_voice, transcriber
from stentor.inference.speak.voice import Voice, load_voice
from stentor.tasks.speak.instruct import attributes, warnings
from stentor.text.verbalize import check_installed, normalize

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.load import Model
    from stentor.inference.speak.reference import Remark
    from stentor.tasks.speak.generation import Generation

log = logging.getLogger("stentor")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
"""What codes of languages look like."""


class Speaker:
    """Turns wishes into utterances, and utterances into speech. References and voices are read once each."""

    def __init__(
        self,
        model: Model,
        generation: Mapping[str, Any] | None = None,
        recognizer: str | None = None,
        normalize: bool = False,
        denoise: bool | None = None,
        remark: Remark | None = None,
    ):
        """`generation`: keys of the section `generation` in the place of the model's own, and keyword arguments of its
        `speak` (`compile`, `batch_tokens`). `remark` is told what a person should know; the default is the log.

        Raises ConfigError when the model does not speak, for wrong values, and where normalisation is not installed.
        """
        task = model.for_speech()
        given = dict(generation or {})
        self.options = {key: given.pop(key) for key in ("compile", "batch_tokens") if key in given}
        self.bundle, self.codec = model.bundle, model.bundle.processor.codec  # type: ignore[attr-defined]
        self.generation: Generation = _generation(task.generation, given)
        self.task = task
        self.published = not model.training
        # A model that never saw the token for it is confused by it.
        learned = self.published or bool(model.training.get("model", {}).get("from"))
        self.denoise = learned if denoise is None else denoise
        self.remark = remark or log.warning
        self.normalize = normalize
        if normalize:
            check_installed()
        self._transcribe = None
        if recognizer is not None:
            self._transcribe = transcriber(recognizer, str(next(model.bundle.model.parameters()).device))
        self._voices: dict[tuple[str, ...], Voice] = {}
        self._told: set[str] = set()

    def voice(
        self,
        reference: str | Path | np.ndarray,
        text: str | None = None,
        rate: int | None = None,
        language: str | None = None,
    ) -> Voice:
        """The voice of a reference; of a file, read once. See `stentor.inference.speak.reference.make_voice`."""
        key = None
        if isinstance(reference, (str, Path)):
            key = ("reference", str(reference), text or "", language or "")
            if key in self._voices:
                return self._voices[key]
        made = make_voice(reference, self.codec, text, language, rate, self._transcribe, self.remark)
        if key is not None:
            self._voices[key] = made
        return made

    def utterance(
        self,
        text: str,
        voice: Voice | str | Path | None = None,
        reference: str | Path | np.ndarray | None = None,
        reference_text: str | None = None,
        reference_rate: int | None = None,
        instruct: str | None = None,
        language: str | None = None,
        duration: float | None = None,
        speed: float = 1.0,
        seed: int | None = None,
    ) -> Utterance:
        """What to say and how, checked. Raises ConfigError, DataError and AudioError."""
        if reference is None and reference_text is not None:
            raise ConfigError("There is a text of a reference, but no reference: give --reference with the recording.")
        if reference is not None and voice is not None:
            raise ConfigError("Give a reference or a saved voice, not both.")
        language = self._language(language)
        if instruct is not None:
            instruct = self._instruct(instruct)
        if self.normalize:
            text = normalize(text, language)
        asked = Utterance(text, None, language, instruct, duration, speed, seed)
        for sentence in check(asked, self.bundle):
            self.remark(sentence)
        if reference is not None:
            asked.voice = self.voice(reference, reference_text, reference_rate, language)
        elif isinstance(voice, Voice):
            asked.voice = voice
        elif voice is not None:
            key = ("voice", str(voice))
            if key not in self._voices:
                self._voices[key] = load_voice(voice, self.codec)
            asked.voice = self._voices[key]
        if asked.voice is not None:
            self._known("text of the reference", asked.voice.text)
        return asked

    def speak(self, utterances: Sequence[Utterance], finish: bool = True) -> Iterator[Speech]:
        """Each utterance spoken, in their order."""
        known = [replace(u, **self.task.learned_style(u.language, u.instruct)) for u in utterances]
        for what in ("language", "instruct"):
            if any(getattr(u, what) != getattr(k, what) for u, k in zip(utterances, known)):
                self._once(f"This model was never told a record's {what} in training: it is left out.")
        return speak(self.bundle, known, self.generation, finish, self.denoise, **self.options)

    def _language(self, language: str | None) -> str | None:
        if language is not None and not language.strip():
            raise ConfigError("The language is empty: give a code such as en, or leave it out.")
        if language is not None and self.published and not LANGUAGE.fullmatch(language):
            self._once(f"The language {language!r} is no code such as en or cmn: the model may not know it.")
        if language is not None:
            self._known("language", language)
        return language

    def _instruct(self, instruct: str) -> str:
        if not instruct.strip():
            raise ConfigError("The instruct is empty: describe the voice, or leave it out.")
        self._known("instruct", instruct)
        if not self.published:
            return instruct.strip()
        for sentence in warnings(instruct):
            self._once(sentence)
        words = attributes(instruct)
        return ("，" if not instruct.isascii() else ", ").join(words)

    def _known(self, what: str, text: str) -> None:
        if unknown := spelled(text, self.bundle)[1]:
            self._once(f"This model does not know {printed(unknown)} in the {what} {text!r}, and leaves it out.")

    def _once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self.remark(sentence)


def _generation(settings: Generation, given: dict[str, Any]) -> Generation:
    if unknown := sorted(set(given) - set(type(settings).model_fields)):
        known = ", ".join(type(settings).model_fields)
        raise ConfigError(f"Unknown generation setting {', '.join(unknown)}; known: {known}.")
    try:
        return type(settings).model_validate({**settings.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}.") from None
