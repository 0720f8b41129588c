"""Labels, a loss and a callback from one plug-in file each train a diarizer (examples/diarize)."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "diarize"
PLUGINS = [
    arg for name in ("count_labels", "ordinal_loss", "talk_share") for arg in ("--plugin", FOLDER / f"{name}.py")
]


@pytest.mark.long
def test_plugins_train_and_answer(cli, rows, tmp_path):
    small = [
        "data.train.0.count=12",
        "data.train.0.source.count=60",
        "data.eval.voices.count=3",
        "train.epochs=12",
        "data.eval.voices.source.count=30",
        "model.shared.d_model=32",
        "model.shared.layers=1",
        "train.device=cpu",
        "train.log_every=1",
        f"output={tmp_path}",
        "optim.lr=3e-3",
    ]
    cli("train", FOLDER / "count.yaml", *small, *PLUGINS)
    run = tmp_path / "count"
    history = [row for row in rows(run) if "train/order" in row]
    assert history[-1]["train/order"] < 0.8 * history[0]["train/order"]
    shares = rows(run, "talk_share/voices")
    assert shares and 0.3 < shares[-1]["talk_share/voices/reference"] < 1
    results = json.loads((run / "results.json").read_text())
    assert results["eval"]["voices"]["der"]["value"] < 1
    lines = (run / "predictions" / "voices.jsonl").read_text().splitlines()
    names = {s["speaker"] for line in lines for s in json.loads(line)["output"]["segments"]}
    assert names <= {"talk", "overlap"}


CHECKS = """
import numpy as np
import torch
from count_labels import Count
from ordinal_loss import Ordinal

labels, loss = Count(most=2), Ordinal()
targets = labels.targets(np.array([[0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]], bool), ["a", "b", "c"])
assert targets.tolist() == [0, 1, 2, 2]
sure = np.where(np.eye(3, dtype=bool)[targets], 20.0, -20.0).astype(np.float32)
assert np.allclose(labels.decode(sure), [[0, 0], [1, 0], [1, 1], [1, 1]])
logits = torch.from_numpy(sure)[None]
right, near, far, left_out = (float(loss.sum(logits, torch.tensor([[0, 1, 2, last]]))) for last in (2, 1, 0, -100))
assert right < 1e-6 and abs(near - 1) < 1e-3 and abs(far - 2) < 1e-3 and left_out < 1e-6
"""


def test_count_labels_and_their_loss(warm, monkeypatch):
    """In a process of its own: plug-ins stay known to the one that has imported them."""
    monkeypatch.chdir(FOLDER)
    done = warm([["-c", CHECKS]], 1)
    assert done.returncode == 0, done.stderr
