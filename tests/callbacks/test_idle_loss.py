"""Loss terms that teach nothing are named after the first steps."""

import json
from types import SimpleNamespace

import pytest
import torch

from stentor.callbacks.idle_loss import IdleLoss
from stentor.data.batch import Batch
from stentor.losses.classes import KLDivergence
from stentor.losses.elementwise import MSE, BCEWithLogits

RUN = """\
task: {{type: diarize, chunk: 4, labels: binary}}
model: {{type: transformer, encoder: {{layers: 1}}, shared: {{d_model: 16, heads: 2}}}}
data: {{train: [{{type: jsonl, path: "{folder}/train.jsonl"}}], workers: 0, batch_tokens: 2000}}
losses: {{speech: bce_with_logits, same: kl_div}}
train: {{steps: 4, device: cpu}}
output: "{runs}"
name: idle
"""


def test_a_run_names_the_term(meetings, here, tmp_path):
    """One output has one distribution, so that its divergence from any label of 0 or 1 is 0."""
    (tmp_path / "run.yaml").write_text(RUN.format(folder=meetings, runs=tmp_path / "runs"))
    here("train", tmp_path / "run.yaml")
    log = (tmp_path / "runs" / "idle" / "log.txt").read_text()
    assert log.count("teaches the model nothing") == 1
    assert "Warning: losses.same (`kl_div`) is 0 in the first 3 steps" in log
    events = [json.loads(line) for line in (tmp_path / "runs" / "idle" / "events.jsonl").read_text().splitlines()]
    assert [e["terms"] for e in events if e["event"] == "idle_loss"] == [{"same": "value"}]


@pytest.fixture
def steps(trainer):
    """Runs steps of terms on these logits and targets, with the callback; answers what was said."""

    def run(losses, logits, targets, count=3, evaluate=False, **options):
        trainer.losses, trainer.backend = losses, SimpleNamespace(sharded=False)
        trainer.communicator = SimpleNamespace(sum=list)
        trainer.task = SimpleNamespace(counts=lambda batch: batch.counts)
        trainer.event = lambda name, **fields: None
        callback = IdleLoss(**options)
        for trainer.step in range(count):
            callback.on_batch(trainer, Batch({}, {term: int((targets != -100).sum()) for term in losses}, ["a"]))
            for term, loss in losses.items():
                loss.checked_sum({term: {"logits": logits * 1.0, "targets": targets}}, term)
            trainer.step += 1
            callback.on_step(trainer)
        return trainer.messages

    return run


def test_what_is_missing_is_said(steps):
    logits, targets = torch.zeros(1, 4, 1, requires_grad=True), torch.full((1, 4, 1), 0.5)
    constant = torch.zeros(1, 4, 1)
    assert "losses.a (`kl_div`) has no gradient" in steps({"a": KLDivergence()}, logits, targets)[-1]
    assert "losses.b (`mse`) has no gradient" in steps({"b": MSE()}, constant, targets + 1)[-1]
    assert "losses.c (`mse`) is 0" in steps({"c": MSE()}, logits, targets)[-1]
    assert "losses.d (`mse`) has no targets" in steps({"d": MSE()}, logits, torch.full_like(targets, -100.0))[-1]


def test_terms_that_teach_are_not_named(steps):
    logits, targets = torch.zeros(1, 4, 1, requires_grad=True), torch.ones(1, 4, 1)
    loss = BCEWithLogits()
    assert not steps({"a": loss, "b": MSE(weight=0)}, logits, targets)
    assert loss.sum(logits, targets).requires_grad and not logits.grad
    assert not steps({"a": KLDivergence()}, logits, targets, count=1)  # two more steps to go
    assert steps({"a": KLDivergence()}, logits, targets, count=1, steps=1)
