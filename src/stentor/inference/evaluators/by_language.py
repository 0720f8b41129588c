"""Recognisers by language: published evaluations take another one for Chinese."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import SerializeAsAny

from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator, evaluate_clips

if TYPE_CHECKING:
    import numpy as np

RATE = 16000


class ByLanguage(SpeechEvaluator):
    """A recogniser for some languages, and another one for all others."""

    type: Literal["by_language"] = "by_language"
    languages: dict[str, SerializeAsAny[SpeechEvaluator]]
    """Recognisers by language code: `{zh: {type: sherpa_onnx, from: ...}}`."""
    other: SerializeAsAny[SpeechEvaluator]
    """Recogniser of all other languages."""

    gives: ClassVar = "text"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        for recognizer in (*self.languages.values(), self.other):
            recognizer.loaded(device)

        def transcribe(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[str]:
            texts = [""] * len(audios)
            for code in dict.fromkeys(languages):
                chosen = [i for i, language in enumerate(languages) if language == code]
                recognizer = self.languages.get(code or "", self.other)
                answers = evaluate_clips(recognizer, [audios[i] for i in chosen], RATE, [code] * len(chosen), device)
                for i, text in zip(chosen, answers, strict=True):
                    texts[i] = text
            return texts

        return LoadedEvaluator(RATE, transcribe)
