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
    """Frames in half precision, a file for each clip, by digests of the encoder's weights and of what it hears. Other
    runs and processes with the same encoder read them, too."""

    def __init__(self, folder: Path, weights: Mapping[str, Tensor]):
        """`weights`: of the encoder, which stay as they are."""
        self.folder, self.weights = folder, digest(*weights.values())
        folder.mkdir(parents=True, exist_ok=True)

    def frames(
        self, audio: Tensor, lengths: Tensor, encode: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Frames [B, T, width] float32, zero at padding, and their lengths [B], of clips [B, ..., T] with lengths [B].
        `encode` returns the same of clips that are new, which get the frames that they will have when they are read."""
        paths = [self._path(clip[..., :n]) for clip, n in zip(audio.cpu(), lengths.tolist())]
        missing = [i for i, path in enumerate(paths) if not path.exists()]
        if missing:
            rows = torch.tensor(missing, device=audio.device)
            encoded, counts = encode(audio[rows][..., : int(lengths[rows].max())], lengths[rows])
            for i, clip, n in zip(missing, encoded, counts.tolist()):
                paths[i].parent.mkdir(exist_ok=True)
                with atomic_path(paths[i]) as partial, open(partial, "wb") as file:
                    np.save(file, clip[:n].half().cpu().numpy())
        clips = [torch.from_numpy(np.load(path)).to(audio.device, torch.float32) for path in paths]
        return pad_sequence(clips, batch_first=True), torch.tensor([len(clip) for clip in clips], device=audio.device)

    def _path(self, clip: Tensor) -> Path:
        name = f"{self.weights}-{digest(clip)}"
        return self.folder / name[-2:] / f"{name}.npy"


def digest(*tensors: Tensor) -> str:
    """Of the values of tensors, in order."""
    state = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()
