"""Codec tokens as tests store them in tar files, and a task that sums the tokens of its records."""

import io
import json
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


def token_shards(path: Path) -> None:
    """A list `path` with a shard of random codec tokens, eight codebooks of 1024, of a few texts."""
    rng, members, labels = np.random.default_rng(0), {}, []
    path.parent.mkdir(parents=True, exist_ok=True)
    tar = path.with_name("shard-000000.tar")
    for i, text in enumerate(["one two three four five six", "seven eight nine zero", "two three", "four four"] * 2):
        frames, name = int(rng.integers(40, 80)), f"{path.parent.name}{i}"
        members[f"{name}.npy"] = npy(rng.integers(0, 1024, (8, frames)).astype(np.int16))
        labels.append({"id": name, "text": text, "language_id": "en", "num_tokens": frames})
        labels[-1]["audio_duration"] = frames / 25
    write_tar(tar, members)
    tar.with_suffix(".jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    seconds = sum(label["audio_duration"] for label in labels)
    path.write_text(f"{tar} {tar.with_suffix('.jsonl')} {len(labels)} {seconds}\n")


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
