"""SSL front-end: a pretrained encoder of transformers, its output or a learnt mix of its layers; and the store of what
a frozen one makes of each clip, so that no clip is encoded twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from stentor.data.atomic_write import atomic_path
from stentor.errors import ConfigError
from stentor.models.encoders.encode import adjust, encode_states
from stentor.models.encoders.geometry import Geometry, geometry, mask
from stentor.models.encoders.load import load_encoder, new_encoder, normalizes
from stentor.models.pretrained.load import part_config
from stentor.models.transformer.config import SSL


def geometry_of(section: SSL) -> Geometry:
    """Lengths, frame rate and normalisation of the front-end: of the encoder, or of the means of its frames.

    Raises ConfigError when its config cannot be had, and for kinds that are not served.
    """
    config = part_config(section, "model.ssl")
    normalize = normalizes(section, config) if section.normalize is None else section.normalize
    shape, size = geometry(config, normalize=normalize, where="model.ssl"), section.subsample
    if size == 1:
        return shape
    most = None if shape.max_frames is None else shape.max_frames // size
    return replace(shape, convs=(*shape.convs, (1, size, 0)), max_frames=most)


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
    return FrontEnd(adjust(encoder, section.source is not None), shape, section.freeze, mix, section.subsample, store)


class FrontEnd(nn.Module):
    """The output of an encoder, or its layers, mixed with the softmax of learnt weights (Yang et al. 2021, SUPERB).

    Frozen, the encoder stays in evaluation mode and gets no gradients; only the mix learns.
    """

    encoder: Any
    mix: Any

    def __init__(
        self, encoder: Any, shape: Geometry, frozen: bool, mix: bool, subsample: int = 1, store: Path | None = None
    ):
        """`shape`: see `geometry_of`; `mix`: of all layers; `subsample`: frames whose mean is put out; `store`: a
        folder where the frames of a frozen encoder are kept."""
        super().__init__()
        self.store_folder = store
        self._store: FrameStore | None = None
        self.encoder, self.frozen, self.subsample = encoder, frozen, subsample
        self.shape = shape if subsample == 1 else replace(shape, convs=shape.convs[:-1])
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
                    form = "-layers" * (self.mix is not None) + f"-{self.subsample}" * (self.subsample > 1)
                    self._store = FrameStore(self.store_folder, self.encoder.state_dict(), form)
                states, frames = self._store.frames(audio, lengths, self._encode)
        return (states if self.mix is None else (states * self.mix.softmax(0)).sum(-1)), frames

    def _encode(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The output [B, T, size], or what is mixed [B, T, size, layers + 1], and lengths [B]."""
        states, frames = encode_states(self.encoder, self.shape, audio, lengths, every=self.mix is not None)
        output = states[0] if self.mix is None else torch.stack(states, -1)
        return (output, frames) if self.subsample == 1 else means(output, frames, self.subsample)

    def train(self, mode: bool = True) -> FrontEnd:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self


def means(frames: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Means of `size` frames each, [B, ceil(T / size), ...], and their lengths [B], of frames [B, T, ...] that are zero
    beyond their lengths [B]; the last one is that of the frames that are left."""
    count = -(-frames.shape[1] // size)
    padded = F.pad(frames, (0, 0) * (frames.dim() - 2) + (0, count * size - frames.shape[1]))
    present = mask(lengths, count * size).unflatten(1, (count, size)).sum(2).clamp(min=1)
    sums = padded.unflatten(1, (count, size)).sum(2)
    return sums / present[(...,) + (None,) * (frames.dim() - 2)], (lengths + size - 1) // size


class FrameStore:
    """Frames in half precision, a file for each clip, by digests of the encoder's weights and of what it hears, and by
    the precision that it computes in. Other runs and processes with the same encoder read them, too."""

    def __init__(self, folder: Path, weights: Mapping[str, Tensor], form: str = ""):
        """`weights`: of the encoder, which stay as they are; `form`: what is kept, where it is not its output."""
        self.folder, self.weights = folder, digest(*weights.values()) + form
        folder.mkdir(parents=True, exist_ok=True)

    def frames(
        self, audio: Tensor, lengths: Tensor, encode: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Frames [B, T, ...] float32, zero at padding, and their lengths [B], of clips [B, ..., T] with lengths [B].
        `encode` returns the same of clips that are new, which get the frames that they will have when they are read."""
        kind = audio.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else audio.dtype
        paths = [self._path(clip[..., :n], precision) for clip, n in zip(audio.cpu(), lengths.tolist())]
        clips = {i: clip for i, path in enumerate(paths) if (clip := _read(path)) is not None}
        if missing := [i for i in range(len(paths)) if i not in clips]:
            rows = torch.tensor(missing, device=audio.device)
            encoded, counts = encode(audio[rows][..., : int(lengths[rows].max())], lengths[rows])
            for i, clip, n in zip(missing, encoded, counts.tolist()):
                clips[i] = clip[:n].half().cpu()
                paths[i].parent.mkdir(exist_ok=True)
                with atomic_path(paths[i]) as partial, open(partial, "wb") as file:
                    np.save(file, clips[i].numpy())
        frames = [clips[i].to(audio.device, torch.float32) for i in range(len(paths))]
        return pad_sequence(frames, batch_first=True), torch.tensor([len(clip) for clip in frames], device=audio.device)

    def _path(self, clip: Tensor, precision: torch.dtype) -> Path:
        name = f"{self.weights}-{str(precision).removeprefix('torch.')}-{digest(clip)}"
        return self.folder / name[-2:] / f"{name}.npy"


def _read(path: Path) -> Tensor | None:
    """The frames of a file; None where there is none, or a damaged one, whose clip is encoded again."""
    try:
        return torch.from_numpy(np.load(path))
    except (FileNotFoundError, ValueError, EOFError):
        return None


def digest(*tensors: Tensor) -> str:
    """Hash of the values of tensors, in order."""
    state = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()
