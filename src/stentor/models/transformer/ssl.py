"""SSL front-end: a pretrained encoder of transformers, its output or a learnt mix of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import ConfigError
from stentor.models.pretrained import part_config
from stentor.models.speech_llm.build import load_encoder, new_encoder, normalizes
from stentor.models.speech_llm.encoders import Geometry, adjust, encode, geometry
from stentor.models.transformer.frame_store import FrameStore
from stentor.models.transformer.frontend import SSL


def geometry_of(section: SSL) -> Geometry:
    """Lengths, frame rate and normalisation of the encoder.

    Raises ConfigError when its config cannot be had, and for kinds that are not served.
    """
    config = part_config(section, "model.ssl")
    normalize = normalizes(section, config) if section.normalize is None else section.normalize
    return geometry(config, normalize=normalize, where="model.ssl")


def front_end(section: SSL, shape: Geometry, saved_config: dict[str, Any] | None = None) -> FrontEnd:
    """The front-end of a section. `saved_config` is the `config` of an exported one, whose weights are about to be
    loaded: then nothing is fetched. Raises ConfigError when the model cannot be had."""
    from transformers import AutoConfig

    if saved_config is not None:
        settings = dict(saved_config)
        config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    else:
        config = part_config(section, "model.ssl")
    if section.store is not None and shape.kind == "wave":
        raise ConfigError("model.ssl.store: only frames of Whisper and Parakeet are stored: leave it out.")
    config.layerdrop = 0.0  # every layer is used in each step
    fetched = saved_config is None and section.source is not None
    encoder = load_encoder(section, config, "model.ssl") if fetched else new_encoder(config)
    store = section.store if saved_config is None else None  # it concerns the run
    mix = shape.kind == "wave" if section.mix is None else section.mix
    return FrontEnd(adjust(encoder, section.source is not None), shape, section.freeze, mix, store)


class FrontEnd(nn.Module):
    """The output of an encoder, or its layers, mixed with the softmax of learnt weights (Yang et al. 2021, SUPERB).

    Frozen, the encoder stays in evaluation mode and gets no gradients; only the mix learns.
    """

    encoder: Any
    mix: Any

    def __init__(self, encoder: Any, shape: Geometry, frozen: bool, mix: bool, store: Path | None = None):
        """`mix`: of all layers; `store`: a folder where the frames of a frozen encoder are kept."""
        super().__init__()
        self.store_folder = store
        self._store: FrameStore | None = None
        self.encoder, self.shape, self.frozen = encoder, shape, frozen
        self.mix = None
        if mix:
            self.mix = nn.Parameter(torch.zeros(int(encoder.config.num_hidden_layers) + 1))
            """A weight for the layers' input and for each layer; equal at first."""
        if frozen:
            encoder.requires_grad_(False)

    @property
    def size(self) -> int:
        """Values per frame."""
        return int(self.encoder.config.hidden_size)

    @property
    def config(self) -> dict[str, Any]:
        """The encoder's transformers config, as `front_end` takes it."""
        return dict(self.encoder.config.to_diff_dict()) | {"model_type": self.encoder.config.model_type}

    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames [B, T, size], zero at padding, and their lengths [B], of audio [B, samples] or log-mel [B, mels, T]
        and lengths in the same steps.

        A clip's frames do not depend on the batch.
        """
        learning = torch.is_grad_enabled()
        with torch.set_grad_enabled(learning and not self.frozen):
            if self.store_folder is None or not learning:  # what is scored is what an export writes, in full precision
                states, frames = self._encode(audio, lengths)
            else:
                if self._store is None:  # now that the weights are loaded
                    self._store = FrameStore(self.store_folder, self.encoder.state_dict(), self.mix is not None)
                states, frames = self._store.frames(audio, lengths, self._encode)
        return (states if self.mix is None else (states * self.mix.softmax(0)).sum(-1)), frames

    def _encode(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The output [B, T, size], or what is mixed [B, T, size, layers + 1], and lengths [B]."""
        if self.mix is None:
            return encode(self.encoder, self.shape, audio, lengths)
        states: list[Tensor] = []
        output, frames = encode(self.encoder, self.shape, audio, lengths, states=states)
        return torch.stack([*states, output], -1), frames

    def train(self, mode: bool = True) -> FrontEnd:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self
