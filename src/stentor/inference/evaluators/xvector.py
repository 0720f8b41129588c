"""X-vector evaluator: a speaker embedding model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.tasks.diarize.windows import Embedder
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

LONGEST = 120.0
"""Maximum seconds of a clip that are used."""


class XVector(SpeechEvaluator):
    """Speaker embedding model (such as WavLM with an x-vector head), for speaker similarity (SIM)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["xvector"] = "xvector"
    source: str = Field(alias="from")
    """Hub id or folder of a model of `AutoModelForAudioXVector`, such as microsoft/wavlm-base-plus-sv. The first 120
    seconds of each clip are used."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""

    gives: ClassVar = "voice"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.inference.load import pick_device
        from stentor.tasks.diarize.speakers import XVectors

        section = Embedder.model_validate({"from": self.source, "revision": self.revision})
        model = XVectors(section, str(pick_device(device)), "xvector")

        def evaluate(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[np.ndarray]:
            return [model.embed(audio[: round(LONGEST * model.rate)]) for audio in audios]

        return LoadedEvaluator(model.rate, evaluate)
