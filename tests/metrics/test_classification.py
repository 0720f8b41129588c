"""Accuracy and F1 of classes, against scikit-learn and against a plain count."""

import math

import numpy as np
import pytest

from stentor.metrics.classification import confusion, directions, scores

RNG = np.random.default_rng(5)


def drawn(classes, items=6, present=None):
    """(reference, prediction) of each recording; some frames are not scored."""
    recordings = []
    for _ in range(items):
        reference = RNG.integers(-1, present or classes, size=40)
        wrong = RNG.random(40) < 0.4
        prediction = np.where(wrong | (reference < 0), RNG.integers(present or classes, size=40), reference)
        recordings.append((np.where(reference < 0, -100, reference), prediction))
    return recordings


def measured(recordings, classes):
    names = [f"c{i}" for i in range(classes)]
    return scores([confusion(*pair, classes) for pair in recordings], names)


def frames(recordings):
    reference, prediction = (np.concatenate(side) for side in zip(*recordings, strict=True))
    return reference[reference >= 0], prediction[reference >= 0]


@pytest.mark.parametrize(("classes", "present"), [(2, 2), (5, 5), (9, 9), (6, 4)])
def test_as_counted_one_by_one(classes, present):
    recordings = drawn(classes, present=present)
    reference, prediction = frames(recordings)
    result = measured(recordings, classes)
    assert list(result) == list(directions([f"c{i}" for i in range(classes)]))
    assert result["accuracy"].value == pytest.approx(np.mean(reference == prediction))
    assert (result["accuracy"].errors, result["accuracy"].total) == ((reference != prediction).sum(), len(reference))
    f1 = []
    for c in range(present):
        hits = sum(r == p == c for r, p in zip(reference, prediction, strict=True))
        precision, recall = hits / (prediction == c).sum(), hits / (reference == c).sum()
        f1.append(2 * precision * recall / (precision + recall))
        assert result[f"f1_c{c}"].value == pytest.approx(f1[-1])
        assert result[f"f1_c{c}"].low <= f1[-1] <= result[f"f1_c{c}"].high
    assert result["macro_f1"].value == pytest.approx(np.mean(f1))
    assert all(math.isnan(result[f"f1_c{c}"].value) for c in range(present, classes))


@pytest.mark.parametrize("classes", [2, 5, 12])
def test_as_scikit_learn(classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    recordings = drawn(classes)
    reference, prediction = frames(recordings)
    result = measured(recordings, classes)
    assert result["accuracy"].value == pytest.approx(sklearn.accuracy_score(reference, prediction))
    assert result["macro_f1"].value == pytest.approx(sklearn.f1_score(reference, prediction, average="macro"))
    each = [result[f"f1_c{c}"].value for c in range(classes)]
    assert each == pytest.approx(sklearn.f1_score(reference, prediction, average=None).tolist())


def test_nothing_to_measure():
    assert all(math.isnan(score.value) for score in scores([], ["a", "b"]).values())
    nothing = confusion(np.full(4, -100), np.zeros(4, np.int64), 2)
    assert all(math.isnan(score.value) and score.low is None for score in scores([nothing], ["a", "b"]).values())
