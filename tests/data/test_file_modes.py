"""Modes of the files that exports and checkpoints hold: those that the umask gives."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stentor.data.atomic_write import follow_umask
from stentor.engine.sharding import TensorShard
from stentor.engine.tensor_files import save_shards
from stentor.models.pretrained.weights import write_weights

SOURCES = Path(__file__).parents[2] / "src" / "stentor"
WRITERS = ("save_file(", "save_torch_state_dict(", "save_pretrained(folder, state_dict")


@pytest.fixture(params=[(0o022, 0o644), (0o027, 0o640)], ids=["022", "027"])
def mode(request):
    umask, mode = request.param
    before = os.umask(umask)
    yield mode
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_weights_follow_the_umask(mode, tmp_path):
    write_weights({"weight": torch.ones(3)}, tmp_path)
    save_shards(tmp_path, "optimizer", {"step": TensorShard(torch.ones(3), torch.Size([3]))})
    assert {p.name: mode_of(p) for p in tmp_path.iterdir()} == {
        "model.safetensors": mode,
        "optimizer.safetensors": mode,
    }


def test_only_the_named_files_change(mode, tmp_path):
    for name in ("mine", "theirs"):
        save_file({"codes": torch.from_numpy(np.zeros(2, np.int16))}, tmp_path / name)
    follow_umask(tmp_path / "mine")
    assert mode_of(tmp_path / "mine") == mode and mode_of(tmp_path / "theirs") == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_every_module_that_writes_weights_follows_the_umask():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")}
    writers = [path for path, text in texts.items() if any(writer in text for writer in WRITERS)]
    assert len(writers) >= 5
    assert [path for path in writers if "follow_umask(" not in texts[path]] == []
