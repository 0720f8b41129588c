"""Classes of frames, decoded from windows and compared with the reference."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from stentor.data.batch import Prediction
from stentor.losses.ego import CLASSES, ego_classes
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.binary import Binary, Overlap
from stentor.tasks.diarize.labels.powerset import Powerset
from stentor.tasks.diarize.labels.speaker import Ego
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.windows import Windows

FRAME = 0.1
TURNS = [("ann", 0, 30), ("ben", 20, 50), ("cid", 25, 40), ("ann", 55, 70)]
FRAMES = 80


class Loudness(Labels):
    """Three classes of a frame: none, one or several talk; frame 0 is not scored. Without a `type` of its own it is not
    known to other tests."""

    exclusive: ClassVar[bool] = True
    classes: ClassVar[int] = 3  # type: ignore[assignment]

    def targets(self, activity, ids):
        targets = activity.sum(1).clip(max=2).astype(np.int64)
        targets[:1] = -100
        return targets

    def decode(self, logits):
        return np.zeros((len(logits), 0), np.float32)


def talk(turns=TURNS):
    active = np.zeros((FRAMES, 3), bool)
    for name, start, end in turns:
        active[start:end, ["ann", "ben", "cid"].index(name)] = True
    return active


def outputs(labels, logits, starts=(0,)):
    """The windows of a model with these logits [F, C], from each start to the end."""
    windows = [logits[start:] for start in starts]
    length = len(windows[0])
    padded = [np.pad(w, ((0, length - len(w)), (0, 0))) for w in windows]
    scores = np.stack([labels.decode(w) for w in padded]).astype(np.float16)
    classes = [labels.class_scores(w) for w in padded]
    spectra = np.ones((len(starts), scores.shape[2], 1), np.float32)
    lengths = np.array([len(w) for w in windows])
    active = scores >= 0.5
    alone = (active & (active.sum(2, keepdims=True) == 1)).sum(1).astype(np.int32)
    known = None if classes[0] is None else np.stack(classes).astype(np.float16)
    return WindowOutputs(
        FRAME, FRAMES * 1600, 16000, np.array(starts), lengths, scores, None, None, spectra, alone, known
    )


def scored(labels, logits, starts=(0,), uem=None, turns=TURNS):
    task = Diarize(labels=labels)
    segments = [{"speaker": s, "start": a * FRAME, "end": b * FRAME} for s, a, b in turns]
    reference = {"segments": labels.reference_segments(segments), "uem": uem, "duration": FRAMES * FRAME}
    answer = task.answer(outputs(labels, logits, starts), Windows())
    scores = task.score([Prediction("a", reference | {"turns": segments}, answer, FRAMES * FRAME)])
    assert list(scores) == list(task.metrics({}))
    return scores


def ego_logits(active):
    """What a perfect model says: every slot its own five classes, [F, S * 5]."""
    return 20.0 * np.eye(CLASSES, dtype=np.float32)[ego_classes(torch.from_numpy(active)).numpy()].reshape(FRAMES, -1)


@pytest.mark.parametrize("starts", [(0,), (0, 20)])
def test_a_perfect_ego_model_is_right_in_all_classes(starts):
    logits = ego_logits(np.pad(talk()[:, [2, 0, 1]], ((0, 0), (0, 1))))
    scores = scored(Ego(speakers=4), logits, starts)
    names = Ego().class_names
    assert [scores[f"f1_{name}"].value for name in names] == [1.0] * CLASSES
    assert (scores["accuracy"].errors, scores["accuracy"].total) == (0, 4 * FRAMES), "three targets and the silent one"
    confusion = scores["accuracy"].details["confusion"]
    silent = ego_classes(torch.from_numpy(np.pad(talk(), ((0, 0), (0, 1))))).numpy()
    assert np.diag(confusion).tolist() == np.bincount(silent.ravel(), minlength=CLASSES).tolist()


def test_a_speaker_too_few_and_one_too_many():
    """A target without a counterpart is compared with the silent one."""
    few = scored(Ego(speakers=4), ego_logits(np.pad(talk()[:, :2], ((0, 0), (0, 2)))))
    without = ego_classes(torch.from_numpy(np.pad(talk()[:, :2], ((0, 0), (0, 1))))).numpy()
    true = ego_classes(torch.from_numpy(np.pad(talk(), ((0, 0), (0, 1))))).numpy()
    wrong = (true != without[:, [0, 1, 2, 2]]).sum()
    assert (few["accuracy"].errors, few["accuracy"].total) == (wrong, 4 * FRAMES)
    turns = [turn for turn in TURNS if turn[0] != "cid"]
    more = scored(Ego(speakers=4), ego_logits(np.pad(talk(), ((0, 0), (0, 1)))), turns=turns)
    assert (more["accuracy"].errors, more["accuracy"].total) == (wrong, 4 * FRAMES)


def test_what_is_not_scored_does_not_count():
    logits = ego_logits(np.pad(talk(), ((0, 0), (0, 1))))
    logits[:20] = 0.0
    assert scored(Ego(speakers=4), logits)["accuracy"].errors
    inside = scored(Ego(speakers=4), logits, uem=[[2.0, 6.0]])
    assert (inside["accuracy"].errors, inside["accuracy"].total) == (0, 4 * 40)


@pytest.mark.parametrize("labels", [Binary(), Overlap()])
def test_on_and_off_are_two_classes(labels):
    truth = labels.targets(talk(), [])
    scores = scored(labels, 40 * truth - 20)
    assert scores["accuracy"].value == scores[f"f1_no_{labels.label}"].value == 1
    truth[:10] = 1 - truth[:10]
    assert scored(labels, 40 * truth - 20)["accuracy"].errors == 10


@pytest.mark.parametrize("starts", [(0,), (0, 30)])
def test_classes_of_a_plug_in(starts):
    truth = talk().sum(1).clip(max=2)
    scores = scored(Loudness(type="loudness"), 9 * np.eye(3, dtype=np.float32)[truth], starts)
    assert [scores[f"f1_class_{i}"].value for i in range(3)] == [1, 1, 1]
    assert scores["accuracy"].total == FRAMES - 1


def test_sets_of_speakers_are_scored_as_speakers_only():
    assert Powerset().class_names == [] and "accuracy" not in Diarize().metrics({})
