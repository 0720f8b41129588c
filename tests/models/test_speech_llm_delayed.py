"""The speech LLM as a delayed stream: what it reads and learns, and that a stream writes what the whole clip gives."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_speech_llm as tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_families import save

from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.inference.model import Model
from stentor.inference.stream.delayed import DelayedRecogniser
from stentor.inference.stream.stream import Stream
from stentor.losses.base import Loss
from stentor.models.base import Family
from stentor.sources.base import Source
from stentor.tasks.base import Task

RATE = 16000
SPEECH = say("turn on the kitchen light", voice="en-us+f3")
STREAMING = {"chunk": [0.08, 0.16], "reach": [0.64, 1.28], "offline_ratio": 0.0}
ENCODER = {"config": {**tiny.ENCODERS["parakeet"], "num_mel_bins": 80}, "streaming": STREAMING}


def build(**keys):
    keys = {"stream": {"delay": [0.16, 0.8], "reach": 1.6}, "tokenizer": {"type": "bpe", "size": 300}, **keys}
    bundle = tiny.build(ENCODER, "llama", prompt=None, **keys)
    grid, weight = bundle.processor.grid, bundle.model.llm.lm_head.weight
    few = [grid.pause_id, grid.word_id, *bundle.processor.ids(" one two three")]
    with torch.no_grad():  # it writes these alone
        weight.zero_()
        weight[few] = torch.randn(len(few), weight.shape[1])
    return bundle


@pytest.fixture(scope="module")
def bundle():
    return build(ctc={"units": "characters"})


def item(name, seconds, text, seed=0):
    rng = np.random.default_rng(seed)
    loud = np.repeat(rng.uniform(0, 0.5, round(seconds * 4) + 1), RATE // 4)[: round(seconds * RATE)]
    words = text.split()
    share = seconds / max(len(words), 1)
    times = [{"word": w, "start": share * i, "end": share * (i + 0.8)} for i, w in enumerate(words)]
    audio = (loud * rng.standard_normal(len(loud))).astype(np.float32)
    return Example(name, audio, text, "en", extra={"times": times})


ITEMS = [item("a", 2.0, "one two three"), item("b", 3.3, "zero zero seven", 1), item("c", 0.7, "nine", 2)]


def summed(model, batch):
    with torch.no_grad():
        return Loss.model_validate("cross_entropy").sum(**model(**batch.inputs)["text"]).item()


def test_clips_learn_the_grid_at_their_delays(bundle):
    processor = bundle.processor
    drawn = [processor.draw_delay(replace(e, rng=np.random.default_rng(i))) for i, e in enumerate(ITEMS)]
    drawn = [replace(e, rng=None) for e in drawn]
    delays = [processor.delay_of(e) for e in drawn]
    assert len(set(delays)) > 1 and all(2 <= delay <= 10 for delay in delays)
    batch = processor.collate(drawn)
    assert batch.inputs["delays"].tolist() == delays and set(batch.counts) == {"text", "ctc"}
    positions = [processor.positions_of(len(e.audio), d) for e, d in zip(drawn, delays)]
    assert batch.tokens == sum(positions)
    (first,) = (processor.collate(drawn[:1]),)
    written = first.inputs["targets"].tolist()
    assert written == first.inputs["input_ids"][0, delays[0] + 1 :].tolist()
    ids = [written[i] for i in processor.grid.texts(written)[0]]
    assert processor.decode(ids) == "one two three" and written.count(processor.grid.word_id) == 3
    alone = [summed(bundle.model, processor.collate([e])) for e in drawn]
    assert summed(bundle.model, batch) == pytest.approx(sum(alone), abs=1e-3)


def test_the_delay_is_heard_by_the_model(bundle):
    processor = bundle.processor
    batches = [processor.collate([replace(ITEMS[0], extra={**ITEMS[0].extra, "delay": d})]) for d in (3, 3)]
    batches[1].inputs["delays"] += 1
    assert summed(bundle.model, batches[0]) != summed(bundle.model, batches[1])


@pytest.mark.parametrize("delay", [0.16, 0.8])
def test_a_stream_writes_the_text_of_the_whole_clip(bundle, delay):
    recogniser = DelayedRecogniser(bundle, delay)
    hypotheses = [recogniser.open() for _ in ITEMS]
    for start in range(0, 4 * RATE, 5000):
        for hypothesis, example in zip(hypotheses, ITEMS):
            hypothesis.add(example.audio[start : start + 5000])
        while ready := [h for h in hypotheses if h.ready]:
            recogniser.advance(ready)
    for hypothesis in hypotheses:
        hypothesis.finish()
    while ready := [h for h in hypotheses if h.ready]:
        recogniser.advance(ready)
    for hypothesis, example in zip(hypotheses, ITEMS):
        inputs = bundle.processor.collate([replace(example, extra={"delay": recogniser.frames})], labels=False).inputs
        ((ids, *_),) = bundle.model.generate(inputs, [bundle.processor.max_new_tokens(len(example.audio) / RATE)], {-1})
        written = "".join(word["word"] for word in hypothesis.words)
        assert written == "".join(bundle.processor.decode(ids).split()) and len(written) > 3


@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.long
def test_events_do_not_depend_on_the_pieces(bundle, data):
    audio = ITEMS[0].audio
    ends = sorted(data.draw(st.lists(st.integers(0, len(audio)), max_size=6)))
    events = []
    for cuts in (ends, []):
        stream = Stream(DelayedRecogniser(bundle, 0.32), RATE)
        events.append([e for piece in np.split(audio, cuts) for e in stream.feed(piece)] + stream.finish())
    assert events[0] == events[1] and any(e["type"] == "word" for e in events[0])


def test_it_goes_through_an_export(bundle, tmp_path):
    again = Family.choices()["speech_llm"].load(save(bundle, tmp_path))
    assert again.processor.delays == (2, 10) and again.model.window == 20
    assert summed(again.model, again.processor.collate(ITEMS)) == summed(bundle.model, bundle.processor.collate(ITEMS))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompt": {"instruction": "Write."}}, "there is no prompt"),
        ({"aligner": {}}, "leave it out"),
        ({"projector": {"type": "conv"}}, "looks ahead"),
        ({"encoder": {"config": tiny.ENCODERS["parakeet"]}}, "set it"),
        ({"stream": {"delay": [0.5, 0.1]}}, "delay"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, message):
    section = {
        "type": "speech_llm",
        "encoder": ENCODER,
        "llm": {"config": tiny.LLMS["qwen2"]},
        "tokenizer": {"type": "characters"},
        "stream": {"delay": 0.5},
        **keys,
    }
    with pytest.raises(ValueError, match=message):
        Family.model_validate(section)


def test_language_models_without_rotary_positions_are_refused():
    with pytest.raises(ConfigError, match="rotary"):
        tiny.build(ENCODER, "gpt2", prompt=None, stream={"delay": 0.48})
    with pytest.raises(ConfigError, match="layout padded"):
        build().processor.collate(ITEMS, packed=True)


def test_a_file_gets_the_transcript_of_a_stream(bundle, tmp_path):
    """Whatever the training clips were like: nobody puts room around the speech of a stream."""
    trained = bundle.processor.trained_speech
    trained.measure(list(Source.model_validate({"type": "synth", "texts": "digits", "count": 9}).cuts()))
    assert trained.room is None and trained.longest > 1
    audio = SPEECH.audio_at(RATE)
    stream = Stream(DelayedRecogniser(bundle), RATE)
    events = stream.feed(audio) + stream.finish()
    words = [event["word"] for event in events if event["type"] == "word"]
    model = Model("tiny", bundle, Task.model_validate({"type": "transcribe"}), tmp_path)
    transcript = model.transcribe(audio, RATE, keep_failed=True, temperature=[0.0])  # random words fail the checks
    assert words and transcript.text.split() == words
