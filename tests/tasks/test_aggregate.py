"""Windows of made-up conversations, whose speakers are numbered anew in each, and how they are put together."""

import numpy as np
import pytest

from stentor.tasks.diarize.aggregate import (
    activity,
    binarize,
    diarization,
    hysteresis,
    identities,
    overlap_add,
    smoothed,
)
from stentor.tasks.diarize.clustering import cluster, cosine, threshold_between, whitened
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.tracking import link_windows
from stentor.tasks.diarize.tune import TuningRecording, tune
from stentor.tasks.diarize.windows import Windows

FRAME = 0.1


def conversation(turns, frames):
    """Activity [frames, speakers] from (speaker, first frame, end) turns."""
    talk = np.zeros((frames, max(t[0] for t in turns) + 1), bool)
    for speaker, start, end in turns:
        talk[start:end, speaker] = True
    return talk


def window_outputs(talk, window=100, step=25, slots=2, seed=0, voices=None, noise=0.0):
    """What a model without faults says of it: the speakers of each window in a random order, those who talk most when
    there are more than `slots`. `voices` [speakers, E]: with embeddings, `noise` is added."""
    rng = np.random.default_rng(seed)
    frames = len(talk)
    starts = list(range(0, max(frames - window, 0) + 1, step))
    if starts[-1] + window < frames:
        starts.append(frames - window)
    length = min(window, frames)
    scores = np.zeros((len(starts), length, slots), np.float16)
    embeddings = np.zeros((len(starts), slots, 0 if voices is None else voices.shape[1]), np.float32)
    nonoverlapping = np.zeros((len(starts), slots), np.int32)
    for w, start in enumerate(starts):
        window_talk = talk[start : start + length]
        loudest = [k for k in np.argsort(-window_talk.sum(0), kind="stable")[:slots] if window_talk[:, k].any()]
        for slot, k in zip(rng.permutation(slots), loudest):
            scores[w, :, slot] = np.where(window_talk[:, k], 0.9, 0.05)
            nonoverlapping[w, slot] = (window_talk[:, k] & (window_talk[:, loudest].sum(1) == 1)).sum()
            if voices is not None:
                voice = voices[k] + noise * rng.standard_normal(voices.shape[1])
                embeddings[w, slot] = voice / np.linalg.norm(voice)
    return WindowOutputs(
        FRAME,
        frames * 1600,
        16000,
        np.array(starts),
        np.full(len(starts), length),
        scores,
        None,
        None if voices is None else embeddings,
        None,
        nonoverlapping,
    )


def answer(outputs, **settings):
    """Activity [frames, speakers] of the recording."""
    windows = Windows(**settings)
    active = binarize(outputs, windows)
    return overlap_add(outputs, active, identities(outputs, active, windows))


def wrong(tracks, talk):
    """Share of frames in which the speakers, matched as well as can be, are not those who talk."""
    from scipy.optimize import linear_sum_assignment

    size = max(tracks.shape[1], talk.shape[1])
    a, b = (np.pad(x, ((0, 0), (0, size - x.shape[1]))).astype(int) for x in (tracks, talk))
    rows, columns = linear_sum_assignment(a.T @ b, maximize=True)
    return (a[:, rows] != b[:, columns]).any(1).mean()


def test_permuted_windows_become_one_recording():
    rng = np.random.default_rng(1)
    turns, at = [], 0
    while at < 1900:
        length = int(rng.integers(10, 50))
        turns.append((int(rng.integers(3)), at, min(at + length, 2000)))
        at += int(length * rng.uniform(0.7, 1.2))
    talk = conversation(turns, 2000)
    outputs = window_outputs(talk, slots=3, seed=2)
    unmatched = overlap_add(outputs, binarize(outputs, Windows()), np.tile(np.arange(3), (len(outputs.starts), 1)))
    assert wrong(unmatched, talk) > 0.3  # the windows really do not agree
    assert wrong(answer(outputs), talk) < 0.01


def test_someone_who_was_silent_for_long_is_recognised_by_voice():
    # 0 talks with 1, then with 2, then with 1 again, whom no window has heard for a minute.
    turns = [
        (speaker, start, start + 30)
        for block, pair in enumerate([(0, 1), (0, 2), (0, 1), (0, 2)])
        for i in range(20)
        for speaker, start in [(pair[i % 2], block * 600 + 30 * i)]
    ]
    talk = conversation(turns, 2400)
    voices = np.eye(8)[:3]
    with_voices = answer(window_outputs(talk, voices=voices, noise=0.1))
    assert with_voices.shape[1] == 3
    assert wrong(with_voices, talk) < 0.01
    # Without voices, the two that come and go are all the same: a model of two slots knows of two speakers.
    without = answer(window_outputs(talk))
    assert without.shape[1] == 2
    assert wrong(without, talk) > 0.2


def test_more_speakers_in_the_recording_than_in_any_window():
    rng = np.random.default_rng(3)
    voices = np.linalg.qr(rng.standard_normal((16, 16)))[0][:6]
    turns = [(int(rng.choice([2 * (i // 10 % 3), 2 * (i // 10 % 3) + 1])), 40 * i, 40 * i + 38) for i in range(90)]
    talk = conversation(turns, 3600)
    tracks = answer(window_outputs(talk, slots=2, voices=voices, noise=0.15))
    assert tracks.shape[1] == 6
    # Where three speakers share a window of two slots, the one who talks least is not heard.
    assert wrong(tracks, talk) < 0.06


def test_a_window_with_one_slot_too_few_does_not_mix_up_the_rest():
    turns = [(i % 2, 40 * i, 40 * i + 40) for i in range(30)] + [(2, 600, 630)]
    talk = conversation(turns, 1200)
    tracks = answer(window_outputs(talk, slots=2))
    assert wrong(tracks, talk[:, :2]) < 0.1


@pytest.mark.parametrize(("speakers", "expected"), [(None, 4), (2, 2), (3, 3), (6, 6)])
def test_number_of_speakers(speakers, expected):
    # Two pairs of voices that are nearly alike: four speakers, or two; each voice also wavers a little.
    base = np.eye(12)
    voices = np.stack([base[0], base[0] + 1.1 * base[1], base[2], base[2] + 1.1 * base[3]])
    turns = [(i % 4, 50 * i, 50 * i + 48) for i in range(60)]
    outputs = window_outputs(conversation(turns, 3000), window=40, step=20, voices=voices, noise=0.05)
    windows = Windows(cluster_threshold=0.2, speakers=speakers)
    assert len({s["speaker"] for s in diarization(outputs, windows, True)}) == expected


def test_bounds_on_the_number_of_speakers():
    talk = conversation([(i % 3, 50 * i, 50 * i + 48) for i in range(30)], 1500)
    outputs = window_outputs(talk, slots=3, window=200, step=50)
    names = lambda windows: {s["speaker"] for s in diarization(outputs, windows, True)}  # noqa: E731
    assert len(names(Windows())) == 3
    assert len(names(Windows(max_speakers=2))) == 2  # no speech is lost: it joins another speaker
    assert Windows(speakers=2).bounds == (2, 2)


def test_one_window_is_taken_as_it_is():
    rng = np.random.default_rng(0)
    scores = rng.random((1, 60, 3)).astype(np.float16)
    outputs = WindowOutputs(
        FRAME, 96000, 16000, np.array([0]), np.array([60]), scores, None, None, None, np.ones((1, 3), np.int32)
    )
    for windows in (Windows(), Windows(threshold=0.3), Windows(threshold=0.7, offset=0.2)):
        active = binarize(outputs, windows)
        assert (overlap_add(outputs, active, identities(outputs, active, windows)) == active[0]).all()


def test_counting_keeps_a_speaker_whom_the_windows_call_by_two_names():
    # One voice for 300 frames, in windows that the identities call 0 and 1 in turn: somebody always talks.
    talk = conversation([(0, 0, 300)], 300)
    outputs = window_outputs(talk, slots=1)
    who = np.arange(len(outputs.starts))[:, None] % 2
    tracks = overlap_add(outputs, binarize(outputs, Windows()), who)
    assert (tracks.sum(1) == 1).all()


def test_tracks_end_where_nobody_agrees():
    # The overlap is silent: there is nothing to follow a speaker by.
    talk = conversation([(0, 0, 70), (0, 130, 200)], 200)
    outputs = window_outputs(talk, slots=2, window=100, step=75)
    tracks = link_windows(outputs, binarize(outputs, Windows()))
    assert len(np.unique(tracks[tracks >= 0])) >= 2
    assert tracks[0].max() == 0


def test_hysteresis_begins_high_and_ends_low():
    scores = np.array([0.2, 0.6, 0.4, 0.4, 0.2, 0.4, 0.7, 0.35, 0.1])[:, None]
    assert hysteresis(scores, 0.5, 0.3)[:, 0].tolist() == [False, True, True, True, False, False, True, True, False]
    assert hysteresis(scores, 0.5, None)[:, 0].tolist() == (scores[:, 0] >= 0.5).tolist()


def test_pauses_are_filled_before_short_speech_is_removed():
    track = np.zeros((40, 2), bool)
    track[[5, 6, 8, 9, 20], 0] = True
    track[30:33, 1] = True
    done = smoothed(track, Windows(min_off=0.15, min_on=0.4), FRAME)
    assert np.flatnonzero(done[:, 0]).tolist() == [5, 6, 7, 8, 9]
    assert not done[:, 1].any()
    assert not smoothed(track, Windows(median=3), FRAME)[20, 0]
    assert (smoothed(track, Windows(), FRAME) == track).all()


def test_speakers_are_named_in_order_of_arrival():
    scores = np.zeros((1, 50, 3), np.float16)
    scores[0, 30:, 0] = scores[0, 10:20, 2] = scores[0, 15:25, 1] = 0.9
    outputs = WindowOutputs(
        FRAME, 79000, 16000, np.array([0]), np.array([50]), scores, None, None, None, np.ones((1, 3), np.int32)
    )
    assert diarization(outputs, Windows(), True) == [
        {"speaker": "speaker_1", "start": 1.0, "end": 2.0},
        {"speaker": "speaker_2", "start": 1.5, "end": 2.5},
        {"speaker": "speaker_3", "start": 3.0, "end": 4.938},  # the audio ends within the last frame
    ]


def test_outputs_that_mean_the_same_in_all_windows_are_averaged():
    scores = np.full((2, 10, 1), 0.4, np.float16)
    scores[0] = 0.8
    outputs = WindowOutputs(
        FRAME, 24000, 16000, np.array([0, 5]), np.array([10, 10]), scores, None, None, None, np.ones((2, 1), np.int32)
    )
    (segment,) = diarization(outputs, Windows(), False, ["speech"])
    # The nearer to a window's middle, the more it counts: the mean falls below the threshold in frame 9.
    assert segment == {"speaker": "speech", "start": 0.0, "end": 0.9}


def test_clustering_is_the_nearest_pair_by_mean_distance_each_time():
    """Against scipy's own average linkage."""
    from scipy.cluster.hierarchy import fcluster, linkage

    rng = np.random.default_rng(5)
    voices = rng.standard_normal((60, 4))
    voices /= np.linalg.norm(voices, axis=1, keepdims=True)
    for threshold in (0.1, 0.3, 0.6):
        ours = cluster(cosine(voices), np.ones(60), np.zeros((60, 60), bool), threshold)
        theirs = fcluster(linkage(voices, "average", metric="cosine"), threshold, "distance")
        assert ((ours[:, None] == ours) == (theirs[:, None] == theirs)).all()
    assert len(set(cluster(cosine(voices), np.ones(60), np.zeros((60, 60), bool), 0.0, most=7))) == 7
    assert len(set(cluster(cosine(voices), np.ones(60), np.zeros((60, 60), bool), 2.0, least=5))) == 5


def test_voices_of_one_window_are_never_one_speaker():
    voices = np.tile(np.eye(3)[:1], (4, 1))
    apart = np.zeros((4, 4), bool)
    apart[0, 1] = apart[1, 0] = apart[2, 3] = apart[3, 2] = True
    labels = cluster(cosine(voices), np.ones(4), apart, 2.0, most=1)
    assert labels[0] != labels[1] and labels[2] != labels[3] and len(set(labels)) == 2


def test_the_recording_says_how_far_apart_voices_are():
    rng = np.random.default_rng(0)
    speakers = rng.integers(4, size=80)
    # Most of what differs from voice to voice is what each voice varies by: only the first three values tell anything.
    voices = 5 * rng.standard_normal((80, 20)) @ np.diag([0.02] * 3 + [1] * 17)
    voices[:, :3] += rng.standard_normal((4, 3))[speakers]
    pairs = np.argwhere(np.triu(np.ones((80, 80), bool), 1))
    alike = speakers[pairs[:, 0]] == speakers[pairs[:, 1]]
    same, different = pairs[alike], pairs[~alike]
    distances = whitened(voices, same[::7])
    threshold, separation = threshold_between(*(distances[p[:, 0], p[:, 1]] for p in (same, different)), squared=True)
    assert separation > 2
    assert (distances[different[:, 0], different[:, 1]] > threshold).mean() > 0.9
    assert (distances[same[:, 0], same[:, 1]] < threshold).mean() > 0.9
    labels = cluster(distances, np.ones(80), np.zeros((80, 80), bool), threshold)
    assert ((labels[:, None] == labels) == (speakers[:, None] == speakers)).mean() > 0.95
    plain = ((voices[:, None] - voices[None]) ** 2).sum(2)
    assert threshold_between(*(plain[p[:, 0], p[:, 1]] for p in (same, different)), squared=True)[1] < 1


def test_voices_that_tell_nothing_are_not_asked():
    """Embeddings of a model that has not learned any: speakers are followed as if there were none."""
    rng = np.random.default_rng(4)
    talk = conversation([(i % 3, 30 * i, 30 * i + 29) for i in range(60)], 1800)
    outputs = window_outputs(talk, slots=3)
    outputs.embeddings = rng.standard_normal((*outputs.scores.shape[::2], 8)).astype(np.float32)
    outputs.embeddings /= np.linalg.norm(outputs.embeddings, axis=2, keepdims=True)
    assert wrong(answer(outputs), talk) < 0.01


def test_a_word_in_a_short_recording_is_somebody():
    """Too little speech for a voice of its own, but nobody else can have said it: they are all talking."""
    talk = conversation([(0, 0, 60), (1, 62, 120), (0, 122, 150), (2, 100, 108)], 150)
    tracks = answer(window_outputs(talk, slots=3, voices=np.eye(4)[:3]))
    assert tracks.shape[1] == 3 and wrong(tracks, talk) < 0.01


def test_silence_in_several_windows():
    outputs = window_outputs(np.zeros((300, 2), bool), voices=np.eye(4)[:2])
    assert answer(outputs).shape == (300, 0)
    assert answer(outputs, cluster_threshold=0.5).shape == (300, 0)  # as --tune stores one


def test_tuning_searches_thresholds_and_offsets():
    """Whoever talks has a score of 0.15 to 0.5, and a floor of 0.08 in pauses: only low thresholds hear it."""
    rng = np.random.default_rng(6)
    talk = conversation([(i % 2, 30 * i, 30 * i + 25) for i in range(20)], 600)
    outputs = window_outputs(talk, window=600)
    shown = rng.uniform(0.15, 0.5, outputs.scores.shape)
    outputs.scores = np.where(outputs.scores > 0.5, shown, 0.08).astype(np.float16)
    spoken = [
        {"speaker": "ab"[i % 2], "start": 3.0 * i, "end": 3.0 * i + 2.5, "text": "only the times count"}
        for i in range(20)
    ]
    recording = TuningRecording.of(outputs, spoken)
    windows = Windows(min_speakers=2, threshold=0.5, offset=0.2)
    best = tune([recording], windows, True)
    turns = diarization(outputs, best, True)
    assert recording.error_seconds(smoothed(activity(outputs, windows, True), windows, FRAME), True) > 40
    assert recording.error_seconds(smoothed(activity(outputs, best, True), best, FRAME), True) < 0.3
    assert len(turns) == 20 and best.min_speakers == 2 and best.threshold < 0.5
    half = TuningRecording.of(outputs, spoken, uem=[[0.0, 30.0]])
    assert half.error_seconds(np.zeros((600, 2), bool), True) == pytest.approx(25.0, abs=0.1)
