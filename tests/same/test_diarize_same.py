"""Who speaks when, trained: two processes give the numbers of one, a run that was cut off those of a straight one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RUN = """\
task: {{type: diarize, labels: {{type: speaker, speakers: 3}}, chunk: 6}}
model:
  type: transformer
  shared: {{d_model: 16, layers: 1, heads: 2, dropout: 0}}
  features: {{stack: 1, subsample: 10}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  batch_tokens: 130
  workers: 0
losses:
  pil: {{type: pit_bce, weight: 0.5}}
  ats: {{type: ats_bce, weight: 0.5}}
  norm: {{type: norm_reg, weight: 0.01}}
optim: {{lr: 5e-3, eps: 1e-4}}
schedule: {{type: constant, warmup_steps: 0}}
train: {{steps: 6, log_every: 1, eval_every: 3, save_every: 3, device: cpu, use: last, accumulate: 2, keep: 9}}
output: "{runs}"
"""


@pytest.fixture(scope="module")
def runs(meetings, tmp_path_factory, together) -> Path:
    """The folder of the runs `straight`, `resumed` (after step 3) and `ranks` (two of them)."""
    folder = tmp_path_factory.mktemp("diarize_same")
    config = folder / "run.yaml"
    config.write_text(RUN.format(folder=meetings, runs=folder))
    resumed = [["train", config, "name=resumed", f"train.steps={steps}"] for steps in (3, 6)]
    together([["train", config, "name=straight"], *resumed], processes=1)
    together([["train", config, "name=ranks", "train.accumulate=1"]], processes=2)
    return folder


def numbers(run: Path) -> list[tuple]:
    """Losses and scores, by step."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [{k: v for k, v in row.items() if k.startswith(("train/", "eval/")) or k == "grad_norm"} for row in rows]
    return [(row["step"], values) for row, values in zip(rows, logged) if values]


@pytest.mark.parametrize("other", ["resumed", "ranks"])
def test_the_same_numbers(runs, other):
    mine, theirs = numbers(runs / "straight"), numbers(runs / other)
    assert [step for step, _ in mine] == [step for step, _ in theirs]
    for (step, expected), (_, actual) in zip(mine, theirs):
        assert actual == pytest.approx(expected, abs=2e-6, rel=2e-5), step
    weights, reached = (load_file(runs / name / "export" / "model.safetensors") for name in ("straight", other))
    for name in weights:
        torch.testing.assert_close(reached[name], weights[name], atol=2e-6, rtol=2e-5)


def test_the_same_answers(runs):
    answers = [(runs / name / "predictions" / "dev.jsonl").read_text() for name in ("straight", "resumed", "ranks")]
    segments = [[json.loads(line)["output"]["segments"] for line in text.splitlines()] for text in answers]
    assert segments[0] == segments[1] == segments[2] and any(segments[0])
