"""The plug-in of examples/plugin works from outside: a family, a loss and a callback that Stentor does not have."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "plugin"
FILE = FOLDER / "gru_ctc.py"
RUN = """\
model: {{type: gru_ctc, width: 32, layers: 1, dropout: 0}}
losses: {{ctc: {{type: smoothed_ctc, smoothing: 0.02}}}}
callbacks: [{{type: weight_growth, every: 2}}]
task: {{type: transcribe, normalizer: none}}
data:
  train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{corpus}/dev.jsonl"}}}}
  max_items: 16
  workers: 1
schedule: {{warmup_steps: 2}}
train: {{log_every: 1, device: cpu}}
output: "{runs}"
"""


@pytest.fixture
def config(corpus, tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(corpus=corpus, runs=tmp_path / "runs"))
    return path


@pytest.fixture(scope="module")
def plugin():
    spec = importlib.util.spec_from_file_location("gru_ctc", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gru_ctc"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gru_ctc"]


@pytest.mark.long
def test_trained_resumed_scored_transcribed_and_exported(config, cli, rows, corpus, tmp_path):
    fast = ["optim.lr=1e-2", "train.save_every=30", "train.eval_every=30", "name=gru"]
    cli("train", config, *fast, "train.steps=30", "--plugin", FILE)
    folder = tmp_path / "runs" / "gru"
    (folder / "results.json").unlink()
    done = cli("train", config, *fast, "train.steps=60", "--plugin", FILE)
    assert "Resuming from step 30" in done.stdout
    # The family and its loss: it learns what it is trained on.
    losses = [row["train/ctc"] for row in rows(folder)]
    assert len(losses) == 60 and losses[-1] < 0.2 * losses[0]
    scored = cli("evaluate", folder, "--data", corpus / "train.jsonl", "--json", tmp_path / "e.json", "--plugin", FILE)
    wer = json.loads((tmp_path / "e.json").read_text())["eval"]["wer"]
    assert wer["total"] == 31 and wer["value"] < 0.3, scored.stdout
    # The callback: rows of its own, and a state that outlives the resume.
    growth = rows(folder, "weight_growth/gru")
    assert [row["step"] for row in growth] == list(range(2, 61, 2))
    before, after = (next(r for r in growth if r["step"] == s)["weight_growth/gru"] for s in (30, 32))
    assert before > 1.1 and abs(after - before) < 0.05 * before
    # What comes after training knows the family as well.
    copy = tmp_path / "copy"
    cli("export", folder, "--to", copy, "--merge", "--plugin", FILE)
    transcripts = [cli("transcribe", m, corpus / "train2.wav", "--plugin", FILE).stdout for m in (folder, copy)]
    assert transcripts[0] == transcripts[1] and transcripts[0].strip()
    refused = cli("transcribe", folder, corpus / "train2.wav", check=False)
    assert refused.returncode == 2 and "For a family of a plug-in, give --plugin" in refused.stderr


def test_stages_start_from_the_export_before(config, cli, tmp_path):
    cli("train", config, "stages=[{train: {steps: 4}}, {train: {steps: 2}, optim: {lr: 1e-9}}]", "--plugin", FILE)
    folder = tmp_path / "runs" / "run"
    first, second = (json.loads((f / "results.json").read_text()) for f in (folder / "stages" / "1", folder))
    assert first["steps"] == 4 and second["steps"] == 2
    assert first["eval"]["dev"]["wer"] == second["eval"]["dev"]["wer"]
    from safetensors.torch import load_file

    one, two = (load_file(f / "export" / "model.safetensors") for f in (folder / "stages" / "1", folder))
    assert all(torch.allclose(one[n], two[n], atol=1e-6) for n in two)


def test_example_run_file(cli):
    for command in (["config", "check", FOLDER / "gru_ctc.yaml"], ["config", "keys", "losses"]):
        done = cli(*command, "--plugin", FILE)
    assert "losses.NAME[smoothed_ctc].smoothing" in done.stdout


def test_installed_by_its_entry_point(tmp_path, cli):
    """What pip would write for examples/plugin makes the types known without --plugin."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    [(group, points)] = project["project"]["entry-points"].items()
    assert project["tool"]["setuptools"]["py-modules"] == ["gru_ctc"]
    site = tmp_path / "site"
    about = site / "stentor_gru_ctc-0.1.0.dist-info"
    about.mkdir(parents=True)
    (site / "gru_ctc.py").write_text(FILE.read_text())
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 0.1.0\n")
    lines = [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    assert cli("config", "check", FOLDER / "gru_ctc.yaml", check=False).returncode == 2
    cli("config", "check", FOLDER / "gru_ctc.yaml", packages=[site])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("losses={text: cross_entropy}", "is trained with one loss term named `ctc`"),
        ("data.layout=packed", "a model of type gru_ctc needs the layout padded"),
        ("task.beams=4", "set `task.beams: 1`"),
    ],
)
def test_what_it_cannot_do_is_said(config, cli, override, message):
    done = cli("train", config, override, "train.steps=1", "--plugin", FILE, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_clip_does_not_depend_on_its_batch(plugin):
    from stentor.data.batch import Example

    torch.manual_seed(0)
    family = plugin.GruCtc(width=8, dropout=0)
    bundle = family._assemble("ab ")
    rng = np.random.default_rng(0)
    clips = [Example(str(n), rng.standard_normal(n).astype(np.float32), "ab a") for n in (900, 16000, 23456)]
    together = bundle.processor.collate(clips)
    assert together.counts == {"ctc": 8} and together.ids == ["16000", "23456"]
    assert together.dropped == [("900", "text_too_long", "900: its text needs 4 frames of 3: leave it out.")]
    inputs = [bundle.processor.collate([c], labels=False).inputs for c in clips]
    batch = bundle.processor.collate(clips, labels=False).inputs
    with torch.no_grad():
        padded, lengths = bundle.model.log_probs(**batch)
        for row, length, alone in zip(padded, lengths.tolist(), inputs):
            single, [frames] = bundle.model.log_probs(**alone)
            assert frames == length and torch.allclose(row[:length], single[0], atol=1e-5)
        # What the plan was told an item costs is what it takes.
        assert [bundle.processor.tokens(None, len(c.audio) / 16000) for c in clips] == lengths.tolist()


def test_smoothed_ctc(plugin):
    from stentor.losses.all_paths import CTCLoss

    torch.manual_seed(0)
    frames = {"log_probs": torch.randn(7, 2, 4).log_softmax(-1), "lengths": torch.tensor([7, 4])}
    frames |= {"targets": torch.tensor([1, 2, 3]), "target_lengths": torch.tensor([2, 1])}
    plain = CTCLoss().sum(**frames)
    assert torch.equal(plugin.SmoothedCTC(smoothing=0).sum(**frames), plain)
    even = sum(-frames["log_probs"][t, b].mean() for b, n in ((0, 7), (1, 4)) for t in range(n))
    torch.testing.assert_close(plugin.SmoothedCTC(smoothing=0.25).sum(**frames), 0.75 * plain + 0.25 * even)
