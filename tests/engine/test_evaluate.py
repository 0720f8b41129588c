"""Scoring a set: exact sums over batches of different sizes, and what could not be read."""

import numpy as np
import pytest
import torch

from stentor.audio.io import write
from stentor.data.batch import Batch, Example
from stentor.data.cut import cut_from_record
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler
from stentor.engine.device import Communicator
from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup, breakdown, evaluate
from stentor.losses.base import Loss
from stentor.metrics.score import Score
from stentor.models.base import Bundle
from stentor.tasks.base import Task


class Count(Task):
    """Answers the number of samples; its loss is 2 for each of as many targets as the clip has hundred samples."""

    def example(self, cut, audio, rng):
        assert rng is None, "evaluation is never augmented"
        return Example(cut.id, audio)

    def collate(self, examples, processor, packed):
        lengths = torch.tensor([len(e.audio) for e in examples])
        return Batch({"lengths": lengths}, {"text": int(lengths.sum()) // 100}, [e.id for e in examples])

    def loss_sums(self, model, batch, losses):
        assert not model.training and not torch.is_grad_enabled()
        return {"text": 2 * batch.inputs["lengths"].sum() / 100}

    def predict(self, bundle, examples):
        return [{"samples": len(e.audio)} for e in examples]

    def reference(self, cut):
        return {"seconds": cut.duration}

    def score(self, predictions):
        wrong = sum(p.output["samples"] != round(16000 * p.reference["seconds"]) for p in predictions)
        return {"wrong": Score(wrong / len(predictions), wrong, len(predictions))}


class Ear:
    sample_rate = 16000


@pytest.fixture
def eval_set(tmp_path):
    cuts = []
    for i in range(37):
        samples = 1600 + 100 * i
        name = f"c{i:02d}"
        write(tmp_path / f"{name}.wav", np.full(samples, 0.1, np.float32), 16000)
        if i % 3 == 2 or i > 10:  # 29 of 37: more than are named in a report
            (tmp_path / f"{name}.wav").write_bytes(b"junk")
        cuts.append(
            cut_from_record({"audio_path": f"{name}.wav", "id": name, "duration": samples / 16000}, tmp_path, "")
        )
    plan = BatchSampler(
        lambda epoch: ((c, 0) for c in cuts),
        lambda cut, seconds: round(10 * seconds),
        BatchLimits("padded", budget=12, buckets=3, window=100),
        seed=0,
    )
    return EvalSet("dev", plan)


@pytest.mark.parametrize("workers", [0, 2])
def test_sums_are_exact_and_what_is_unreadable_counts_once(eval_set, workers):
    from accelerate import Accelerator

    model = torch.nn.Linear(2, 2)
    bundle, losses = Bundle(model, Ear(), None), {"text": Loss.model_validate("ctc")}
    for _ in range(2):
        options = EvalOptions(workers=workers, prefetch=2)
        setup = EvalSetup(bundle, Count(type="count"), losses, Accelerator(cpu=True), Communicator(1), options)
        scores, means, predictions = evaluate(setup, eval_set)
        assert model.training
        assert means == {"text": 2.0}
        assert [p.id for p in predictions] == ["c00", "c01", "c03", "c04", "c06", "c07", "c09", "c10"]
        assert [p.output["samples"] for p in predictions] == [1600 + 100 * int(p.id[1:]) for p in predictions]
        assert scores["wrong"].as_dict() == {"value": 0.0, "errors": 0, "total": 8}
        assert predictions[0].record["audio_path"].endswith("c00.wav") and predictions[0].seconds == 0.1
        assert eval_set.dropped.reasons == {"unreadable": 29}
        assert len(eval_set.dropped.named["unreadable"]) == 20


class Talk(Count):
    """The loss of a `cross_entropy` term: of each target exactly log 3."""

    def loss_sums(self, model, batch, losses):
        assert losses["text"].label_smoothing == 0, "perplexity is of the plain cross entropy"
        return {"text": torch.log(torch.tensor(3.0, dtype=torch.float64)) * batch.counts["text"]}


def test_perplexity_is_of_all_targets_without_label_smoothing(eval_set):
    from accelerate import Accelerator

    bundle = Bundle(torch.nn.Linear(2, 2), Ear(), None)
    losses = {"text": Loss.model_validate({"type": "cross_entropy", "label_smoothing": 0.2})}
    setup = EvalSetup(bundle, Talk(type="count"), losses, Accelerator(cpu=True), Communicator(1), EvalOptions())
    scores, means, predictions = evaluate(setup, eval_set)
    assert list(scores) == ["wrong", "perplexity"]
    assert scores["perplexity"].value == pytest.approx(3) and means["text"] == pytest.approx(np.log(3))
    assert scores["perplexity"].details == {"tokens": sum(p.output["samples"] // 100 for p in predictions)}


def test_breakdown_scores_groups_with_their_own_intervals():
    from stentor.data.batch import Prediction

    task = Task.choices()["transcribe"](normalizer="none")

    def prediction(i, language, answer, **record):
        return Prediction(
            str(i), {"text": "one two", "language": language, "speaker": None}, {"text": answer}, 1.0, record
        )

    predictions = [prediction(i, "en", "one two", source="a", year=2020) for i in range(5)]
    predictions += [prediction(5 + i, "sv", "one three", source="a", year=2020) for i in range(3)]
    predictions += [prediction(9, None, "", year=2020)]
    groups = breakdown(task, predictions, ["language", "source", "year", "speaker", "colour"])
    assert list(groups) == ["language", "source"], "of fields with one value or none there is nothing to tell"
    assert list(groups["language"]) == ["en", "sv", "(none)"] and list(groups["source"]) == ["a", "(none)"]
    assert groups["language"]["sv"]["wer"] == {
        "value": 0.5,
        "errors": 3,
        "total": 6,
        "low": 0.5,
        "high": 0.5,
        "resampled": "recordings",
        "units": 3,
        "items": 3,
    }
    assert groups["source"]["a"]["wer"]["errors"] == 3 and groups["source"]["a"]["wer"]["total"] == 16
    assert sum(v["wer"]["errors"] for v in groups["language"].values()) == task.score(predictions)["wer"].errors
    assert breakdown(task, [prediction(i, str(i), "x") for i in range(201)], ["language"]) == {}
