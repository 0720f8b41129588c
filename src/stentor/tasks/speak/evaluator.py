"""Second models that listen to speech and say what they hear: its words, whose voice it is, or how good it sounds.

To add an evaluator: one file in `stentor/evaluators`, or in a plug-in, with a `SpeechEvaluator` subclass. A
predictor of quality (UTMOS, DNSMOS, ...)
is one with `gives = "quality"`; see examples/judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np


@dataclass
class LoadedEvaluator:
    """A judge whose model is loaded."""

    rate: int
    """Samples per second that it hears."""
    hear: Callable[[Sequence[np.ndarray], Sequence[str | None]], list[Any]]
    """What it says about each clip, float32 [samples] at `rate`, in the language named beside it (None: not known)."""


class SpeechEvaluator(Choice):
    """A second model that listens to synthetic speech."""

    package: ClassVar = "stentor.evaluators"
    gives: ClassVar[Literal["text", "voice", "quality"]]
    """What is said about a clip: the text that is heard (str), an embedding of the voice (float32 [E]), or a number
    where higher is better (float), which is shown under the judge's `type`."""
    relative: ClassVar[bool] = False
    """Of voices: whether embeddings can only be compared in relation to those of a whole set."""

    def open(self, device: str = "cpu") -> LoadedEvaluator:
        """Load the model. Raises ConfigError when it cannot be had."""
        raise NotImplementedError


SHORTEST = 0.25
"""Seconds that a clip has at least when it is listened to; silence is added to shorter ones."""


def evaluate_clips(
    evaluator: SpeechEvaluator,
    audios: Sequence[np.ndarray],
    rate: int,
    languages: Sequence[str | None] | None = None,
    device: str = "cpu",
) -> list[Any]:
    """What a judge says about each clip, float32 [samples] at `rate` Hz. Its model is loaded once, and kept."""
    import numpy as np

    if not audios:
        return []
    loaded = _opened(evaluator.model_dump_json(by_alias=True), type(evaluator), str(device))
    clips = []
    for audio in audios:
        audio = np.asarray(audio, np.float32)
        if rate != loaded.rate and len(audio):
            import soxr

            audio = soxr.resample(audio, rate, loaded.rate, quality="HQ")
        clips.append(np.pad(audio, (0, max(0, round(SHORTEST * loaded.rate) - len(audio)))))
    return loaded.hear(clips, languages or [None] * len(clips))


@lru_cache(maxsize=4)
def _opened(section: str, kind: type[SpeechEvaluator], device: str) -> LoadedEvaluator:
    import json

    return kind.model_validate(json.loads(section), by_alias=True, by_name=False).open(device)


def evaluator_for(name: str, gives: Literal["text", "voice"]) -> SpeechEvaluator:
    """The judge that a model's folder or Hub id alone stands for: a recogniser, or an embedder of voices (a bare
    `cepstra` is the built-in one). A known `type` of another judge of this kind, such as a plug-in's, is taken as
    that."""
    known = SpeechEvaluator.choices()
    if name in known and known[name].gives == gives:
        return SpeechEvaluator.model_validate({"type": name})
    return SpeechEvaluator.model_validate({"type": {"text": "recognizer", "voice": "xvector"}[gives], "from": name})
