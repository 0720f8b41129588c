"""The logistic map from signs of certainty to confidences, and the callback that fits it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stentor.data.batch import Prediction
from stentor.engine.callback import Callback
from stentor.errors import ConfigError
from stentor.metrics.calibration import confidence, fit, logit
from stentor.metrics.word_time import score
from stentor.tasks.base import Task


def drawn(count, factors, shift, seed=0):
    """Signs, and whether each word is right, drawn from a known map."""
    rng = np.random.default_rng(seed)
    signs = rng.uniform(0.02, 0.98, (count, len(factors))).tolist()
    sure = [confidence(row, (*factors, shift)) for row in signs]
    return signs, [bool(r) for r in rng.random(count) < sure]


def test_the_first_sign_as_it_is():
    assert confidence((0.3, 0.9), (1.0, 0.0, 0.0)) == pytest.approx(0.3)
    assert all(0 < confidence((p, 0.5), (1.0, 0.0, 0.0)) < 1 for p in (0.0, 1.0))
    assert logit(0.5) == 0 and logit(0.8) == pytest.approx(math.log(4))


def test_a_known_map_is_found():
    signs, right = drawn(20000, (0.6, 0.3), -0.5)
    assert fit(signs, right) == pytest.approx([0.6, 0.3, -0.5], abs=0.06)


@pytest.mark.parametrize("right", [True, False])
def test_all_right_or_all_wrong_stays_finite(right):
    fitted = fit([[0.9, 0.9]] * 50, [right] * 50)
    assert all(math.isfinite(v) for v in fitted)
    assert (confidence((0.9, 0.9), fitted) > 0.9) == right and abs(confidence((0.9, 0.9), fitted) - right) < 0.1


def test_nothing_known_changes_nothing():
    assert fit([[0.9, 0.9]], [True]) == pytest.approx([1.0, 0.0, 0.0], abs=0.2)


def prediction(number, signs, right):
    """One item whose words are `w` where they are right."""
    words = [{"word": f"w{i}", "start": i, "end": i + 0.5} for i in range(len(signs))]
    answer = [w | {"word": w["word"] if good else "x", "signs": s} for w, s, good in zip(words, signs, right)]
    text = {"text": " ".join(w["word"] for w in words), "words": words, "language": None}
    return Prediction(str(number), text, {"text": "", "words": answer}, 1.0)


def trainer(task="words", sets=("dev", "held"), average=None):
    model = torch.nn.Module()
    model.aligner = torch.nn.Module()
    model.aligner.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0]))
    config = SimpleNamespace(task=Task.model_validate(task), data=SimpleNamespace(eval=dict.fromkeys(sets)))
    return SimpleNamespace(
        config=config,
        main=True,
        communicator=SimpleNamespace(gather=lambda x: [x]),
        ema=average,
        bundle=SimpleNamespace(model=model),
    )


def test_it_is_fitted_on_the_named_set_and_calibrates():
    signs, right = drawn(4000, (0.3, 0.2), -1.0)
    predictions = [prediction(i, signs[i : i + 10], right[i : i + 10]) for i in range(0, 4000, 10)]
    average = SimpleNamespace(shadow={"aligner.calibration": torch.tensor([1.0, 0.0, 0.0])})
    callback, run = Callback.model_validate({"type": "calibrate", "set": "held"}), trainer(average=average)
    buffer = run.bundle.model.aligner.calibration
    callback.on_start(run)
    callback.on_evaluate(run, "dev", {}, predictions[:200])
    assert buffer.tolist() == [1.0, 0.0, 0.0]
    callback.on_evaluate(run, "held", {}, predictions[:200])
    assert buffer.tolist() == pytest.approx([0.3, 0.2, -1.0], abs=0.25)
    assert average.shadow["aligner.calibration"].tolist() == buffer.tolist()

    def ece(calibration):
        answers = [
            [w | {"confidence": confidence(w["signs"], calibration)} for w in p.output["words"]]
            for p in predictions[200:]
        ]
        return score([p.reference["words"] for p in predictions[200:]], answers, normalizer="none")["ece"].value

    assert ece(buffer.tolist()) < 0.03 < 0.1 < ece([1.0, 0.0, 0.0])


def test_a_few_words_leave_it_as_it_is():
    callback, run = Callback.model_validate("calibrate"), trainer()
    callback.on_evaluate(run, "dev", {}, [prediction(0, [[0.9, 0.9]] * 5, [False] * 5)])
    assert run.bundle.model.aligner.calibration.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "task, sets, message",
    [("transcribe", ("dev",), "for the task words"), ("words", (), "is empty"), ("words", ("dev",), "has no 'held'")],
)
def test_where_it_does_not_fit(task, sets, message):
    with pytest.raises(ConfigError, match=message):
        Callback.model_validate({"type": "calibrate", "set": "held"}).check(trainer(task, sets).config)
