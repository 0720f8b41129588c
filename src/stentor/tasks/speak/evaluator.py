"""Speech evaluators: second models that transcribe speech, embed its voice or predict its quality.

To add an evaluator: one file in `stentor/inference/evaluators`, or in a plug-in, with a `SpeechEvaluator` subclass.
A predictor of quality (UTMOS, DNSMOS, ...) is one with `gives = "quality"`; see examples/evaluator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np


@dataclass
class LoadedEvaluator:
    """An evaluator with its model."""

    rate: int  # samples per second of the audio that it takes
    evaluate: Callable[[Sequence[np.ndarray], Sequence[str | None]], list[Any]]
    """Function that returns one output for each clip, float32 [samples] at `rate`, given its language (None:
    unknown)."""


class SpeechEvaluator(Choice):
    """A second model that listens to synthetic speech."""

    package: ClassVar = "stentor.inference.evaluators"
    required: ClassVar[tuple[str, ...]] = ("load",)
    gives: ClassVar[Literal["text", "voice", "quality"]]
    """The output for a clip: its text (str), an embedding of the voice (float32 [E]), or a number where higher is
    better (float), which is shown under the evaluator's `type`."""
    relative: ClassVar[bool] = False
    """Whether voice embeddings can only be compared relative to those of a whole set."""

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        """The evaluator with its model. Raises ConfigError when that cannot be loaded."""
        raise NotImplementedError

    def loaded(self, device: str = "cpu") -> LoadedEvaluator:
        """As `load`, but each model is loaded once."""
        return _load_cached(self.model_dump_json(by_alias=True), type(self), str(device))


SHORTEST = 0.25
"""Least seconds of a clip; silence is added to shorter ones."""


def evaluate_clips(
    evaluator: SpeechEvaluator,
    audios: Sequence[np.ndarray],
    rate: int,
    languages: Sequence[str | None] | None = None,
    device: str = "cpu",
) -> list[Any]:
    """The evaluator's output for each clip, float32 [samples] at `rate` Hz."""
    import numpy as np

    if not audios:
        return []
    loaded = evaluator.loaded(device)
    clips = []
    for audio in audios:
        audio = np.asarray(audio, np.float32)
        if rate != loaded.rate and len(audio):
            import soxr

            audio = soxr.resample(audio, rate, loaded.rate, quality="HQ")
        clips.append(np.pad(audio, (0, max(0, round(SHORTEST * loaded.rate) - len(audio)))))
    return loaded.evaluate(clips, languages or [None] * len(clips))


@lru_cache(maxsize=4)
def _load_cached(section: str, kind: type[SpeechEvaluator], device: str) -> LoadedEvaluator:
    return kind.model_validate(json.loads(section), by_alias=True, by_name=False).load(device)


def evaluator_for(name: str, gives: Literal["text", "voice"]) -> SpeechEvaluator:
    """The evaluator of a model's folder or Hub id: a recogniser, or an embedder of voices. A known `type` of such an
    evaluator (the built-in `cepstra`, or a plug-in's) is taken as that."""
    known: dict[str, Any] = dict(SpeechEvaluator.choices())
    if name in known and known[name].gives == gives:
        return SpeechEvaluator.model_validate({"type": name})
    return SpeechEvaluator.model_validate({"type": {"text": "recognizer", "voice": "xvector"}[gives], "from": name})
