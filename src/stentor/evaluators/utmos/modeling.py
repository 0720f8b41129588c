"""The strong learner of UTMOS: wav2vec 2.0, embeddings of data and judge, a BLSTM and a projection.

The tensors and their names are those of SpeechMOS (github.com/tarepan/SpeechMOS), a port of the authors' own.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stentor.errors import ConfigError
from stentor.models.pretrained.fairseq import wave_encoder

ENCODER, LSTM = "wav2vec2.", "blstm."


class StrongLearner:
    """Predicted mean opinion scores of clips at 16 kHz."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device, where: str):
        """`tensors` are those of the checkpoint; `where` names it. Raises ConfigError where some are missing."""
        parts = {n.removeprefix(ENCODER): t for n, t in tensors.items() if n.startswith(ENCODER)}
        self.encoder = wave_encoder(parts, where).to(device)
        self.device = device
        try:
            self.conditions = torch.cat([tensors["domain_emb"], tensors["judge_emb"]], 1).to(device)
            size = tensors["blstm.weight_ih_l0"].shape[1], tensors["blstm.weight_hh_l0"].shape[1]
            self.lstm = nn.LSTM(*size, batch_first=True, bidirectional=True)
            self.lstm.load_state_dict({n.removeprefix(LSTM): t for n, t in tensors.items() if n.startswith(LSTM)})
            self.lstm.to(device)
            self.projection = [
                (tensors[f"projection.{i}.weight"].to(device), tensors[f"projection.{i}.bias"].to(device))
                for i in (0, 2)
            ]
        except (KeyError, RuntimeError) as error:
            raise ConfigError(f"{where} is no strong learner of UTMOS ({error}).") from None

    @torch.no_grad()
    def __call__(self, audio: np.ndarray) -> float:
        """The score of a clip float32 [samples]: the mean over its frames, from 1 to 5."""
        wave = torch.from_numpy(np.ascontiguousarray(audio)).to(self.device)
        frames = self.encoder(wave[None]).last_hidden_state
        conditions = self.conditions[:, None].expand(1, frames.shape[1], -1)
        x, _ = self.lstm(torch.cat([frames, conditions], 2))
        first, last = self.projection
        return 3 + 2 * float(functional.linear(functional.linear(x, *first).relu(), *last).mean())
