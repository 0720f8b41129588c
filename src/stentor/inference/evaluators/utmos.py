"""UTMOS: predicted mean opinion score of the naturalness of speech."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.errors import ConfigError, require
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

RATE = 16000


class Utmos(SpeechEvaluator):
    """UTMOS, a predicted mean opinion score from 1 (bad) to 5 (excellent): the strong learner without its phoneme
    encoder (Saeki et al. 2022, "UTMOS: UTokyo-SaruLab system for VoiceMOS challenge 2022")."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["utmos"] = "utmos"
    source: str = Field(alias="from")
    """File, folder or Hub id of `utmos22_strong`, in safetensors or the published .pt, or an ONNX network from float32
    [1, samples] to a number."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""

    gives: ClassVar = "quality"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        from stentor.inference.load import pick_device
        from stentor.models.pretrained.published_weights import read_tensors, weights_file

        path = weights_file(self, self.type, (".safetensors", ".onnx"))
        predict: Callable[[np.ndarray], float]
        if path.suffix == ".onnx":
            predict = _network(path, device)
        else:
            predict = _strong_learner(read_tensors(path, self.type), pick_device(device), str(path))

        def evaluate(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[float]:
            return [predict(audio) for audio in audios]

        return LoadedEvaluator(RATE, evaluate)


def _strong_learner(tensors: Mapping[str, Tensor], device: torch.device, where: str) -> Callable[[np.ndarray], float]:
    """The score of a clip, the mean over its frames: wav2vec 2.0, embeddings of data and judge, a BLSTM and a
    projection. Raises ConfigError where tensors of the checkpoint, which `where` names, are missing.

    The tensors and their names are those of SpeechMOS (github.com/tarepan/SpeechMOS), a port of the authors' own.
    """
    import numpy as np
    import torch
    from torch.nn import LSTM
    from torch.nn.functional import linear

    from stentor.models.pretrained.fairseq import wave_encoder

    def part(name: str) -> dict[str, Tensor]:
        return {n.removeprefix(name): t.to(device) for n, t in tensors.items() if n.startswith(name)}

    encoder = wave_encoder(part("wav2vec2."), where).to(device)
    try:
        conditions = torch.cat([tensors["domain_emb"], tensors["judge_emb"]], 1).to(device)
        size = tensors["blstm.weight_ih_l0"].shape[1], tensors["blstm.weight_hh_l0"].shape[1]
        lstm = LSTM(*size, batch_first=True, bidirectional=True)
        lstm.load_state_dict(part("blstm."))
        lstm.to(device)
        first, last = ((layer["weight"], layer["bias"]) for layer in (part("projection.0."), part("projection.2.")))
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"{where} is not a strong learner of UTMOS ({error}).") from None

    @torch.no_grad()
    def predict(audio: np.ndarray) -> float:
        frames = encoder(torch.from_numpy(np.ascontiguousarray(audio)).to(device)[None]).last_hidden_state
        x, _ = lstm(torch.cat([frames, conditions[:, None].expand(1, frames.shape[1], -1)], 2))
        return 3 + 2 * float(linear(linear(x, *first).relu(), *last).mean())

    return predict  # type: ignore[no-any-return]


def _network(path: Path, device: str) -> Callable[[np.ndarray], float]:
    """The first output of a network in ONNX; its second input, where it has one, is the sampling rate."""
    import numpy as np

    require("onnx", f"utmos.from: {path}", "onnxruntime")
    import onnxruntime

    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device.startswith("cuda") else []
    try:
        session = onnxruntime.InferenceSession(path, providers=providers or ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise ConfigError(f"utmos.from: {path} is not a network that onnxruntime can load: {error}") from None
    names = [entry.name for entry in session.get_inputs()]

    def predict(audio: np.ndarray) -> float:
        values = dict(zip(names, (audio[None], np.array(RATE, np.int64))))
        return float(np.reshape(session.run(None, values)[0], -1)[0])

    return predict
