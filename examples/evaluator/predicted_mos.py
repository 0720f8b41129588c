"""A plug-in for Stentor in one file: an evaluator of quality from a network in ONNX, such as UTMOS or DNSMOS.

    stentor evaluate runs/voice --data test.jsonl --judge type=predicted_mos,path=utmos.onnx --plugin predicted_mos.py

Networks that predict a mean opinion score (Saeki et al. 2022, "UTMOS"; Reddy et al. 2021, "DNSMOS") come in many forms;
export yours with one input, float32 [1, samples], and one number as its first output. Needs `pip install onnxruntime`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.extend import ConfigError, LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np


class PredictedMos(SpeechEvaluator):
    """Predicted mean opinion score, from 1 to 5."""

    type: Literal["predicted_mos"] = "predicted_mos"
    path: Path
    """Path of the network, an ONNX file."""
    rate: int = Field(16000, ge=1)
    """Sample rate of its audio in Hz."""

    gives: ClassVar = "quality"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        import onnxruntime

        if not self.path.is_file():
            raise ConfigError(f"predicted_mos.path: there is no file {self.path}.")
        providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device.startswith("cuda") else None
        session = onnxruntime.InferenceSession(self.path, providers=providers or ["CPUExecutionProvider"])
        [entry] = session.get_inputs()

        def evaluate(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[float]:
            return [float(session.run(None, {entry.name: audio[None]})[0].reshape(-1)[0]) for audio in audios]

        return LoadedEvaluator(self.rate, evaluate)
