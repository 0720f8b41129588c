"""Batched Viterbi against the textbook's: one item, one state at a time."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.losses.base import WILDCARD
from stentor.models.decoding.viterbi import frames_needed, long_path, viterbi, with_wildcard


def textbook(emissions: np.ndarray, labels: list[int], blank: int) -> tuple[list[int], float]:
    """States and score of the best path, by plain loops over frames and states."""
    spelled = [blank]
    for label in labels:
        spelled += [label % emissions.shape[1], blank]
    frames, count = len(emissions), len(spelled)
    score = [[-math.inf] * count for _ in range(frames)]
    came = [[0] * count for _ in range(frames)]
    for t in range(frames):
        for s in range(count):
            if t == 0:
                ways = [(0.0, s)] if s < 2 else []
            else:
                ways = [(score[t - 1][s], s)]
                if s >= 1:
                    ways.append((score[t - 1][s - 1], s - 1))
                label = (s - 1) // 2
                if s % 2 and label and (labels[label] != labels[label - 1] or labels[label] == WILDCARD):
                    ways.append((score[t - 1][s - 2], s - 2))
            if ways:
                best, came[t][s] = max(ways, key=lambda way: way[0])
                score[t][s] = best + float(emissions[t, spelled[s]])
    state = count - 1 if score[-1][-1] > score[-1][-2] else count - 2
    total, states = score[-1][state], []
    for t in range(frames - 1, -1, -1):
        states.append(state)
        state = came[t][state]
    return states[::-1], total


def cost(emissions: np.ndarray, labels: list[int], states: np.ndarray, blank: int) -> float:
    """Log-probability of a path, and that it is one: it moves on by allowed steps only, from start to end."""
    assert states[0] in (0, 1) and states[-1] in (2 * len(labels) - 1, 2 * len(labels))
    for a, b in itertools.pairwise(states):
        assert 0 <= b - a <= 2
        if b - a == 2:
            assert a % 2 and (labels[a // 2] != labels[b // 2] or labels[a // 2] == WILDCARD)
    return sum(
        float(emissions[t, labels[s // 2] % emissions.shape[1] if s % 2 else blank]) for t, s in enumerate(states)
    )


def random_item(rng: np.random.Generator, frames: int, classes: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=(frames, classes)).astype(np.float32) * 3).log_softmax(-1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equal_to_the_textbook(data):
    blank = data.draw(st.integers(0, 3))
    alphabet = [WILDCARD, *(c for c in range(4) if c != blank)]
    items = data.draw(
        st.lists(st.tuples(st.lists(st.sampled_from(alphabet), max_size=7), st.integers(1, 16)), min_size=1, max_size=6)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    emissions = [with_wildcard(random_item(rng, frames, 4), blank, 0.5) for _, frames in items]
    labels = [row for row, _ in items]
    for e, row, path in zip(emissions, labels, viterbi(emissions, labels, blank), strict=True):
        if not row:
            assert path is None
            continue
        states, score = textbook(e.numpy(), row, blank)
        if score == -math.inf:
            assert path is None
            continue
        assert len(states) == len(path.states)
        assert path.score == pytest.approx(score, abs=1e-4)
        assert cost(e.numpy(), row, path.states, blank) == pytest.approx(score, abs=1e-4)


def test_the_same_states_as_the_textbook():
    """With scores that are exact in float32 ties are ties, and the same path wins."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        labels = rng.integers(1, 4, size=rng.integers(1, 8)).tolist()
        e = torch.from_numpy(-rng.integers(0, 4, size=(frames_needed(labels) + int(rng.integers(0, 9)), 4))).float()
        (path,) = viterbi([e], [labels])
        assert path.states.tolist() == textbook(e.numpy(), labels, 0)[0]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_blocks_and_bands_change_nothing(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(1, 4, size=data.draw(st.integers(1, 40)))
    e = random_item(rng, frames_needed(labels) + data.draw(st.integers(0, 60)), 4)
    (exact,) = viterbi([e], [labels.tolist()])
    path = long_path(e, labels, block=data.draw(st.integers(1, 30)), band=100)
    assert path.score == pytest.approx(exact.score, abs=1e-3)
    assert cost(e.numpy(), labels.tolist(), path.states, 0) == pytest.approx(exact.score, abs=1e-3)


def speech(rng: np.random.Generator, count: int, classes: int = 12) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Emissions that say random labels, each once, with blanks between; with the labels and their frames."""
    labels = rng.integers(1, classes, size=count)
    at = np.cumsum(rng.integers(2, 6, size=count))
    e = torch.full((int(at[-1]) + 4, classes), -6.0)
    e[:, 0] = 3.0
    e[torch.from_numpy(at), torch.from_numpy(labels)] = 9.0
    return (e + torch.from_numpy(rng.normal(size=e.shape).astype(np.float32))).log_softmax(-1), labels, at


def test_a_band_follows_the_speech():
    e, labels, at = speech(np.random.default_rng(0), 600)
    path = long_path(e, labels, block=50, band=64)
    first, after = path.labels(len(labels))
    assert first.tolist() == at.tolist() and after.tolist() == (at + 1).tolist()


def test_a_band_too_narrow_is_widened():
    """Half of the text is never said: the best path at first lags far behind where it must end."""
    rng = np.random.default_rng(1)
    e, labels, _ = speech(rng, 100)
    labels = np.concatenate([labels[:50], rng.integers(1, 12, size=200), labels[50:]])
    (exact,) = viterbi([e], [labels.tolist()])
    assert long_path(e, labels, block=32, band=8).score == pytest.approx(exact.score, abs=1e-2)


def test_just_enough_frames_and_one_too_few():
    labels = [1, 1, 2, 2, 2, 3]
    assert frames_needed(labels) == 9
    e = torch.zeros(9, 4)
    enough, short = viterbi([e, e[:8]], [labels, labels])
    assert enough.states.tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 11]
    assert short is None
    assert frames_needed([WILDCARD, WILDCARD]) == 2


def test_no_items_and_no_labels():
    assert viterbi([], []) == []
    assert viterbi([torch.zeros(5, 3)], [[]]) == [None]


def test_many_items_are_dealt_out_by_memory(monkeypatch):
    from stentor.models.decoding import viterbi as module

    rng = np.random.default_rng(3)
    rows = [rng.integers(1, 5, size=n).tolist() for n in rng.integers(1, 12, size=20)]
    emissions = [random_item(rng, int(n), 5) for n in rng.integers(25, 60, size=20)]
    at_once = viterbi(emissions, rows)
    monkeypatch.setattr(module, "CELLS", 1000)  # some alone in blocks, the others a few at a time
    for a, b in zip(at_once, viterbi(emissions, rows), strict=True):
        assert a.states.tolist() == b.states.tolist()


def test_a_wildcard_hears_any_sound_and_rather_not_silence():
    e = torch.full((9, 4), -9.0)
    e[:, 0] = 0.0
    for frame, label in ((1, 1), (4, 3), (5, 3), (7, 2)):
        e[frame, 0], e[frame, label] = -9.0, 0.0
    (path,) = viterbi([with_wildcard(e.log_softmax(-1), 0, 0.7)], [[1, WILDCARD, 2]])
    first, after = path.labels(3)
    assert (first.tolist(), after.tolist()) == ([1, 4, 7], [2, 6, 8])


@pytest.mark.parametrize("labels", [[1, WILDCARD, 2], [WILDCARD], [WILDCARD, 1], [2, WILDCARD]])
def test_without_penalty_a_wildcard_is_the_star_token_of_torchaudio(labels):
    """The star has log-probability 0 in every frame, here in emissions whose best class has it too: all strings."""
    e = random_item(np.random.default_rng(len(labels)), 5, 3)
    e = (e - e.amax(-1, keepdim=True)).double()
    starred = np.concatenate([e.numpy(), np.zeros((5, 1))], 1)
    strings = itertools.product(range(4), repeat=5)
    spelled = [s for s in strings if [c for c, _ in itertools.groupby(s) if c] == [label % 4 for label in labels]]
    (path,) = viterbi([with_wildcard(e, 0, 0.0).float()], [labels])
    assert path.score == pytest.approx(max(starred[range(5), s].sum() for s in spelled), abs=1e-5)
