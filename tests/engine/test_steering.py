"""Metrics to steer by: their names and directions, what is chosen by default, and what is refused before step 1."""

import json
from types import SimpleNamespace

import pytest

from stentor.callbacks.early_stop import EarlyStop
from stentor.engine.evaluate import metrics_row
from stentor.engine.section import Schedule, Train
from stentor.engine.steering import Steering, logged_metrics, steer
from stentor.errors import ConfigError
from stentor.losses.codebook import Codebook
from stentor.losses.token import CrossEntropy
from stentor.metrics.score import Score
from stentor.tasks.diarize.labels.binary import Binary
from stentor.tasks.diarize.labels.speaker import Ego
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe
from stentor.tasks.who_said_what import WhoSaidWhat
from stentor.tasks.words import Words

TEXT = {"text": CrossEntropy()}


class Plugin(Transcribe):
    """A task whose `score` is not built in."""

    def score(self, predictions):
        return {"exact": Score(1.0), **super().score(predictions)}

    def main_metric(self):
        return "exact", "max"


def steering(task=None, losses=None, sets=("dev", "far"), callbacks=(), train=None, schedule=None):
    config = SimpleNamespace(
        task=task or Transcribe(),
        data=SimpleNamespace(eval=dict.fromkeys(sets)),
        train=Train(**(train or {})),
        schedule=Schedule(**(schedule or {})),
        callbacks=list(callbacks),
    )
    return Steering(config, losses or TEXT)


def test_directions_of_what_a_set_logs():
    metrics = logged_metrics(Transcribe(metric="cer"), TEXT)
    assert metrics == dict.fromkeys(["cer", "wer", "perplexity", "loss", "loss_text"], "min")
    assert "ctc_wer" in logged_metrics(Transcribe(), TEXT | {"ctc": CrossEntropy()})
    assert logged_metrics(Transcribe(translate=True), {})["chrf"] == "max"
    diarize = logged_metrics(Diarize(labels=Ego()), {})
    assert (diarize["der"], diarize["frame_f1"], diarize["speaker_count"]) == ("min", "max", "max")
    assert diarize["f1_target_alone"] == diarize["macro_f1"] == "max"
    assert "jer" not in logged_metrics(Diarize(labels=Binary()), {})
    words = logged_metrics(Words(), {})
    assert (words["within_50ms"], words["word_end_mean_ms"], words["ece"], words["wer"]) == ("max", "min", "min", "min")
    judged = logged_metrics(Speak(judges=[{"type": "recognizer", "from": "x"}, {"type": "utmos", "from": "x"}]), {})
    assert (judged["wer_codec"], judged["utmos"], judged["speaking_rate"]) == ("min", "max", None)
    assert next(iter(logged_metrics(WhoSaidWhat(metric="der"), {}))) == "der"
    assert next(iter(logged_metrics(Plugin(), TEXT).items())) == ("exact", "max")


@pytest.mark.parametrize("task", [Transcribe(), Transcribe(translate=True), Words(), WhoSaidWhat()])
def test_declared_metrics_are_those_of_score(task):
    assert list(task.score([])) == list(task.metrics({}))


def test_ranking_early_stop_and_plateau_agree_unless_set_otherwise():
    plain = steering(callbacks=[EarlyStop()], schedule={"type": "plateau"})
    assert plain.best.name == plain.plateau.name == plain.resolve("x", None, None).name == "dev/wer"
    followed = steering(callbacks=[EarlyStop(), EarlyStop(metric="far/loss")], schedule={"type": "plateau"})
    assert followed.best.name == followed.plateau.name == "far/loss"
    apart = steering(
        callbacks=[EarlyStop(metric="far/loss")],
        train={"best_metric": "dev/cer"},
        schedule={"type": "plateau", "metric": "dev/perplexity"},
    )
    assert (apart.best.name, apart.plateau.name) == ("dev/cer", "dev/perplexity")
    assert steering(sets=()).best is None
    assert steering(Diarize(), {}, callbacks=[EarlyStop(metric="dev/frame_f1")]).best.mode == "max"
    assert steering(Speak(), {"codes": Codebook()}, train={"best_metric": "dev/loss_codes_0"}).best.mode == "min"
    plugin = steering(Plugin(), train={"best_metric": "far/calm", "best_mode": "max"})
    assert (plugin.best.name, plugin.best.mode) == ("far/calm", "max")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train": {"best_metric": "dev/war"}},
            r"train.best_metric: dev logs no metric 'war', only wer, cer, perp.* dev/wer",
        ),
        (
            {"callbacks": [EarlyStop(metric="val_loss")]},
            r"callbacks.0.metric: 'val_loss' .* \(dev, far\), .* logs wer, .* dev/loss\?",
        ),
        ({"callbacks": [EarlyStop(metric="test/wer")]}, r"with a set of data.eval \(dev, far\)"),
        ({"callbacks": [EarlyStop(mode="max")]}, r"callbacks.0.mode: lower is better for dev/wer: min, not max"),
        ({"train": {"best_metric": "dev/loss", "best_mode": "max"}}, r"train.best_mode: lower is better for dev/loss"),
        ({"schedule": {"type": "plateau", "metric": "dev/f1"}}, r"schedule.metric: dev logs no metric 'f1'"),
        (
            {"task": Plugin(), "train": {"best_metric": "dev/calm"}},
            r"train.best_mode: 'calm' declares no .* exact, wer, cer",
        ),
        ({"sets": (), "callbacks": [EarlyStop()]}, r"callbacks.0.metric: there is no evaluation set .* data\.eval"),
        ({"sets": (), "schedule": {"type": "plateau"}}, r"schedule.metric: there is no evaluation set"),
        (
            {
                "task": Speak(judges=[{"type": "recognizer", "from": "x"}]),
                "losses": {"codes": Codebook()},
                "train": {"best_metric": "dev/speaking_rate"},
            },
            r"train.best_mode: 'speaking_rate' declares no direction; add `best_mode: min`",
        ),
    ],
)
def test_refused_before_training(settings, message):
    with pytest.raises(ConfigError, match=message):
        steering(**settings)


def test_checkpoints_ranked_by_another_metric_do_not_count():
    said = []
    progress = SimpleNamespace(best=[{"step": 2, "value": 0.1}], watched={"best": "dev/loss", "plateau": "dev/loss"})
    plateau = SimpleNamespace(best=0.1, bad=2, see=lambda value, better: said.append((value, better)))
    trainer = SimpleNamespace(step=4, train=Train(keep_best=2), progress=progress, plateau=plateau, say=said.append)
    trainer.steering = steering(Diarize(), {}, train={"best_metric": "dev/frame_f1"}, schedule={"type": "plateau"})
    steer(trainer, {"eval/dev/frame_f1": 0.6, "eval/dev/der": 0.3})
    assert progress.best == [{"step": 4, "value": 0.6}] and (plateau.best, plateau.bad) == (None, 0)
    assert said == ["Checkpoints are ranked by dev/frame_f1 from now on, no longer by dev/loss.", (0.6, True)]
    trainer.step = 6
    steer(trainer, {"eval/dev/frame_f1": 0.7})
    assert [b["step"] for b in progress.best] == [6, 4] and len(said) == 3


def test_no_loss_is_logged_where_none_is_measured():
    assert metrics_row({}, "dev", {"wer": Score(0.1)}, {}) == {"eval/dev/wer": 0.1}


def test_a_run_stops_by_its_loss_and_keeps_the_best_of_it(tiny, cli, rows, tmp_path):
    stop = "callbacks=[{type: early_stop, metric: dev/perplexity, patience: 1, min_delta: 1e9}]"
    cli("train", tiny(), stop, "train.eval_every=2", "train.steps=40", "train.save_every=2", "train.keep=9")
    results = json.loads((tmp_path / "runs" / "run" / "results.json").read_text())
    assert results["steps"] == 4 and "dev/perplexity has not improved in 1 evaluations" in results["stopped"]
    values = {row["step"]: row["eval/dev/perplexity"] for row in rows(tmp_path / "runs" / "run", "eval/dev/perplexity")}
    assert results["best_metric"] == "dev/perplexity"
    assert results["best"] == [{"step": min(values, key=values.get), "value": min(values.values())}]
