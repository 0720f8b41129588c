"""Recordings that stream through a diarizer in windows, and what comes out of them."""

import json
from itertools import product

import numpy as np
import pytest
from scipy.special import log_softmax

from stentor.errors import AudioError, ConfigError
from stentor.inference.load import load
from stentor.inference.recording import FileRecording
from stentor.tasks.diarize.inference import likeliest_sets, run_windows, upsampled
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.windows import Windows
from tiny_configs import WAVE

RATE = 16000
TURNS = [
    (0, 0.0, 4.0),
    (1, 4.5, 8.0),
    (0, 7.0, 11.0),
    (2, 40.0, 47.0),
    (3, 46.0, 53.0),
    (1, 80.0, 90.0),
    (0, 88.0, 95.3),
]
"""Four voices, at most two in a window of 10 s; 0 and 1 come back after more than half a minute."""


def names(segments):
    """Segments with the voices in order of arrival by letter."""
    return [(s["speaker"][-1], s["start"], s["end"]) for s in segments]


def expected(turns):
    order = list(dict.fromkeys(t[0] for t in sorted(turns, key=lambda t: t[1])))
    return [(str(order.index(k) + 1), a, b) for k, a, b in sorted(turns, key=lambda t: t[1])]


def test_a_long_file_is_put_together_by_voices(diarizer, talk):
    model = load(diarizer())
    diarization = model.diarize(talk("long.wav", 95.3, TURNS))
    assert names(diarization.segments) == expected(TURNS)
    assert diarization.speakers == ["speaker_1", "speaker_2", "speaker_3", "speaker_4"]
    assert (diarization["duration"], diarization["model"]) == (95.3, model.name)
    assert diarization.rttm().splitlines()[0] == "SPEAKER long 1 0.000 4.000 <NA> <NA> speaker_1 <NA> <NA>"


def test_without_voices_the_windows_follow_each_other(diarizer, talk, tones):
    tones.voices = False
    turns = [(i % 2, 3.0 * i, 3.0 * i + 3.4) for i in range(20)]
    diarization = load(diarizer()).diarize(talk("two.wav", 61, turns))
    assert names(diarization.segments) == expected(turns)


@pytest.mark.parametrize("seconds", [0.02, 0.5, 9.99, 10.0, 10.01, 12.5, 12.51, 30.0, 31.7])
@pytest.mark.parametrize("block", [0.3, 7.0, 100.0])
def test_windows_cover_every_frame_whatever_the_blocks(diarizer, tones, seconds, block):
    model = load(diarizer())
    audio = np.arange(round(seconds * RATE), dtype=np.float32)
    size = round(block * RATE)
    blocks = [audio[at : at + size] for at in range(0, len(audio), size)]
    (outputs,) = run_windows(model.bundle, model.task, [iter(blocks)])
    assert outputs.samples == len(audio) and outputs.frames == model.bundle.processor.frames(len(audio))
    assert outputs.starts[0] == 0 and (np.diff(outputs.starts) > 0).all()
    assert (np.diff(outputs.starts) <= 25).all()  # no window is further than a step from the one before
    assert (outputs.lengths[:-1] == 100).all()
    assert max(tones.windows) <= 10 * RATE
    covered = np.zeros(outputs.frames)
    for start, length in zip(outputs.starts, outputs.lengths):
        covered[start : start + length] += 1
    assert covered.all()


def test_windows_hold_the_audio_of_their_frames(diarizer):
    model = load(diarizer())
    waveforms = []
    collate = model.bundle.processor.collate
    model.bundle.processor.collate = lambda examples, **options: (
        waveforms.extend(e.audio for e in examples),
        collate(examples, **options),
    )[1]
    audio = np.arange(round(33.33 * RATE), dtype=np.float32)
    (outputs,) = run_windows(model.bundle, model.task, [[audio[:100_000], audio[100_000:]]])
    for start, waveform in zip(outputs.starts, waveforms, strict=True):
        assert (waveform == audio[start * 1600 : start * 1600 + len(waveform)]).all()
    assert waveforms[-1][-1] == audio[-1]


def test_windows_of_several_recordings_share_batches(diarizer, talk, tones):
    model = load(diarizer(windows={"batch": 7}))
    paths = [talk(f"{i}.wav", 5 + 9 * i, [(i, 0.5, 3.0), (i + 1, 3.0, 4.5)]) for i in range(4)]
    batches = []
    label = model.bundle.model.label_frames
    model.bundle.model.label_frames = lambda features, lengths: (
        batches.append(len(features)),
        label(features, lengths),
    )[1]
    recordings = [FileRecording(path, RATE) for path in paths]
    together = list(run_windows(model.bundle, model.task, (r.blocks() for r in recordings)))
    assert batches[:-1] == [7] * (len(batches) - 1)
    for outputs, recording in zip(together, recordings, strict=True):
        (alone,) = run_windows(model.bundle, model.task, [recording.blocks()])
        assert (outputs.scores == alone.scores).all() and (outputs.starts == alone.starts).all()


def test_memory_does_not_grow_with_the_audio(diarizer):
    """Of an hour that streams by, no more than a few blocks and batches of windows are held at once."""
    import tracemalloc

    model = load(diarizer(windows={"batch": 4}))

    def peak(minutes):
        tracemalloc.start()
        try:
            blocks = (np.zeros(60 * RATE, np.float32) for _ in range(minutes))
            (outputs,) = run_windows(model.bundle, model.task, [blocks])
            return tracemalloc.get_traced_memory()[1], outputs
        finally:
            tracemalloc.stop()

    short, _ = peak(3)
    long, outputs = peak(12)
    assert outputs.duration == 720
    assert long < 1.3 * short < 4 * 12 * 60 * RATE  # less than the audio itself


def test_labels_that_are_no_speakers(diarizer, talk, tones):
    from stentor.inference.diarize import with_speakers
    from stentor.inference.options import SpeakerCount

    tones.speech = True
    model = load(diarizer(labels="binary"))
    diarization = model.diarize(talk("a.wav", 30, [(0, 1.0, 3.0), (1, 2.0, 5.0), (0, 20.0, 21.0)]))
    assert [tuple(s.values()) for s in diarization.segments] == [("speech", 1.0, 5.0), ("speech", 20.0, 21.0)]
    assert diarization.speakers == ["speech"]
    with pytest.raises(ConfigError, match="labels speech, not speakers"):
        with_speakers(model.task, SpeakerCount(speakers=2))
    with pytest.raises(ConfigError, match="labels speech, not speakers"):
        model.speaker_segments()


def test_numbers_of_speakers(diarizer, talk):
    model = load(diarizer())
    path = talk("long.wav", 95.3, TURNS)
    assert len(model.diarize(path, speakers=2).speakers) == 2
    assert len(model.diarize(path, max_speakers=3).speakers) == 3
    assert len(model.diarize(path, min_speakers=2, max_speakers=9).speakers) == 4
    with pytest.raises(ConfigError, match="not both"):
        model.diarize(path, speakers=2, max_speakers=3)
    with pytest.raises(ConfigError, match="must not be above max_speakers"):
        model.diarize(path, min_speakers=4, max_speakers=3)


def test_arrays_and_empty_audio(diarizer, talk, tmp_path):
    import soundfile

    model = load(diarizer())
    audio, rate = soundfile.read(talk("a.wav", 6, [(2, 1.0, 2.0)], rate=8000), dtype="float32")
    (segment,) = model.diarize(audio, rate=rate).segments
    assert segment["start"] == pytest.approx(1.0, abs=0.11) and segment["end"] == pytest.approx(2.0, abs=0.11)
    with pytest.raises(ConfigError, match="needs `rate`"):
        model.diarize(audio)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    with pytest.raises(AudioError, match=r"empty\.wav"):
        model.diarize(tmp_path / "empty.wav")
    with pytest.raises(AudioError, match="without a single sample"):
        list(run_windows(model.bundle, model.task, [[]]))


def test_embeddings_of_an_x_vector_model(diarizer, talk, tones, tmp_path):
    """Instead of the model's own: random weights that cannot tell voices apart, but the whole way through."""
    from transformers import AutoFeatureExtractor, Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForXVector

    tdnn = {"tdnn_dim": (8, 8, 8), "tdnn_kernel": (3, 2, 1), "tdnn_dilation": (1, 1, 1), "xvector_output_dim": 12}
    config = Wav2Vec2Config(num_feat_extract_layers=3, **WAVE, **tdnn)
    Wav2Vec2ForXVector(config).save_pretrained(tmp_path / "xvector")
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "xvector")
    assert AutoFeatureExtractor.from_pretrained(tmp_path / "xvector").sampling_rate == RATE
    model = load(diarizer(windows={"embedding": {"from": str(tmp_path / "xvector")}}))
    (outputs,) = run_windows(model.bundle, model.task, [FileRecording(talk("a.wav", 25, TURNS[:3]), RATE).blocks()])
    assert outputs.embeddings.shape == (len(outputs.starts), 2, 12)
    norms = np.linalg.norm(outputs.embeddings, axis=2)
    assert np.allclose(norms[outputs.nonoverlapping * 0.1 > 0.5], 1, atol=1e-5)
    assert (norms[outputs.nonoverlapping == 0] == 0).any() and len(np.unique(outputs.embeddings.round(5), axis=0)) > 1
    assert len(model.diarize(tmp_path / "a.wav", speakers=2).speakers) == 2
    config.architectures = ["Wav2Vec2Model"]
    from transformers import Wav2Vec2Model

    Wav2Vec2Model(config).save_pretrained(tmp_path / "plain")
    Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "plain")
    model = load(diarizer(tmp_path / "second", windows={"embedding": {"from": str(tmp_path / "plain")}}))
    with pytest.raises(ConfigError, match="no trained x-vector head"):
        model.diarize(tmp_path / "a.wav")


@pytest.mark.parametrize("change_cost", [0.0, 0.4, 2.0])
def test_the_sequence_of_sets_is_the_likeliest_one(change_cost):
    """Against all sequences; of an item that is shorter than its batch, its own frames alone count."""
    task = Diarize(labels={"type": "powerset", "speakers": 2}, windows={"change_cost": change_cost})
    logits = np.random.default_rng(3).normal(size=(3, 5, 4)).astype(np.float32)
    lengths = [5, 3, 1]
    found = likeliest_sets(logits, lengths, task)
    sets, scores = task.labels.table, log_softmax(logits.astype(float), axis=2)
    for item, length in enumerate(lengths):
        paths = [list(path) for path in product(range(4), repeat=length)]
        values = [
            scores[item, range(length), path].sum() - change_cost * (sets[path][1:] != sets[path][:-1]).sum()
            for path in paths
        ]
        assert (found[item, :length] == sets[paths[np.argmax(values)]]).all()
    if not change_cost:
        assert (found[0] == sets[logits[0].argmax(1)]).all()


def test_decisions_within_frames(diarizer, talk, tmp_path):
    """A start in the middle of the model's frame is found there, and windows fit together as before."""
    turns = [(0, 0.0, 4.0), (1, 4.5, 8.03), (0, 12.0, 30.0)]
    audio = talk("a.wav", 33, turns)
    coarse = load(diarizer()).diarize(audio)
    fine = load(diarizer(tmp_path / "fine", windows={"upsample": 5})).diarize(audio)
    assert [s["speaker"] for s in fine.segments] == [s["speaker"] for s in coarse.segments]
    edges = [[t for s in found.segments for t in (s["start"], s["end"])] for found in (coarse, fine)]
    assert np.abs(np.subtract(*edges)).max() <= 0.05 + 1e-6
    rising = upsampled(np.array([[[0.0], [1.0], [9.0]]], np.float32), [2], 2)
    assert rising[0, :4, 0].tolist() == [0, 0.25, 0.75, 1]


def test_windows_section():
    from pydantic import ValidationError

    for wrong in ({"median": 4}, {"offset": 0.7}, {"speakers": 2, "max_speakers": 3}, {"step": 0}, {"threshold": 1.5}):
        with pytest.raises(ValidationError):
            Windows.model_validate(wrong)
    windows = Windows.model_validate({"embedding": {"from": "a/b"}, "threshold": 0.6, "offset": 0.5})
    assert Windows.model_validate(json.loads(json.dumps(windows.model_dump(by_alias=True)))) == windows


def test_without_embeddings_the_spectra_tell_who_came_back(diarizer, talk, tones):
    """Voice 0 talks with 1 for 40 s, after a pause with 2, and so on: nobody is followed over the pauses."""
    tones.voices = False
    turns = [
        (((0, 1), (0, 2))[block % 2][i % 2], 52.0 * block + 2 * i, 52.0 * block + 2 * i + 1.8)
        for block in range(4)
        for i in range(20)
    ]
    model = load(diarizer())
    path = talk("back.wav", 200, turns)
    (outputs,) = run_windows(model.bundle, model.task, [FileRecording(path, RATE).blocks()])
    assert outputs.embeddings is None and outputs.spectra.shape[:2] == (len(outputs.starts), 2)
    assert names(model.diarize(path).segments) == expected(turns)
    assert len(model.diarize(path, max_speakers=2).speakers) == 2
