"""Streams of models on the frame grid: the tokens of their offline decoding, for any pieces of the audio."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_frame_grid import REALTIME, write_kyutai, write_tekken

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.inference.stream.delayed import DelayedHypothesis, DelayedRecogniser
from stentor.inference.stream.stream import Stream
from stentor.models.base import Family, TaskRequirements
from stentor.models.decoding.frame_grid import FrameGrid

RATE = 16000


def advance(recogniser, hypotheses):
    while ready := [hypothesis for hypothesis in hypotheses if hypothesis.ready]:
        recogniser.advance(ready)


MODELS = ("voxtral_realtime", "kyutai_speech_to_text")


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("origins")
    window = {**REALTIME["text_config"], "sliding_window": 40}
    return {
        "voxtral_realtime": {
            "config": {**REALTIME, "text_config": window},
            "tokenizer": str(write_tekken(folder / "tekken")),
        },
        "kyutai_speech_to_text": {"from": str(write_kyutai(folder / "kyutai"))},
    }


def build(origin, **keys):
    torch.manual_seed(0)
    section = {"type": "audio_llm", **origin, **keys}
    bundle = Family.model_validate(section).build(TaskRequirements("transcribe", ("text",)))
    bundle.model.eval()
    grid, processor = bundle.processor.grid, bundle.processor
    few = [grid.pause_id, grid.word_id, *processor.ids("zero one two three")]
    weight = torch.zeros_like(bundle.model.lm_head.weight)
    weight[few] = torch.randn(len(few), weight.shape[1])  # it writes these alone
    bundle.model.lm_head.weight = torch.nn.Parameter(weight)
    return bundle


@pytest.fixture(scope="module", params=MODELS)
def bundle(request, origins):
    keys = {"stream": {"delay": [0.16, 0.8]}} if request.param == "voxtral_realtime" else {}
    return build(origins[request.param], **keys)


def noise(seconds, seed=0):
    rng = np.random.default_rng(seed)
    loud = np.repeat(rng.uniform(0, 0.5, round(seconds * 4) + 1), RATE // 4)[: round(seconds * RATE)]
    return (loud * rng.standard_normal(len(loud))).astype(np.float32)


def offline(bundle, audio, delay):
    """Text tokens and log-probabilities of the grid decoding of the whole clip."""
    batch = bundle.processor.collate([Example("a", audio, extra={"delay": delay})], labels=False)
    limit = bundle.processor.max_new_tokens(len(audio) / RATE)
    return bundle.model.generate(batch.inputs, [limit], {-1})[0]


class Recording(DelayedHypothesis):
    """One that remembers what was written."""

    def __init__(self, recogniser):
        super().__init__(recogniser)
        self.text, self.log_probs = [], []

    def read(self, token, log_prob):
        super().read(token, log_prob)
        if self.frame >= 0 and token not in (self.recogniser.grid.pause_id, self.recogniser.grid.word_id):
            self.text.append(token)
            self.log_probs.append(log_prob)


@pytest.mark.parametrize("delay", [0.16, 0.48])
def test_a_stream_writes_the_tokens_of_the_whole_clip(bundle, delay):
    known = None if bundle.model.config.model_type == "kyutai_speech_to_text" else delay
    recogniser = DelayedRecogniser(bundle, known)
    clips = [noise(3.3, 1), noise(1.0, 2), noise(2.1, 3)]
    together = [Recording(recogniser) for _ in clips]
    for start in range(0, max(map(len, clips)), 3000):
        for hypothesis, clip in zip(together, clips):
            hypothesis.add(clip[start : start + 3000])
        advance(recogniser, together)
    for tensor in (t for layer in together[1].row.layers for t in layer):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # and not that of all that were read with it
    for hypothesis in together:
        hypothesis.finish()
    advance(recogniser, together)
    for hypothesis, clip in zip(together, clips):
        ids, log_probs, *_ = offline(bundle, clip, recogniser.frames)
        assert hypothesis.text == ids and len(set(ids)) > 3
        assert hypothesis.log_probs == pytest.approx(log_probs, abs=1e-3)
        spelled = "".join(word["word"] for word in hypothesis.words)
        assert spelled == "".join(bundle.processor.decode(ids).split())
        assert all(a["start"] <= b["end"] for a, b in pairwise(hypothesis.words))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.long
def test_events_do_not_depend_on_the_pieces(bundle, data):
    audio = noise(1.7)
    recogniser = DelayedRecogniser(bundle)
    ends = sorted(data.draw(st.lists(st.integers(0, len(audio)), max_size=6)))
    events = []
    for cuts in (ends, []):
        stream = Stream(recogniser, RATE)
        events.append([e for piece in np.split(audio, cuts) for e in stream.feed(piece)] + stream.finish())
    assert events[0] == events[1] and any(e["type"] == "word" for e in events[0])


def test_what_is_held_of_a_recording_is_bounded(bundle):
    hypothesis = DelayedRecogniser(bundle).open()
    sizes = []
    for piece in np.split(noise(24.0), 8):
        hypothesis.add(piece)
        advance(hypothesis.recogniser, [hypothesis])
        sizes.append(len(hypothesis.row))
    window = bundle.model.window
    assert hypothesis.row.position > 250 and sizes[-1] == min(window - 1, hypothesis.row.position)
    assert len(hypothesis.audio._signal) < RATE and len(hypothesis.audio.frames) < 2


def test_delays_that_the_model_does_not_know_are_refused(bundle):
    if bundle.model.config.model_type == "kyutai_speech_to_text":
        with pytest.raises(ConfigError, match=r"with a delay of 0\.5 s, and 0\.16 s is none"):
            DelayedRecogniser(bundle, 0.16)
        assert DelayedRecogniser(bundle, 0.5).start == bundle.processor.start_ids
    else:
        with pytest.raises(ConfigError, match=r"with delays of 0\.16 to 0\.8 s, and 2\.4 s is none"):
            DelayedRecogniser(bundle, 2.4)
        starts = [len(DelayedRecogniser(bundle, delay).start) for delay in (0.16, 0.8, None)]
        assert [n - starts[0] for n in starts] == [0, 8, 4]


P, W = 0, 1


class Written:
    """A hypothesis of tokens that are letters: 10 is `a`, 36 a space and `a`."""

    def __init__(self, at_end=True):
        audio = type("Audio", (), {"ended": False, "ready": True, "samples": 0})()
        processor = type("Processor", (), {"decode": staticmethod(self.decode)})
        recogniser = type("Grid", (), {"open_audio": lambda *_: audio, "processor": processor, "conditions": {}})
        recogniser.grid, recogniser.start, recogniser.rate = FrameGrid(12.5, P, W, at_end), [9], RATE
        self.hypothesis = DelayedHypothesis(recogniser)

    @staticmethod
    def decode(ids):
        return "".join(" " * (i >= 36) + chr(97 + (i - 10) % 26) for i in ids)

    def write(self, *tokens):
        for token in tokens:
            self.hypothesis.row.position += 1
            self.hypothesis.read(token, -0.1)
        words, self.hypothesis.words = self.hypothesis.words, []
        return [word["word"] for word in words]


def test_words_stay_when_they_are_written_out():
    written = Written()
    assert written.write(P, W, 36, 11) == [] and written.hypothesis.partial == "ab"
    assert written.write(W) == ["ab"] and written.hypothesis.partial == ""
    assert written.write(37) == []
    assert written.write(38) == ["b"]  # the next one is late and has no word-start token
    assert written.write(P) == ["c"]
    assert written.write(P, 12) == [] and written.write(P) == ["c"]


def test_letters_of_several_tokens_stay_whole():
    """As byte-level tokenizers write them: 你 and 世 are one token each, 好 is three bytes."""
    written = Written()
    pieces = {10: "你".encode(), 11: b"\xe5", 12: b"\xa5", 13: b"\xbd", 14: "世".encode()}
    written.hypothesis.recogniser.processor.decode = lambda ids: b"".join(pieces[i] for i in ids).decode(
        errors="replace"
    )
    assert written.write(W, 10, 11, 12) == []
    assert written.write(13) == ["你"] and written.hypothesis.partial == "好"
    assert written.write(14) == ["好"] and written.write(P) == ["世"]


@pytest.mark.parametrize("at_end", [True, False])
def test_times_are_those_of_the_grid(at_end):
    written = Written(at_end)
    frames = [P, W, 36, 11, P, P, W, 37, P, W, P, W, 38, P]
    words = []
    for token in frames:
        written.hypothesis.row.position += 1
        written.hypothesis.read(token, -0.1)
    words = written.hypothesis.words
    indices, spans = written.hypothesis.recogniser.grid.texts(frames)
    assert [word["word"] for word in words] == ["ab", "b", "c"]
    starts = [spans[indices.index(i)][0] for i in (2, 7, 12)]
    assert [word["start"] for word in words] == [round(start, 3) for start in starts]
    if at_end:
        assert [word["end"] for word in words] == [round(spans[indices.index(i)][1], 3) for i in (3, 7, 12)]


def test_speech_ends_when_all_that_was_said_is_written():
    written = Written()
    hypothesis = written.hypothesis
    hypothesis.audio.samples = RATE // 2
    hypothesis.pause()
    written.write(P, P, P, W, 36)
    assert not hypothesis.words_ended  # five frames are 0.4 s
    written.write(10)
    assert not hypothesis.words_ended
    written.write(P)
    assert hypothesis.words_ended
