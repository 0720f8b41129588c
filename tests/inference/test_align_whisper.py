"""Word times from Whisper's cross-attention."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_families import save, shake
from tiny_whisper import make_whisper

from stentor.errors import ConfigError
from stentor.inference.align.engines import clip_of, engine_of, open_aligner
from stentor.inference.align.whisper import WhisperAligner, alignment_heads, sharpened, tokens_of, warp
from stentor.inference.load import load
from stentor.inference.recording import ArrayRecording
from stentor.models.base import Family, TaskRequirements
from stentor.models.pretrained.lora import is_adapter

RATE = 16000


def textbook(scores: np.ndarray) -> tuple[float, list[tuple[int, int]]]:
    """Dynamic time warping by plain loops: the best sum and its path."""
    rows, columns = scores.shape
    best = np.full((rows, columns), -np.inf)
    came = {}
    for i in range(rows):
        for t in range(columns):
            ways = [(i - 1, t - 1), (i - 1, t), (i, t - 1)]
            ways = [w for w in ways if min(w) >= 0]
            before = max(ways, key=lambda w: best[w]) if ways else None
            best[i, t] = scores[i, t] + (best[before] if before else 0.0)
            came[i, t] = before
    path, at = [], (rows - 1, columns - 1)
    while at:
        path.append(at)
        at = came[at]
    return best[-1, -1], path[::-1]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_same_path_as_the_textbook(rows, columns, seed):
    scores = np.random.default_rng(seed).normal(size=(rows, columns))
    _, path = textbook(scores)
    assert warp(scores).tolist() == [min(t for i, t in path if i == row) for row in range(rows)]


def test_a_single_frame_is_no_word():
    """The median takes out what only one frame says."""
    weights = torch.full((1, 2, 40), 0.01)
    weights[0, 0, :20], weights[0, 1, 20:] = 0.05, 0.05
    spiked = weights.clone()
    spiked[0, 1, 5] = 0.9
    assert warp(sharpened(weights).numpy()).tolist() == [0, 20]
    assert warp(sharpened(spiked).numpy()).tolist() == [0, 20]
    assert sharpened(torch.rand(3, 4, 2)).shape == (4, 2), "two frames are too few for the filter"


def test_words_are_the_tokens_that_have_their_characters():
    # " ab" "cd" " " "e" and a character of three tokens
    spans = [(0, 3), (3, 5), (5, 6), (6, 7), (7, 8), (7, 8), (7, 8)]
    assert tokens_of(spans, 1, 5) == [0, 1]
    assert tokens_of(spans, 6, 7) == [3]
    assert tokens_of(spans, 7, 8) == [4, 5, 6]
    assert tokens_of(spans, 9, 10) == [6], "characters without a token get the nearest"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A folder with a tiny Whisper of random weights, English only, and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("whisper")
    for part in make_whisper(" one two three four five six", 300, decoder_layers=2):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def aligner(whisper):
    return WhisperAligner(whisper, torch.device("cpu"))


def hum(seconds: float) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return (0.2 * np.sin(2 * np.pi * 200 * time) * (1 + np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def clip(seconds: float, text: str):
    return clip_of(ArrayRecording(hum(seconds), RATE, RATE), text)


def test_heads_are_named_or_the_upper_half(aligner):
    assert aligner.heads == [(1, 0), (1, 1)]
    aligner.model.generation_config.alignment_heads = [[0, 1]]
    assert alignment_heads(aligner.model) == [(0, 1)]
    aligner.model.generation_config.alignment_heads = None


def test_every_word_gets_a_time_in_order(aligner):
    (alignment,) = aligner.align([clip(3.0, "one two, – naïve 日本 six!")])
    assert [w.word for w in alignment.words] == ["one", "two,", "naïve", "日本", "six!"]
    times = [t for w in alignment.words for t in (w.start, w.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 3.0
    assert all(0 <= w.confidence <= 1 for w in alignment.words)


def test_a_random_model_believes_no_text(aligner):
    """Each of 300 tokens has about one chance in 300: that is no match."""
    (alignment,) = aligner.align([clip(2.0, "one two three")], transcribe=True)
    assert alignment.reason == "mismatch" and alignment.cost == pytest.approx(np.log(300), abs=1.0)
    assert isinstance(alignment.hypothesis, str)


def test_text_that_cannot_be(aligner):
    nothing, long = aligner.align([clip(2.0, " – "), clip(2.0, "one " * 500)])
    assert nothing.reason == "no_words"
    assert long.reason == "too_long_text" and long.words == []


def test_a_run_of_adapters_is_aligned_with_them(whisper, tmp_path):
    section = {"type": "seq2seq", "from": str(whisper), "lora": {"rank": 2}}
    bundle = shake(Family.model_validate(section).build(TaskRequirements("transcribe", ("text",))), only=is_adapter)
    aligner = open_aligner(str(save(bundle, tmp_path)), device="cpu")
    folded = load(tmp_path, device="cpu").bundle.model.state_dict()
    weights, plain = aligner.model.state_dict(), WhisperAligner(whisper, "cpu").model.state_dict()
    changed = [name for name in folded if not torch.equal(weights[name], plain[name])]
    assert changed and all(torch.allclose(weights[name], folded[name]) for name in folded)


def test_it_is_known_by_its_config(whisper, tmp_path):
    assert engine_of(str(whisper))[1] == "whisper"
    assert isinstance(open_aligner(str(whisper), device="cpu"), WhisperAligner)
    with pytest.raises(ConfigError, match=r"does not support --engine ctc, only whisper\."):
        engine_of(str(whisper), "ctc")
    with pytest.raises(ConfigError, match=r"Unknown --engine dtw; known: aligner, transducer, ctc, whisper"):
        engine_of(str(whisper), "dtw")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    with pytest.raises(ConfigError, match="cannot align: it is not a Whisper model, a CTC model"):
        engine_of(str(tmp_path))


def test_a_lag_is_taken_off(aligner, whisper):
    """Before boundaries are parted by silence; the clip has none."""
    steady = clip_of(ArrayRecording(np.random.default_rng(0).normal(size=3 * RATE) * 0.1, RATE, RATE), "one two three")
    (plain,) = aligner.align([steady])
    (earlier,) = WhisperAligner(whisper, torch.device("cpu"), lag=0.1).align([steady])
    for a, b in zip(plain.words, earlier.words, strict=True):
        assert (b.start, b.end) == pytest.approx((max(a.start - 0.1, 0.0), max(a.end - 0.1, 0.0)))
