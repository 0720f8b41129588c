"""WavLM with an ECAPA-TDNN head: the embedding of voices that SIM-o is reported with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

RATE = 16000
LONGEST = 120.0
"""Seconds of a clip that are heard at most, as in OmniVoice's evaluation."""


class WavLMEcapa(SpeechEvaluator):
    """WavLM-large with a weighted sum of its layers and an ECAPA-TDNN head, fine-tuned for speaker verification: SIM-o
    of Seed-TTS-eval and OmniVoice. The first 120 seconds of each clip are heard."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["wavlm_ecapa"] = "wavlm_ecapa"
    source: str = Field(alias="from")
    """File, folder or Hub id of `wavlm_large_finetune`, in safetensors or the published .pth."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""

    gives: ClassVar = "voice"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.inference.evaluators.wavlm_ecapa.modeling import Ecapa
        from stentor.inference.load import pick_device
        from stentor.models.pretrained.published_weights import read_tensors, weights_file

        path = weights_file(self, self.type)
        model = Ecapa(read_tensors(path, self.type), pick_device(device), str(path))

        def evaluate(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[np.ndarray]:
            return [model(audio[: round(LONGEST * RATE)]) for audio in audios]

        return LoadedEvaluator(RATE, evaluate)
