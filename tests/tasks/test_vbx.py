"""VBx: the number of speakers and the labels of synthetic voices, and its limits."""

import itertools

import numpy as np
import pytest

from stentor.tasks.diarize.clustering import cluster_speakers
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.vbx import Speakers, apart_labels, speaker_space, vbx
from stentor.tasks.diarize.windows import Windows

FA, FB = 1.0, 3.0


def voices(speakers, each=20, dim=6, between=16.0, seed=0):
    """(observations [N, dim] of that covariance between speakers and I within, their speakers [N])."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, np.sqrt(between), (speakers, dim))
    who = rng.permutation(np.repeat(np.arange(speakers), each))
    return means[who] + rng.normal(size=(len(who), dim)), who


def same_partition(a, b):
    pairs = np.unique(np.stack([a, b]), axis=1).shape[1]
    return pairs == len(np.unique(a)) == len(np.unique(b))


def alone(count):
    return np.arange(count)


@pytest.mark.parametrize("speakers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("loop", [0.0, 0.5])
def test_it_finds_the_speakers_and_how_many_there_are(speakers, loop):
    x, who = voices(speakers, seed=speakers)
    # Begun with three times too many clusters, each of them pure.
    initial = who * 3 + np.arange(len(who)) % 3
    found = vbx(x, np.full(6, 16.0), initial, alone(len(x)), FA, FB, loop)
    assert len(found.shares) == speakers and same_partition(found.posterior.argmax(1), who)
    assert found.posterior.sum(1) == pytest.approx(1)
    assert found.shares == pytest.approx(np.full(speakers, 1 / speakers), abs=0.05)


def test_without_evidence_the_prior_leaves_one_speaker_and_with_much_the_clusters_stay():
    x, who = voices(4, seed=1)
    weak = vbx(x, np.full(6, 16.0), who, alone(len(x)), 1e-6, FB, 0.0)
    assert weak.posterior == pytest.approx(np.broadcast_to(weak.posterior[0], weak.posterior.shape), abs=1e-2)
    many = who * 2 + np.arange(len(who)) % 2
    assert len(vbx(x, np.full(6, 16.0), many, alone(len(x)), FA, 100.0, 0.0).shares) <= 4
    # Where speakers do not differ, nothing is told apart.
    flat = vbx(x, np.full(6, 1e-9), who, alone(len(x)), FA, FB, 0.0)
    assert flat.posterior == pytest.approx(np.broadcast_to(flat.posterior[0], flat.posterior.shape), abs=1e-3)


def test_one_update_is_that_of_the_paper(monkeypatch):
    """Equations 16 to 19 and 23 of Landini et al. with the forward-backward sums written out over all paths."""
    rng = np.random.default_rng(3)
    x, phi, fa, fb, loop = rng.normal(size=(4, 2)), np.array([4.0, 1.5]), 0.7, 1.3, 0.6
    initial = np.array([0, 0, 1, 1])
    gamma = np.exp(7.0 * (initial[:, None] == np.arange(2)))
    gamma /= gamma.sum(1, keepdims=True)
    pi = np.array([0.5, 0.5])
    scores = np.zeros((4, 2))
    for s in range(2):
        precision = np.eye(2) + fa / fb * gamma[:, s].sum() * np.diag(phi)
        mean = fa / fb * np.linalg.inv(precision) @ (np.sqrt(phi)[:, None] * x.T) @ gamma[:, s]
        for t in range(4):
            spread = np.trace((np.linalg.inv(precision) + np.outer(mean, mean)) @ np.diag(phi))
            log_normal = -0.5 * (x[t] @ x[t] + 2 * np.log(2 * np.pi))
            scores[t, s] = fa * (mean @ (np.sqrt(phi) * x[t]) - 0.5 * spread + log_normal)
    posterior = np.zeros((4, 2))
    for path in np.ndindex(2, 2, 2, 2):
        weight = pi[path[0]]
        for a, b in itertools.pairwise(path):
            weight *= loop * (a == b) + (1 - loop) * pi[b]
        weight *= np.exp(sum(scores[t, s] for t, s in enumerate(path)))
        for t, s in enumerate(path):
            posterior[t, s] += weight
    monkeypatch.setattr("stentor.tasks.diarize.vbx.ITERATIONS", 1)
    found = vbx(x, phi, initial, np.zeros(4, int), fa, fb, loop)
    assert found.posterior == pytest.approx(posterior / posterior.sum(1, keepdims=True), abs=1e-9)


def test_the_evidence_never_falls(monkeypatch):
    x, _ = voices(3, between=2.0, seed=5)
    chains = np.repeat(np.arange(12), 5)
    values = []
    for iterations in range(1, 12):
        monkeypatch.setattr("stentor.tasks.diarize.vbx.ITERATIONS", iterations)
        values.append(vbx(x, np.full(6, 2.0), np.arange(len(x)) % 9, chains, FA, FB, 0.8).evidence)
    assert (np.diff(values) >= -1e-6 * len(x)).all() and values[-1] > values[0]


def test_a_chain_carries_a_doubtful_voice():
    """Between two voices of one speaker, in one chain, one that lies in the middle of two speakers is theirs."""
    means = np.array([[4.0, 0.0], [-4.0, 0.0]])
    x = np.concatenate([np.repeat(means, 10, 0), [means[1], [0.1, 0.0], means[1]]])
    initial = np.array([0] * 10 + [1] * 10 + [1, 0, 1])
    phi = np.full(2, 8.0)
    chains = np.arange(23), np.array([*range(20), 20, 20, 20])
    single, chained = (vbx(x, phi, initial, each, FA, FB, 0.99).posterior.argmax(1) for each in chains)
    assert single[21] == single[0] and chained[21] == chained[10]


def test_the_space_has_unit_covariance_within_speakers_and_a_diagonal_one_between():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 5))
    x, who = voices(40, each=12, dim=5, between=6.0)
    pairs = np.array([(i, j) for i in range(len(x)) for j in range(i) if who[i] == who[j]])
    space, between = speaker_space((x @ mixing).astype(np.float32), pairs)
    within = np.mean([np.cov(space[who == k].T) for k in range(40)], axis=0)
    # Shrunk towards a multiple of I: exact where the covariance is one.
    plain, plain_between = speaker_space(x.astype(np.float32), pairs)
    assert np.mean([np.cov(plain[who == k].T) for k in range(40)], axis=0) == pytest.approx(np.eye(5), abs=0.15)
    assert (
        (plain_between > 2).all()
        and plain_between.mean() == pytest.approx(6, rel=0.4)
        and (np.diff(between) <= 0).all()
    )
    assert within.shape == (len(between), len(between)) and np.isfinite(space).all()
    means = np.stack([plain[who == k].mean(0) for k in range(40)])
    assert np.abs(np.corrcoef(means.T) - np.eye(5)).max() < 0.2


def test_voices_of_one_window_never_share_a_speaker():
    posterior = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    apart = np.zeros((3, 3), bool)
    apart[0, 1] = apart[1, 0] = True
    assert apart_labels(Speakers(posterior, np.full(2, 0.5), 0.0), apart).tolist() == [0, 1, 0]
    apart[0, 2] = apart[2, 0] = apart[1, 2] = apart[2, 1] = True
    assert apart_labels(Speakers(posterior, np.full(2, 0.5), 0.0), apart).tolist() == [0, 1, -1]


def recording(windows=60, speakers=4, noise=0.25, seed=0):
    """Windows of 20 s every 5 s in which two of the speakers talk by turns; each is known by a unit vector."""
    rng = np.random.default_rng(seed)
    length, step, dim = 200, 50, 16
    frames = (windows - 1) * step + length
    owners = np.zeros((frames, speakers), bool)
    at = 0
    while at < frames:
        hold = int(rng.integers(30, 120))
        owners[at : at + hold, rng.integers(speakers)] = True
        at += hold
    means = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:speakers]
    scores = np.zeros((windows, length, 4), np.float16)
    embeddings, alone_frames, truth = np.zeros((windows, 4, dim), np.float32), np.zeros((windows, 4), np.int32), []
    for w in range(windows):
        part = owners[w * step : w * step + length]
        slots = rng.permutation(4)
        truth.append({})
        for k in np.flatnonzero(part.any(0)):
            slot = int(slots[k])
            scores[w, :, slot] = part[:, k]
            vector = means[k] + noise * rng.normal(size=dim) / np.sqrt(max(part[:, k].sum() / 30, 1))
            embeddings[w, slot] = vector / np.linalg.norm(vector)
            alone_frames[w, slot] = part[:, k].sum()
            truth[w][slot] = int(k)
    starts, lengths = np.arange(windows) * step, np.full(windows, length)
    outputs = WindowOutputs(0.1, frames * 1600, 16000, starts, lengths, scores, None, embeddings, None, alone_frames)
    return outputs, truth


@pytest.mark.parametrize("speakers", [2, 3, 4])
def test_a_recording_is_clustered(speakers):
    from stentor.tasks.diarize.tracking import link_windows

    outputs, truth = recording(speakers=speakers, seed=speakers)
    tracks = link_windows(outputs, outputs.scores > 0.5)
    identities = cluster_speakers(outputs, tracks, Windows(clustering="vbx"))
    pairs = {(identities[w, slot], k) for w, slots in enumerate(truth) for slot, k in slots.items()}
    assert len({a for a, _ in pairs}) == speakers and len(pairs) == speakers
    # Bounds are kept, whatever it finds.
    bounded = cluster_speakers(outputs, tracks, Windows(clustering="vbx", speakers=speakers + 1))
    assert bounded.max() + 1 == speakers + 1
