"""Tensor files of checkpoints: each rank writes its rows of the tensors, any number of ranks reads the rows it needs.

resume/weights.safetensors                   of one process: whole tensors
resume/weights-00001-of-00004.safetensors    of the first of four: its rows; where they begin is in the file's metadata

The metadata has the form of torch's HuggingFaceStorageWriter (`DCP_SHARDING_INFO`), whose reader takes these files,
too. It does not write them, because it makes one copy of all that a rank has as bytes, talks on the process group of
the training, and its consolidation loses numbers without dimensions and refuses those that are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from stentor.data.atomic_write import follow_umask
from stentor.engine.sharding import TensorShard, local_shard

SHARDING = "DCP_SHARDING_INFO"
OFFSETS = "saved_offsets"


def save_shards(folder: Path, kind: str, shards: Mapping[str, TensorShard], rank: int = 0, world: int = 1) -> Path:
    """Write this rank's file of a kind of tensors, which lie on the CPU and share no memory. Returns its path."""
    path, metadata = folder / f"{kind}.safetensors", {"format": "pt"}
    if world > 1:
        path = folder / f"{kind}-{rank + 1:05d}-of-{world:05d}.safetensors"
        offsets = {n: {OFFSETS: [s.first, *[0] * len(s.shape)][: len(s.shape)]} for n, s in shards.items()}
        metadata |= {SHARDING: json.dumps(offsets), "DCP_VERSION": "1.0"}
    save_file({n: s.data.contiguous() for n, s in shards.items()}, path, metadata)
    follow_umask(path)
    return path


class _Part(NamedTuple):
    file: Any  # opened by safetensors
    first: int  # the first row of the tensor that is there
    shape: list[int]

    @property
    def end(self) -> int:
        return self.first + (self.shape[0] if self.shape else 1)


class StoredTensors:
    """Tensors by name in files of `save_shards`, read when they are asked for. The files are mapped into memory, so
    that those that lie in one piece take none of it until they are changed."""

    def __init__(self, files: Sequence[Path]):
        self._parts: dict[str, list[_Part]] = {}
        for path in files:
            file: Any = safe_open(path, "pt")
            offsets = json.loads((file.metadata() or {}).get(SHARDING, "{}"))
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                first = next(iter(offsets[name][OFFSETS]), 0) if offsets else 0
                self._parts.setdefault(name, []).append(_Part(file, first, file.get_slice(name).get_shape()))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part.first)

    @classmethod
    def of(cls, folder: Path, kind: str) -> StoredTensors:
        """The tensors of a kind in a folder; none where there is no file of that kind."""
        return cls(sorted([*folder.glob(f"{kind}.safetensors"), *folder.glob(f"{kind}-*-of-*.safetensors")]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        return len(self._parts)

    def shape(self, name: str) -> torch.Size:
        """The shape of the whole tensor. Raises KeyError."""
        last = self._parts[name][-1]
        return torch.Size([last.end, *last.shape[1:]] if last.shape else [])

    def dtype(self, name: str) -> torch.dtype:
        part = self._parts[name][0]
        return (part.file.get_slice(name)[:0] if part.shape else part.file.get_tensor(name)).dtype  # type: ignore[no-any-return]

    def pieces(self, name: str, first: int = 0, end: int | None = None) -> Iterator[Tensor]:
        """Rows `first` to `end` of a tensor, in as many pieces as they lie in. Raises KeyError."""
        for part in self._parts[name]:
            begin, stop = max(first, part.first), part.end if end is None else min(end, part.end)
            if not part.shape or (part.first, part.end) == (begin, stop):
                yield part.file.get_tensor(name)
            elif begin < stop:
                yield part.file.get_slice(name)[begin - part.first : stop - part.first]

    def rows(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        """Rows `first` to `end` of a tensor, on the CPU; all of them when nothing is said. Raises KeyError."""
        pieces = list(self.pieces(name, first, end))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def whole(self, scratch: Path) -> dict[str, Tensor]:
        """All tensors, whole. Those that lie in several pieces are put together in the file `scratch`, one after the
        other, and stay there: none of them is held in memory. It may be deleted when they are not used any more."""
        divided = [name for name, parts in self._parts.items() if len(parts) > 1]
        places: dict[str, int] = {}
        with scratch.open("wb") as file:
            for name in divided:
                file.write(b"\0" * (-file.tell() % 64))  # a view as numbers begins at a multiple of their size
                places[name] = file.tell()
                for piece in self.pieces(name):
                    file.write(piece.contiguous().view(-1).view(torch.uint8).numpy().data)
        tensors = {}
        for name in self:
            if name not in places:
                tensors[name] = self.rows(name)
                continue
            shape, dtype = self.shape(name), self.dtype(name)
            size = shape.numel() * dtype.itemsize
            data = torch.from_numpy(np.memmap(scratch, np.uint8, "c", places[name], (size,)))
            tensors[name] = data.view(dtype).view(shape)
        return tensors


class MeanTensors(StoredTensors):
    """The weighted mean of the same tensors in several places, in float64; counters and the names in `from_first`
    (random draws) are those of the first. `weights` sum up to 1; none: all count alike."""

    def __init__(
        self,
        stored: Sequence[StoredTensors],
        from_first: Set[str] = frozenset(),
        weights: Sequence[float] | None = None,
    ):
        self.stored, self.from_first, self.weights = stored, from_first, weights
        self._parts = stored[0]._parts

    def rows(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        values = [stored.rows(name, first, end) for stored in self.stored]
        if not values[0].is_floating_point() or name in self.from_first:
            return values[0]
        if self.weights is None:
            return sum(value.double() for value in values) / len(values)  # type: ignore[return-value]
        return sum(weight * value.double() for weight, value in zip(self.weights, values))  # type: ignore[return-value]


@torch.no_grad()
def read_into(target: Tensor, stored: StoredTensors, name: str) -> None:
    """Fill a tensor, or the rows of it that are on this rank. Raises KeyError for an unknown name, ValueError for
    another shape."""
    data, shape, first = local_shard(target)
    if stored.shape(name) != shape:
        raise ValueError(f"{name} is {list(stored.shape(name))} there and {list(shape)} here")
    if data.numel():
        data.copy_(stored.rows(name, first, first + (len(data) if data.ndim else 1)))
