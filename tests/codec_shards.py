"""Codec tokens as tests store them in tar files, and a task that sums the tokens of its records."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stentor.data.batch import Batch, Example
from stentor.tasks.base import Task


def npy(array: np.ndarray, **options) -> bytes:
    """The array as a .npy file."""
    data = io.BytesIO()
    np.save(data, array, **options)
    return data.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes], kind: int = tarfile.PAX_FORMAT) -> None:
    with tarfile.open(path, "w", format=kind) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


class SumTokens(Task):
    """Answers a batch with the sum of each item's tokens. Not among the known kinds."""

    def example(self, cut, audio, rng):
        return Example(cut.id, audio, rng=rng)

    def reference(self, cut):
        return {}

    def collate(self, examples, processor, packed):
        import torch

        assert all(e.audio is None for e in examples)
        sums = torch.tensor([int(e.extra["codes"].sum()) for e in examples])
        return Batch({"sums": sums}, {"codes": len(examples)}, [e.id for e in examples])
