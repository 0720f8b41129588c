"""Speaker: a speech synthesis model with the settings shared by its utterances."""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stentor.errors import ConfigError, require
from stentor.inference.speak.pieces import Synthesizer
from stentor.inference.speak.reference import Remark, closed, make_voice, transcriber
from stentor.inference.speak.utterance import Utterance, check, printed, spelled
from stentor.inference.speak.voice import Voice, find_voice, join_names, load_voice, voice_file
from stentor.models.base import Bundle
from stentor.section.explain import validated
from stentor.tasks.speak.generation import OF_TEXTS, Generation
from stentor.tasks.speak.instruct import resolve
from stentor.tasks.speak.task import Speak
from stentor.text.languages import find, known_code, table, unknown_language
from stentor.text.verbalize import normalize

log = logging.getLogger("stentor")
LONGEST_INSTRUCT = 500
"""Maximum number of characters of an instruct."""
OF_CALLS = frozenset({"compile", "batch_tokens"})
"""Keyword arguments of a model's `speak` that are allowed among generation settings."""


class Speaker(Synthesizer):
    """Prepares and synthesizes utterances; see `Model.speaker`. Each reference and voice is read once."""

    def __init__(
        self,
        bundle: Bundle,
        task: Speak,
        training: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        recognizer: str | None = None,
        normalize: bool = False,
        denoise: bool | None = None,
        remark: Remark | None = None,
    ):
        """Raises ConfigError for invalid values, and for `normalize` if its package is not installed.

        Args:
            bundle: the model and its processor.
            task: the task of the model.
            training: config of the training; empty for a published model.
            generation: keys of the section `task.generation` that override the model's, and keyword arguments of the
                model's `speak` (`compile`, `batch_tokens`).
            recognizer: model that transcribes references without a transcript.
            normalize: convert numbers, dates and amounts to words.
            denoise: generate clean speech from noisy voices; by default if the model has learned it.
            remark: function called with messages for the user; by default they are logged.
        """
        settings = dict(generation or {})
        if bundle.codebooks is None and (unused := sorted(settings.keys() - OF_TEXTS - OF_CALLS)):
            raise ConfigError(
                f"{unused[0]}: this model generates one frame at a time and has no such setting. Its settings are in "
                "`model.generation`."
            )
        options = {key: settings.pop(key) for key in OF_CALLS & settings.keys()}
        self.task, self.published = task, not training
        self.codec = bundle.processor.codec  # type: ignore[attr-defined]
        self.model_section: Mapping[str, Any] = training.get("model", {})
        # A model that never saw the token for denoising is confused by it.
        learned = self.published or bool(self.model_section.get("from"))
        denoise = learned if denoise is None else denoise
        super().__init__(bundle, _generation(task.generation, settings), denoise, options)
        self.remark = remark or log.warning
        self.normalize = normalize
        if normalize:
            require("speak", "Writing numbers in words", instead="leave out --normalize")
        self._transcribe = None
        if recognizer is not None:
            self._transcribe = transcriber(recognizer, str(next(bundle.model.parameters()).device))
        self.voices: Path | None = None
        """Folder of the voices that are saved with the model."""
        self._voices: dict[tuple[str, ...], Voice] = {}
        self._warned: set[str] = set()

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of generation: the section `generation` of the task, or of the model where it has its own."""
        if self.bundle.codebooks is not None:
            return self.generation.model_dump()
        family: Any = self.bundle.family
        return {**family.generation.model_dump(), **self.generation.model_dump(include=set(OF_TEXTS))}

    def voice(
        self,
        reference: str | Path | np.ndarray,
        text: str | None = None,
        rate: int | None = None,
        language: str | None = None,
    ) -> Voice:
        """Return the voice of a reference recording.

        Args:
            reference: file, or array [samples] or [channels, samples] at `rate` Hz.
            text: transcript of the reference; if None, the `recognizer` transcribes it.
            language: code of its language, such as `en`.

        Raises AudioError for an unusable recording, and ConfigError without transcript and recognizer."""
        key, language = None, known_code(language) if language else None
        if isinstance(reference, (str, Path)):
            key = ("reference", str(reference), text or "", language or "")
            if key in self._voices:
                return self._voices[key]
        voice = make_voice(reference, self.codec, text, language, rate, self._transcribe, self.remark)
        learned, end = self.bundle.traits.letters, closed(voice.text)
        if (learned is None or end[-1:] in learned) and self.bundle.processor.knows(end[-1:]):
            voice = replace(voice, text=end)
        if key is not None:
            self._voices[key] = voice
        return voice

    def prepare(self, utterance: Utterance) -> Utterance:
        """Check an utterance, normalize its text and load its voice. Raises ConfigError, DataError and AudioError."""
        voice, reference, text = utterance.voice, utterance.reference, utterance.text
        if reference is None and utterance.reference_text is not None:
            raise ConfigError("A transcript of a reference is given, but no reference: give --reference.")
        if reference is not None and voice is not None:
            raise ConfigError("Give a reference or a saved voice, not both.")
        language = self._language(utterance.language)
        if self.normalize:
            named = find(utterance.language or "")  # also one that the model was not trained on
            text = normalize(text, named.code if named else language)
        instruct = None if utterance.instruct is None else self._instruct(utterance.instruct, text)
        utterance = replace(utterance, text=text, language=language, instruct=instruct)
        for sentence in check(utterance, self.bundle):
            self.remark(sentence)
        if reference is not None:
            voice = self.voice(reference, utterance.reference_text, utterance.reference_rate, language)
        elif isinstance(voice, (str, Path)):
            key = self._saved(voice)
            if key not in self._voices:
                self._voices[key] = load_voice(voice, self.codec, self.voices)
            voice = self._voices[key]
        if voice is not None:
            self._warn_unknown("text of the reference", voice.text)
        return replace(utterance, voice=voice, reference=None)

    def holds(self, voice: Voice | str | Path | None) -> bool:
        """Return whether a voice is already loaded and checked, so that the codec is not needed."""
        return not isinstance(voice, (str, Path)) or self._saved(voice) in self._voices

    def _saved(self, voice: str | Path) -> tuple[str, ...]:
        """Identity of a saved voice: saved again under its name it is another one. Raises ConfigError."""
        base = find_voice(voice, self.voices)
        file = base if base.is_file() else voice_file(base)
        return "voice", str(base), str(file.stat().st_mtime_ns)

    def learned(self, utterance: Utterance) -> Utterance:
        """The utterance with the language and voice settings that the model got in training."""
        told = replace(utterance, **self.task.learned_style(utterance.language, utterance.instruct, self.model_section))
        for name, ratio in (("language", self.task.language_ratio), ("instruct", self.task.instruct_ratio)):
            if vars(utterance)[name] != vars(told)[name]:
                self._warn_once(f"This model was trained without the {name} of records: it is ignored.")
            elif not ratio and vars(utterance)[name]:
                self._warn_once(
                    f"This model was fine-tuned without the {name} of records (`task.{name}_ratio: 0`): it only knows "
                    "what the original model had learned, and may have forgotten some of it."
                )
        if self.task.only_instruct_ratio == 1 and not self.model_section.get("from"):
            if told.instruct is not None and told.voice is not None:
                self._warn_once(
                    "This model was never trained with a reference and an instruct together "
                    "(`task.only_instruct_ratio: 1`): give only one of the two."
                )
            told = replace(told, follows=told.instruct is None)
        return told

    def _language(self, language: str | None) -> str | None:
        if language is not None and not language.strip():
            raise ConfigError("The language is empty: give a code such as en, or leave it out.")
        if language is None or language.strip().lower() in ("none", "auto"):
            return None
        row = find(language)
        if row is None:
            raise ConfigError(unknown_language(language))
        if self.published and not row.omnivoice:
            known = sum(bool(other.omnivoice) for other in table().values())
            raise ConfigError(f"OmniVoice knows {known} languages, and not {row.name} ({row.code}): leave it out.")
        self._warn_unknown("language", row.code)
        return row.code

    def _instruct(self, instruct: str, text: str) -> str | None:
        if len(instruct) > LONGEST_INSTRUCT:
            raise ConfigError(
                f"The instruct has {len(instruct):,} characters; the limit is {LONGEST_INSTRUCT}. Describe the voice "
                "in a few words."
            )
        designed = self.published and self.bundle.codebooks is not None  # other models have words of their own
        instruct = resolve(instruct, text) if designed else instruct.strip()
        if not instruct:
            raise ConfigError("The instruct is empty: describe the voice, or leave it out.")
        known = self.bundle.traits.instructs
        if known == []:
            self._warn_once("This model was trained on records without an instruct: it is ignored.")
            return None
        if known is not None and self.task.instruct_from is not None and instruct not in known:
            close = difflib.get_close_matches(instruct, known, 1)
            raise ConfigError(
                f"This model has no voice {instruct!r}{f' (did you mean {close[0]!r}?)' if close else ''}. Its voices "
                f"are the values of {self.task.instruct_from} in its training records: {join_names(known)}."
            )
        self._warn_unknown("instruct", instruct)
        return instruct

    def _warn_unknown(self, name: str, text: str) -> None:
        if unknown := spelled(text, self.bundle)[1]:
            self._warn_once(f"This model does not know {printed(unknown)} in the {name} {text!r} and skips it.")

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self.remark(sentence)


def _generation(settings: Generation, changes: dict[str, Any]) -> Generation:
    if unknown := sorted(set(changes) - set(type(settings).model_fields)):
        known = ", ".join(type(settings).model_fields)
        raise ConfigError(f"Unknown generation setting {', '.join(unknown)}; known: {known}.")
    return validated(type(settings), {**settings.model_dump(), **changes})
