"""Losses that are not finite: what is saved, which checkpoint is good, and advice that works when it is followed."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stentor.engine.checkpoint import existing
from stentor.engine.nonfinite import judge
from stentor.engine.totals import MicroBatchLoss
from stentor.errors import StentorError, Stopped
from stentor.extend import open_trainer

EVERY = ("train.eval_every=1", "train.save_every=1", "train.log_every=1", "train.max_skipped=2", "train.keep=1")
EXPLODES = ("optim.lr=100", "optim.weight_decay=1e6", "train.clip=null", "schedule.warmup_steps=0")


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


def test_the_advice_works_from_the_beginning_and_from_a_good_checkpoint(tiny, attempt, rows, tmp_path):
    run, config = tmp_path / "runs" / "run", tiny()
    code, said = attempt("train", config, *EVERY, *EXPLODES, "train.steps=20")
    assert code == 1 and "no good checkpoint: the run starts again from the beginning. Lower `optim.lr`" in said, said
    assert "set `train.clip`, such as 1.0" in said and "skipped 1" in said and "loss 0" not in said
    assert existing(run / "checkpoints") == [] and not (run / "export").exists()
    assert not [name for name in ("latest", "best") if (run / "checkpoints" / name).exists()]
    assert [row["train/loss"] for row in rows(run, "skipped")] == [None] * 2
    code, said = attempt(
        "train", config, *EVERY, "optim.lr=1e-3", "train.clip=1.0", "optim.weight_decay=0", "train.steps=4"
    )
    assert code == 0 and "Resuming" not in said, said

    code, said = attempt("train", config, *EVERY, *EXPLODES, "train.steps=20")
    assert code == 1 and "goes back to step-000004, the last good checkpoint" in said, said
    assert [path.name for path in existing(run / "checkpoints")] == ["step-000004"]
    assert "exploded-step-000005" in names(run), "nothing is deleted"
    for pointer in ("latest", "best"):
        assert (run / "checkpoints" / pointer).read_text() == "step-000004\n"
    code, said = attempt(
        "train", config, *EVERY, "optim.lr=1e-3", "train.clip=1.0", "optim.weight_decay=0", "train.steps=7"
    )
    assert code == 0 and "Resuming from step 4 of 7" in said
    best = json.loads((run / "results.json").read_text())["best"]
    assert (run / "checkpoints" / "best").read_text() == f"step-{best[0]['step']:06d}\n"


def test_due_work_waits_for_a_finite_step(tiny, tmp_path, rows):
    """The updates of steps 2 and 6, the last one, are skipped: the run goes on to step 7."""
    run = tmp_path / "runs" / "run"
    with open_trainer(tiny(), ["train.eval_every=2", "train.save_every=2", "train.keep=9", "train.steps=6"]) as trainer:
        poison(trainer, 1, 5)
        trainer.fit()
    assert [path.name[-1] for path in existing(run / "checkpoints")] == ["7", "4", "3"]
    assert [row["step"] for row in rows(run, "eval/dev/wer")] == [3, 4, 7]
    assert json.loads((run / "results.json").read_text())["steps"] == 7


def poison(trainer, *steps: int) -> None:
    """Make the gradients of these steps infinite."""
    step = trainer.backend.optimizer_step

    def poisoned(*arguments):
        if trainer.step in steps:
            next(p for p in trainer.model.parameters() if p.grad is not None).grad.fill_(float("inf"))
        return step(*arguments)

    trainer.backend.optimizer_step = poisoned


def test_a_signal_among_skipped_steps_saves_nothing(tiny, tmp_path):
    with pytest.raises(Stopped, match=r"step 5 of 6; the last 2 updates were skipped, .* since step 3"):
        with open_trainer(tiny(), ["train.eval_every=3"]) as trainer:
            poison(trainer, 3, 4)
            sums = trainer.backend.loss_sums

            def stopped(batch):
                if trainer.step == 3:
                    signal.raise_signal(signal.SIGTERM)
                return sums(batch)

            trainer.backend.loss_sums = stopped
            trainer.fit()
    assert [path.name for path in existing(tmp_path / "runs" / "run" / "checkpoints")] == ["step-000003", "step-000002"]


def test_weights_of_an_evaluation_that_is_not_finite_are_not_exported(tiny, tmp_path):
    with pytest.raises(StentorError, match=r"The loss of dev after step 2 is not finite. There is no good checkpoint"):
        with open_trainer(tiny(), ["train.steps=2", "train.eval_every=2"]) as trainer:
            step = trainer.backend.optimizer_step

            def explode(*arguments):
                norm = step(*arguments)
                if trainer.step == 1:
                    next(trainer.model.parameters()).data.fill_(float("nan"))
                return norm

            trainer.backend.optimizer_step = explode
            trainer.fit()
    run = tmp_path / "runs" / "run"
    assert names(run) == ["exploded-step-000002"] and not (run / "export").exists()


def test_exploded_weights_are_not_exported_in_silence(tiny, attempt, tmp_path):
    code, said = attempt("train", tiny(), "optim.lr=30", "train.clip=null", "train.steps=12")
    assert code == 0 and "the weights have exploded. Lower `optim.lr` (now 30) and set `train.clip`" in said, said
    events = (tmp_path / "runs" / "run" / "events.jsonl").read_text()
    assert events.count('"event": "exploded"') == 1
    code, said = attempt("train", tiny(), "name=fine", "train.steps=2")
    assert code == 0 and "exploded" not in said


def test_loss_zero_of_weights_that_never_trained(tiny):
    """The weights that a run starts from are at fault, not its learning rate."""
    with pytest.raises(StentorError, match="It was so before the first update: check these records"):
        with open_trainer(tiny(), ["train.max_skipped=1"]) as trainer:
            poison(trainer, *range(6))
            trainer.fit()


@pytest.mark.parametrize(("loss", "good"), [(29.0, 4), (31.0, 2), (float("1e30"), 2)])
def test_exploded_weights_with_a_finite_loss_are_not_good(loss, good):
    progress = SimpleNamespace(first_loss=3.0, good=2, best=[{"step": 3}])
    trainer = SimpleNamespace(
        progress=progress,
        train=SimpleNamespace(keep_best=1),
        unjudged=4,
        losses={"text": SimpleNamespace(weight=0.5)},
        communicator=SimpleNamespace(sum=lambda values: values),
    )
    judge(trainer, [MicroBatchLoss(["a"], {"text": torch.tensor(loss * 2 * 8)})], {"text": 8.0})
    assert (progress.good, trainer.unjudged, progress.first_loss) == (good, None, 3.0)
