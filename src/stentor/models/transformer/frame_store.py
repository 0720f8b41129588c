"""Frame store: what a frozen encoder makes of each clip, in a folder, so that no clip is encoded twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.data.atomic_write import atomic_path


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
    """The frames of a file; None where there is none, or a damaged one, whose clip is encoded anew."""
    try:
        return torch.from_numpy(np.load(path))
    except (FileNotFoundError, ValueError, EOFError):
        return None


def digest(*tensors: Tensor) -> str:
    """Of the values of tensors, in order."""
    state = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()
