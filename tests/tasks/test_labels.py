"""What is said of frames, and what a model's outputs mean."""

from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from stentor.config.load import load
from stentor.errors import ConfigError
from stentor.losses.diarization import powerset_table
from stentor.losses.ego import CLASSES, ego_classes
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.binary import Binary, Overlap
from stentor.tasks.diarize.labels.powerset import Powerset
from stentor.tasks.diarize.labels.speaker import Ego, SpeakerLabels

#                 0  1  2  3  4  5
WHO = np.array([[0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 0]], bool).T
NAMES = ["ann", "ben", "cid"]


def test_speech_and_overlap():
    assert Binary().targets(WHO, NAMES)[:, 0].tolist() == [0, 1, 1, 1, 1, 1]
    assert Overlap().targets(WHO, NAMES)[:, 0].tolist() == [0, 0, 1, 0, 1, 1]
    for labels in (Binary(), Overlap()):
        assert not labels.targets(np.zeros((4, 0), bool), []).any()
        assert labels.targets(WHO, NAMES).dtype == np.float32
        assert (labels.classes, len(labels.names), labels.permutes, labels.slots) == (1, 1, False, None)


def test_speakers_keep_their_order_and_empty_slots_are_silent():
    targets = SpeakerLabels(speakers=4).targets(WHO, NAMES)
    assert targets.shape == (6, 4) and targets.dtype == np.float32
    assert (targets[:, :3] == WHO).all() and not targets[:, 3].any()
    assert not SpeakerLabels(speakers=2).targets(np.zeros((5, 0), bool), []).any()


def test_of_too_many_speakers_those_who_talk_most_stay():
    crowd = WHO[:, [2, 0, 1]]  # the one who says least comes first
    assert (SpeakerLabels(speakers=2).targets(crowd, ["cid", "ann", "ben"]) == WHO[:, :2]).all()
    assert (Powerset(speakers=2, at_once=2).targets(crowd, ["cid", "ann", "ben"]) == WHO[:, :2]).all()


def test_of_too_many_at_once_those_who_talk_most_are_meant():
    targets = Powerset(speakers=3, at_once=2).targets(WHO, NAMES)
    expected = WHO.copy()
    expected[4, 2] = False
    assert (targets == expected).all()
    assert Powerset(speakers=3, at_once=1).targets(WHO, NAMES).sum(1).max() == 1


@pytest.mark.parametrize(("speakers", "at_once", "classes"), [(3, 2, 7), (4, 2, 11), (2, 2, 4), (3, 1, 4), (4, 4, 16)])
def test_the_table_holds_each_set_once_in_order(speakers, at_once, classes):
    table = powerset_table(speakers, at_once)
    assert table.shape == (classes, speakers) and Powerset(speakers=speakers, at_once=at_once).classes == classes
    assert classes == sum(comb(speakers, n) for n in range(at_once + 1))
    expected = [row for row in product([True, False], repeat=speakers) if sum(row) <= at_once]
    expected.sort(key=lambda row: (sum(row), [i for i, on in enumerate(row) if on]))
    assert table.tolist() == [list(row) for row in expected]
    assert not table[0].any()


def test_probabilities_of_sets_add_up_to_those_of_speakers():
    labels = Powerset(speakers=3, at_once=2)
    logits = np.random.default_rng(0).normal(size=(9, 7)) * 3 + 500  # large ones do not overflow
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    expected = np.stack([sum(share[:, c] for c in range(7) if labels.table[c, s]) for s in range(3)], 1)
    np.testing.assert_allclose(labels.decode(logits), expected, atol=1e-5)


def test_probabilities_of_outputs_that_are_on_or_off():
    logits = np.array([[-1000.0, 0.0, 1000.0, 2.0]])
    np.testing.assert_allclose(SpeakerLabels().decode(logits), [[0, 0.5, 1, 1 / (1 + np.exp(-2))]], atol=1e-6)
    assert Binary().decode(logits[:, :1]).shape == (1, 1)


def test_a_reference_in_the_terms_of_the_labels():
    segments = [
        {"speaker": "ann", "start": 1.0, "end": 4.0},
        {"speaker": "ann", "start": 3.0, "end": 5.0},
        {"speaker": "ben", "start": 3.5, "end": 6.0},
        {"speaker": "cid", "start": 6.0, "end": 7.0},
        {"speaker": "ben", "start": 9.0, "end": 9.5},
    ]
    assert SpeakerLabels().reference_segments(segments) == segments
    assert [(s["start"], s["end"]) for s in Binary().reference_segments(segments)] == [(1.0, 7.0), (9.0, 9.5)]
    assert {s["speaker"] for s in Binary().reference_segments(segments)} == {"speech"}
    # Somebody who overlaps himself, or follows another without a pause, is no overlap.
    assert Overlap().reference_segments(segments) == [{"speaker": "overlap", "start": 3.5, "end": 5.0}]
    assert Overlap().reference_segments([]) == Binary().reference_segments([]) == []


def test_each_kind_is_trained_by_its_own_loss():
    losses = {kind: [loss.type for loss in cls().losses().values()] for kind, cls in Labels.choices().items()}
    assert losses == {
        "speaker": ["pit_bce"],
        "powerset": ["powerset"],
        "ego": ["ego"],
        "binary": ["bce_with_logits"],
        "overlap": ["bce_with_logits"],
    }


def test_each_speaker_is_the_target_once():
    labels = Ego(speakers=4)
    assert (labels.classes, labels.slots, labels.permutes) == (20, 4, True)
    assert (labels.targets(WHO, NAMES)[:, :3] == WHO).all(), "the loss makes the classes"
    perfect = np.eye(CLASSES)[ego_classes(torch.from_numpy(labels.targets(WHO, NAMES) > 0)).numpy()]
    decoded = labels.decode(100 * perfect.reshape(len(WHO), -1))
    assert decoded.dtype == np.float32
    np.testing.assert_allclose(decoded[:, :3], WHO, atol=1e-5)
    assert not decoded[:, 3].round(5).any(), "the target nobody does not talk"


def test_no_more_at_once_than_there_are_speakers():
    with pytest.raises(ValidationError, match=r"must not be above the number of speakers \(2\), got 3"):
        Powerset(speakers=2, at_once=3)


RUN = """\
task: {{type: diarize, labels: {labels}}}
model: {{type: transformer}}
data: {{train: [{{type: jsonl, path: x.jsonl}}]}}
"""


def test_labels_are_found_by_name(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(RUN.format(labels="powerset"))
    config = load(file).config
    assert config.task.labels == Powerset()
    assert type(config).model_validate(config.plain()).task.labels == Powerset()
    file.write_text(RUN.format(labels="{type: powerset, at_once: 9}"))
    with pytest.raises(ConfigError, match=r"run.yaml:1: .*labels.at_once.*must not be above the number of speakers"):
        load(file)
    file.write_text(RUN.format(labels="speakers"))
    with pytest.raises(ConfigError, match="known: binary, ego, overlap, powerset, speaker"):
        load(file)
