"""Random features that are redrawn while training: the same draws on two ranks, after a resume, in checkpoints."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from stentor.callbacks.redraw import Redraw, seed_of
from stentor.errors import ConfigError
from stentor.models.transformer.attention import Attention
from stentor.models.transformer.favor import orthogonal

pytestmark = pytest.mark.long

LINEAR = """\
task: {{type: transcribe, normalizer: none}}
model:
  type: transformer
  kind: encoder
  shared: {{d_model: 32, layers: 2, heads: 2, attention: linear, dropout: 0.1}}
  features: {{type: fbank, num_mel_bins: 20}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  batch_tokens: 400
  max_items: 4
  workers: 0
losses: {{ctc: ctc}}
optim: {{type: adamw, lr: 1e-3, eps: 1e-4}}
schedule: {{type: constant, warmup_steps: 0}}
train: {{steps: 6, log_every: 1, eval_every: 3, save_every: 1, device: cpu, use: last, accumulate: 2, keep: 10}}
callbacks: [{{type: redraw, every: 2}}]
output: "{runs}"
"""


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory, together) -> Path:
    """The folder of all runs of this file: `straight`, `resumed` (right when the features are about to change, and once
    between), `ranks` (two of them), `ema` and `mean`."""
    folder = tmp_path_factory.mktemp("redraw")
    config = folder / "linear.yaml"
    config.write_text(LINEAR.format(folder=corpus, runs=folder))

    def run(name: str, *settings: str) -> list[object]:
        return ["train", config, f"name={name}", *settings]

    alone = [
        run("straight"),
        *(run("resumed", f"train.steps={steps}") for steps in (4, 5, 6)),
        run("ema", "train.ema=0.5"),
        run("mean", "train.use=average", "train.keep_best=3", "train.eval_every=2"),
    ]
    together(alone, processes=1)
    together([run("ranks", "train.accumulate=1")], processes=2)
    return folder


def projections(file: Path) -> list[torch.Tensor]:
    return [tensor for name, tensor in sorted(load_file(file).items()) if name.endswith("favor.projection")]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) == 2 and all(map(torch.equal, one, other))


def redrawn(folder: Path) -> list[int]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["step"] for event in events if event["event"] == "redrawn"]


def drawn(step: int) -> list[torch.Tensor]:
    """What layers 0 and 1 draw at a step of a run with seed 0: heads of 16, int(16 ln 16) features."""
    return [orthogonal(44, 16, torch.Generator().manual_seed(seed_of(0, step, layer))) for layer in (0, 1)]


def trace(folder: Path, rows) -> list[list[float]]:
    losses = [[row[k] for k in ("step", "train/loss", "grad_norm")] for row in rows(folder)]
    return losses + [[row["step"], row["eval/dev/wer"]] for row in rows(folder, "eval/dev/wer")]


def test_two_ranks_and_a_resume_equal_one_straight_run(runs, rows):
    straight = trace(runs / "straight", rows)
    weights = load_file(runs / "straight" / "export" / "model.safetensors")
    for name, tolerance in (("resumed", 0.0), ("ranks", 1e-5)):
        recorded = [row for row in trace(runs / name, rows) if len(row) == 3 or row[0] in (3, 6)]
        assert recorded == [pytest.approx(row, rel=tolerance, abs=tolerance) for row in straight]
        export = runs / name / "export" / "model.safetensors"
        for key, tensor in load_file(export).items():
            torch.testing.assert_close(tensor, weights[key], rtol=0, atol=tolerance, msg=f"{name}: {key}")
        assert same(projections(export), drawn(4)) and redrawn(runs / name) == [2, 4]
    assert redrawn(runs / "straight") == [2, 4]


def test_checkpoints_hold_what_their_step_trained_with(runs):
    def held(step: int) -> list[list[torch.Tensor]]:
        folder = runs / "ema" / "checkpoints" / f"step-{step:06d}"
        files = ("resume/weights", "resume/ema", "export/model")
        return [projections(folder / f"{file}.safetensors") for file in files]

    for step, draw in ((3, 2), (4, 2), (5, 4), (6, 4)):
        assert all(same(draws, drawn(draw)) for draws in held(step)), step
    # The first draw comes with the first weights, and an average of weights takes no average of draws.
    first = held(1)[0]
    assert not same(first, drawn(0)) and all(same(draws, first) for step in (1, 2) for draws in held(step))
    resume = runs / "ema" / "checkpoints" / "step-000006" / "resume"
    weights, ema = (load_file(resume / f"{file}.safetensors") for file in ("weights", "ema"))
    trained = [name for name in weights if not name.endswith("projection")]
    assert not any(torch.equal(weights[name], ema[name]) for name in trained)


def test_the_mean_of_checkpoints_goes_with_the_draw_of_the_best(runs):
    folder = runs / "mean"
    assert "averages only include the weights" in (folder / "log.txt").read_text()
    best = [b["step"] for b in json.loads((folder / "results.json").read_text())["best"]]
    assert sorted(best) == [2, 4, 6]
    parts = [load_file(folder / "checkpoints" / f"step-{s:06d}" / "resume" / "weights.safetensors") for s in best]
    for name, tensor in load_file(folder / "export" / "model.safetensors").items():
        each = [part[name].double() for part in parts]
        drawn_there = name.endswith("projection")
        expected = each[0] if drawn_there else sum(each) / 3
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)
        assert not drawn_there or not torch.equal(each[0], each[1]) or not torch.equal(each[0], each[2])


def started(*kinds: str, fixed: bool = False) -> None:
    model = torch.nn.ModuleList(Attention(8, 2, kind, fixed=fixed) for kind in kinds)
    train = SimpleNamespace(ema=None, use="best", keep_best=1, seed=0)
    Redraw().on_start(SimpleNamespace(bundle=SimpleNamespace(model=model), config=SimpleNamespace(train=train)))


def test_refused_where_it_would_do_nothing():
    with pytest.raises(ConfigError, match="callbacks: `redraw` finds no random features in this model: use linear"):
        started("softmax", "softmax")
    with pytest.raises(
        ConfigError, match=r"because they are fixed \(`model.fixed_projection`\): leave out one of the two"
    ):
        started("linear", "softmax", fixed=True)
    started("softmax", "causal_linear")


def test_seeds_are_of_run_step_and_layer():
    seeds = {seed_of(*key) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 256, 0), (1, 1, 0))}
    assert len(seeds) == 6 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(7, 1000, 3) == seed_of(7, 1000, 3)
