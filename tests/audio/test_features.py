"""Features: equal to the reference extractors, independent of the batch, masked where they must be."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from stentor.audio.features import WhisperMel, mel_filters
from stentor.audio.synth import say
from stentor.errors import DataError

RATE = 16000


@pytest.fixture(scope="module")
def clips() -> dict[str, np.ndarray]:
    """Clips of every awkward length and content."""
    rng = np.random.default_rng(0)
    speech = say("one two three four five six seven eight", "en-us+f3").audio
    click = np.zeros(3200, np.float32)
    click[-1] = 1  # the loudest frame is one that lies behind the clip's last
    return {
        "speech": speech,
        "cut": speech[:12345],
        "quiet": speech[: 2 * RATE] * 1e-3,
        "noise": rng.normal(size=5 * RATE).astype(np.float32) * 0.1,
        "tone": np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE).astype(np.float32),
        "silence": np.zeros(5000, np.float32),
        "click at the end": click,
        "shorter than a hop": speech[2000:2159],
        "shorter than a frame": speech[2000:2200],
        "almost 30 s": rng.normal(size=30 * RATE - 100).astype(np.float32) * 0.1,
        "30 s": rng.normal(size=30 * RATE).astype(np.float32) * 0.1,
    }


@pytest.mark.parametrize("n_mels", [80, 128])
def test_whisper_mel_equals_the_extractor(clips, n_mels):
    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    theirs = extractor(list(clips.values()), sampling_rate=RATE, return_tensors="pt").input_features
    padded, lengths = WhisperMel(n_mels, pad_to_30s=True)(list(clips.values()))
    assert padded.shape == theirs.shape and lengths.tolist() == [len(c) // 160 for c in clips.values()]
    natural, same = WhisperMel(n_mels)(list(clips.values()))
    assert natural.dtype == torch.float32 and same.dtype == torch.int64 and torch.equal(lengths, same)
    for i, (name, n) in enumerate(zip(clips, lengths.tolist())):
        assert (padded[i] - theirs[i]).abs().max() < 1e-4, name
        assert torch.allclose(natural[i, :, :n], theirs[i, :, :n], atol=1e-4, rtol=0), name
        assert torch.equal(natural[i, :, n:], torch.zeros_like(natural[i, :, n:])), name


def test_mel_filters_equal_slaneys():
    for n_mels in (80, 128):
        assert np.abs(mel_filters(n_mels) - WhisperFeatureExtractor(feature_size=n_mels).mel_filters).max() < 1e-7


def test_a_clip_does_not_depend_on_its_batch_nor_on_threads(clips):
    mel = WhisperMel(80)
    together, lengths = mel(list(clips.values()))
    for i, clip in enumerate(clips.values()):
        alone, length = mel([torch.from_numpy(clip)])
        assert length.item() == lengths[i] and alone.shape[2] == length
        assert torch.allclose(alone[0], together[i, :, : alone.shape[2]], atol=1e-6)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        parallel, _ = mel(list(clips.values()))
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == 2  # the pool did not change it for others
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(parallel, together, atol=1e-6)


def test_whisper_mel_pickles_and_ignores_autocast(clips):
    mel = pickle.loads(pickle.dumps(WhisperMel(80)))
    plain, _ = mel([clips["speech"]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mel([clips["speech"]])[0], plain)


def test_clips_beyond_30_s():
    clip = np.random.default_rng(0).normal(size=31 * RATE).astype(np.float32)
    features, lengths = WhisperMel(80)([clip])
    assert features.shape == (1, 80, 3100) and lengths.tolist() == [3100]
    head, _ = WhisperMel(80)([clip[: 20 * RATE]])
    floor = features.max() - 2  # 8 decades, divided by 4
    assert torch.allclose(features[0, :, :1990], torch.maximum(head[0, :, :1990], floor), atol=1e-5)
    with pytest.raises(DataError, match=r"31\.00 s"):
        WhisperMel(80, pad_to_30s=True)([clip])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_whisper_mel_on_cuda(clips):
    here, _ = WhisperMel(128)(list(clips.values()))
    there, lengths = WhisperMel(128)([torch.from_numpy(c).cuda() for c in clips.values()])
    assert there.is_cuda and lengths.is_cuda
    assert (there.cpu() - here).abs().max() < 1e-4
    assert WhisperMel(128)(list(clips.values()), device="cuda")[0].is_cuda
