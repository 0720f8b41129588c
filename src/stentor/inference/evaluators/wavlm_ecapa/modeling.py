"""ECAPA-TDNN over the layers of WavLM, from the tensors of a checkpoint.

Desplanques, Thienpondt and Demuynck 2020, "ECAPA-TDNN: emphasized channel attention, propagation and aggregation in
TDNN based speaker verification", in the form of UniSpeech's speaker verification: its checkpoints name the tensors.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stentor.errors import ConfigError
from stentor.models.pretrained.fairseq import wave_encoder

ENCODER = "feature_extract.model."
DILATIONS = {"layer2": 2, "layer3": 3, "layer4": 4}


class Ecapa:
    """Voice embeddings of clips at 16 kHz."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device, where: str):
        """`tensors` are those of the checkpoint; `where` names it. Raises ConfigError where some are missing."""
        parts = {n.removeprefix(ENCODER): t for n, t in tensors.items() if n.startswith(ENCODER)}
        self.encoder = wave_encoder(parts, where).to(device)
        self.tensors = {n: t.to(device) for n, t in tensors.items() if not n.startswith(ENCODER)}
        self.device = device
        try:
            self(np.zeros(8000, np.float32))
        except (KeyError, RuntimeError) as error:
            raise ConfigError(f"{where} is no WavLM with an ECAPA-TDNN head ({error}).") from None

    @torch.no_grad()
    def __call__(self, audio: np.ndarray) -> np.ndarray:
        """The embedding, float32 [E], of a clip float32 [samples]."""
        wave = torch.from_numpy(np.ascontiguousarray(audio)).to(self.device)
        encoded = self.encoder(functional.layer_norm(wave, wave.shape)[None], output_hidden_states=True)
        # The last one after the encoder's layer norm, as the checkpoints were trained.
        layers = torch.stack([*encoded.hidden_states[:-1], encoded.last_hidden_state])
        weights = self.tensors["feature_weight"].softmax(0)
        mixed = (weights[:, None, None, None] * layers).sum(0).transpose(1, 2)
        x = self._dense(functional.instance_norm(mixed + 1e-6), "layer1", padding=2)
        blocks = []
        for name, dilation in DILATIONS.items():
            x = self._block(x, name, dilation)
            blocks.append(x)
        x = functional.relu(self._convolve(torch.cat(blocks, 1), "conv"))
        pooled = self._normalize(self._pool(x), "bn")
        return functional.linear(pooled, *self._pair("linear"))[0].float().cpu().numpy()

    def _block(self, x: Tensor, name: str, dilation: int) -> Tensor:
        """A squeeze-excitation Res2 block of [1, C, T]."""
        residual = self._convolve(x, f"{name}.shortcut") if f"{name}.shortcut.weight" in self.tensors else x
        x = self._dense(x, f"{name}.Conv1dReluBn1")
        width = len(self.tensors[f"{name}.Res2Conv1dReluBn.bns.0.weight"])
        first, *rest = x.split(width, 1)
        outputs, last = [], torch.zeros_like(first)
        for i, part in enumerate([first, *rest[:-1]]):
            last = self._convolve(
                last + part, f"{name}.Res2Conv1dReluBn.convs.{i}", padding=dilation, dilation=dilation
            )
            last = self._normalize(functional.relu(last), f"{name}.Res2Conv1dReluBn.bns.{i}")
            outputs.append(last)
        x = self._dense(torch.cat([*outputs, rest[-1]], 1), f"{name}.Conv1dReluBn2")
        squeezed = functional.relu(functional.linear(x.mean(2), *self._pair(f"{name}.SE_Connect.linear1")))
        gates = functional.linear(squeezed, *self._pair(f"{name}.SE_Connect.linear2")).sigmoid()
        return x * gates[..., None] + residual

    def _pool(self, x: Tensor) -> Tensor:
        """Mean and deviation over time under attention: [1, 2 C] of [1, C, T]."""
        scores = self._convolve(self._convolve(x, "pooling.linear1").tanh(), "pooling.linear2").softmax(2)
        mean = (scores * x).sum(2)
        variance = (scores * x**2).sum(2) - mean**2
        return torch.cat([mean, variance.clamp(min=1e-9).sqrt()], 1)

    def _dense(self, x: Tensor, name: str, padding: int = 0) -> Tensor:
        return self._normalize(functional.relu(self._convolve(x, f"{name}.conv", padding)), f"{name}.bn")

    def _convolve(self, x: Tensor, name: str, padding: int = 0, dilation: int = 1) -> Tensor:
        return functional.conv1d(x, *self._pair(name), padding=padding, dilation=dilation)

    def _normalize(self, x: Tensor, name: str) -> Tensor:
        mean, variance = self.tensors[f"{name}.running_mean"], self.tensors[f"{name}.running_var"]
        return functional.batch_norm(x, mean, variance, *self._pair(name))

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
