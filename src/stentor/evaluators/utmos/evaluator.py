"""UTMOS: a predicted mean opinion score of how natural speech sounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.errors import ConfigError
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

RATE = 16000


class Utmos(SpeechEvaluator):
    """The strong learner of UTMOS without its phoneme encoder (Saeki et al. 2022, "UTMOS: UTokyo-SaruLab system for
    VoiceMOS challenge 2022"): 1 (bad) to 5 (excellent)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["utmos"] = "utmos"
    source: str = Field(alias="from")
    """File, folder or Hub id of `utmos22_strong` in safetensors, with the tensor names of the published .pt
    (docs/speak.md has the line that converts it), or a network in ONNX from float32 [1, samples] to a number."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""

    gives: ClassVar = "quality"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.evaluators.utmos.modeling import StrongLearner
        from stentor.inference.load import pick_device
        from stentor.models.pretrained.published_weights import read_tensors, weights_file

        path = weights_file(self, self.type, (".safetensors", ".onnx"))
        predict: Callable[[np.ndarray], float]
        if path.suffix == ".onnx":
            predict = _network(path, device)
        else:
            predict = StrongLearner(read_tensors(path, self.type), pick_device(device), str(path))

        def evaluate(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[float]:
            return [predict(audio) for audio in audios]

        return LoadedEvaluator(RATE, evaluate)


def _network(path: Path, device: str) -> Callable[[np.ndarray], float]:
    """The first output of a network in ONNX; its second input, where it has one, is the sampling rate."""
    import numpy as np

    try:
        import onnxruntime
    except ImportError:
        raise ConfigError(f"utmos.from: {path} needs onnxruntime: `pip install 'stentor[vad]'`.") from None
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device.startswith("cuda") else []
    try:
        session = onnxruntime.InferenceSession(path, providers=providers or ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise ConfigError(f"utmos.from: {path} is no network that onnxruntime can load: {error}") from None
    names = [entry.name for entry in session.get_inputs()]

    def predict(audio: np.ndarray) -> float:
        values = dict(zip(names, (audio[None], np.array(RATE, np.int64))))
        return float(np.reshape(session.run(None, values)[0], -1)[0])

    return predict
