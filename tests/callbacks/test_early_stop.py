import json
import math

import pytest

from stentor.callbacks.early_stop import EarlyStop
from stentor.errors import ConfigError


def feed(callback, trainer, values, name="dev", metric="wer"):
    """Show evaluations one by one until the callback stops the run; the number that it took."""
    for n, value in enumerate(values, 1):
        trainer.step += 10
        callback.on_metrics(trainer, {"step": trainer.step, f"eval/{name}/{metric}": value})
        if trainer.stopped:
            return n
    return None


def test_stops_after_patience_and_goes_back_to_the_best(trainer):
    callback = EarlyStop(patience=2)
    callback.on_start(trainer)
    assert feed(callback, trainer, [0.5, 0.3, 0.4, 0.29, 0.35, 0.31, 0.1]) == 6
    assert "dev/wer has not improved in 2 evaluations" in trainer.stopped
    assert "29.00 % at step 40" in trainer.stopped
    callback.on_end(trainer, None)
    assert trainer.restored == 1


@pytest.mark.parametrize(
    ("options", "values", "shown", "stop"),
    [
        ({"patience": 2, "min_delta": 0.01}, [0.5, 0.495, 0.492], {}, 3),
        ({"patience": 1, "metric": "dev/loss"}, [0.5, 0.4, 0.3, 0.4], {"metric": "loss"}, 4),
        ({"patience": 1}, [0.1, 0.9, 0.9], {"name": "other"}, None),
    ],
    ids=["small gains do not count", "any logged metric", "other sets are not counted"],
)
def test_what_counts(trainer, options, values, shown, stop):
    callback = EarlyStop(**options)
    callback.on_start(trainer)
    assert feed(callback, trainer, values, **shown) == stop


def test_nan_is_never_an_improvement(trainer):
    callback = EarlyStop(patience=3)
    callback.on_start(trainer)
    assert feed(callback, trainer, [math.nan] * 5) == 3
    callback.on_end(trainer, None)
    assert trainer.restored == 0  # there is no best to go back to


def test_counts_go_on_after_a_resume(trainer):
    first = EarlyStop(patience=3)
    first.on_start(trainer)
    assert feed(first, trainer, [0.2, 0.3, 0.3]) is None
    second = EarlyStop(patience=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.on_start(trainer)
    assert feed(second, trainer, [0.25]) == 1
    trainer.stopped = None
    third = EarlyStop(patience=3, metric="dev/cer")
    third.load_state_dict(first.state_dict())
    third.on_start(trainer)
    assert feed(third, trainer, [0.9, 0.9], metric="cer") is None and "not dev/wer" in trainer.messages[-1]


def test_scores_before_training_do_not_count(trainer):
    callback = EarlyStop(patience=1)
    callback.on_start(trainer)
    callback.on_metrics(trainer, {"step": 0, "eval/dev/wer": 0.01})
    assert feed(callback, trainer, [0.5, 0.4]) is None


def test_an_error_or_no_stop_restores_nothing(trainer):
    callback = EarlyStop(patience=1)
    callback.on_start(trainer)
    feed(callback, trainer, [0.1])
    callback.on_end(trainer, None)
    feed(callback, trainer, [0.2])
    callback.on_end(trainer, RuntimeError())
    assert trainer.stopped
    assert trainer.restored == 0


def test_a_metric_that_a_plug_in_does_not_give_names_those_it_gives(trainer):
    callback = EarlyStop()
    callback.on_start(trainer)
    trainer.step = 10
    with pytest.raises(ConfigError, match=r"dev logs no metric 'wer', only war, cer; did you mean dev/war\?"):
        callback.on_metrics(trainer, {"step": trainer.step, "eval/dev/war": 0.1, "eval/dev/cer": 0.1})


@pytest.mark.slow
def test_a_run_that_only_gets_worse_ends_with_its_best_weights(tiny, cli, tmp_path):
    """Stopped by the WER, and what is exported and reported is the best checkpoint, not the last."""
    from safetensors.torch import load_file

    run = tiny()
    run.write_text(run.read_text() + "callbacks: [{type: early_stop, metric: dev/wer, patience: 2}]\n")
    cli(
        "train",
        run,
        "train.steps=40",
        "train.eval_every=2",
        "train.save_every=2",
        "optim.lr=3e-4",
        "train.keep=99",
        "schedule.type=constant",
    )
    folder = tmp_path / "runs" / "run"
    results = json.loads((folder / "results.json").read_text())
    assert "dev/wer has not improved in 2 evaluations" in results["stopped"]
    assert results["steps"] < 40
    best = folder / "checkpoints" / (folder / "checkpoints" / "best").read_text().strip()
    assert best.name == f"step-{results['best'][0]['step']:06d}"
    assert results["eval"]["dev"]["wer"]["value"] == pytest.approx(results["best"][0]["value"])
    exported, expected = (load_file(f / "export" / "model.safetensors") for f in (folder, best))
    assert exported.keys() == expected.keys() and all(exported[k].equal(expected[k]) for k in expected)
