"""Models on the frame grid, Voxtral Realtime and Kyutai STT, on tiny models: where the tokens of words stand, what is
read and written, through the command line and beside transformers."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import tiny_frame_grid
import torch
from tiny_families import save
from tiny_frame_grid import ITEMS, REALTIME, item, write_kyutai, write_tekken

from stentor.dataloading.planned import ModelDrops
from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.models.audio_llm.modeling import transformers_name
from stentor.models.base import Family, TaskRequirements
from stentor.models.decoding.frame_grid import SECONDS_A_TOKEN, FrameGrid, timed_pieces
from stentor.tasks.transcribe import Transcribe

torch.set_num_threads(1)

P, W = 0, 1  # pause, word start
ENDS = FrameGrid(12.5, P, W)
BEGINS = FrameGrid(12.5, P, W, at_end=False, shift=0.5)
MODELS = ("voxtral_realtime", "kyutai_speech_to_text")
# Where tokens stand


def test_words_are_due_when_they_have_ended():
    words = [([10, 11], 0.1, 0.3), ([12], 0.5, 0.56), ([13], 0.6, 0.9)]
    frames, late = ENDS.place(words, 14)
    # 0.3 s is in frame 3 (0.24 to 0.32 s), 0.56 s ends frame 6, 0.9 s is in frame 11.
    assert frames == [P, P, P, W, 10, 11, W, 12, P, P, P, W, 13, P] and late == 0


def test_words_are_due_a_delay_after_they_began():
    words = [([10, 11], 0.1, 0.3), ([12], 0.5, 0.56)]
    # 0.1 + 0.5 s is in frame 7, 0.5 + 0.5 s in frame 12; word starts stand before them.
    frames, late = BEGINS.place(words, 14)
    assert frames == [P] * 6 + [W, 10, 11, P, P, W, 12, P] and late == 0


@pytest.mark.parametrize("grid", [ENDS, BEGINS])
def test_what_does_not_fit_before_the_next_word_is_late_and_complete(grid):
    words = [([10, 11, 12], 0.0, 0.1), ([13], 0.1, 0.2), ([14, 15], 0.21, 0.22), ([16], 1.0, 1.1)]
    frames, late = grid.place(words, 30)
    written = [t for t in frames if t not in (P, W)]
    assert written == [10, 11, 12, 13, 14, 15, 16] and late == 0
    assert frames.count(W) == 2  # none inside the words that follow each other without a pause
    first = frames.index(W)
    assert frames[first + 1 : first + 7] == [10, 11, 12, 13, 14, 15]
    assert grid.place(words, first + 4)[1] == 4  # of which three wait and one has not come


@pytest.mark.parametrize("grid", [ENDS, BEGINS])
def test_times_come_back_from_the_grid(grid):
    words = [([10], 0.16, 0.4), ([11, 12], 0.8, 1.2), ([13], 1.6, 1.84)]
    frames, _ = grid.place(words, 40)
    indices, spans = grid.texts(frames)
    assert [frames[i] for i in indices] == [10, 11, 12, 13]
    moments = [spans[0], (spans[1][0], spans[2][1]), spans[3]]
    for (_, start, end), (begin, stop) in zip(words, moments):
        assert abs(stop - end if grid.at_end else begin - start) <= 0.08 + 1e-9
        assert 0 < stop - begin <= 2 * SECONDS_A_TOKEN
    assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
    assert grid.texts([P, 10, P, W, W, 11])[0] == [1, 5]  # a text without a word start, a word start without a text
    assert grid.texts([P] * 5) == ([], [])


def test_pieces_of_a_text_have_the_times_of_its_words():
    times = [{"word": "hello", "start": 0.1, "end": 0.4}, {"word": "World", "start": 0.5, "end": 0.9}]
    assert timed_pieces("Hello, world - !", times, "en") == [("Hello,", 0.1, 0.4), (" world - !", 0.5, 0.9)]
    assert timed_pieces("hello big world", times, "en")[1] == (" big", 0.1, 0.4)
    assert timed_pieces("oh hello world", times, "en")[0] == ("oh", 0.1, 0.1)
    assert timed_pieces("quite another text world", times, "en") == timed_pieces("hello", [], "en") == []
    assert timed_pieces("你好", [{"word": "你好", "start": 0.0, "end": 0.4}], "zh") == [
        ("你", 0.0, 0.2),
        ("好", 0.2, 0.4),
    ]


# The models


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """Keys of the sections of untrained models."""
    folder = tmp_path_factory.mktemp("origins")
    return {
        "voxtral_realtime": {"config": REALTIME, "tokenizer": str(write_tekken(folder / "tekken"))},
        "kyutai_speech_to_text": {"from": str(write_kyutai(folder / "kyutai"))},
    }


def build(origin, **keys):
    torch.manual_seed(0)
    section = {"type": "audio_llm", **origin, **keys}
    bundle = Family.model_validate(section).build(TaskRequirements("transcribe", ("text",)))
    bundle.model.eval()
    return bundle


@pytest.fixture(scope="module")
def bundle(kind, origins):
    return build(origins[kind])


def summed(model, batch):
    with torch.no_grad():
        return Loss.model_validate("cross_entropy").sum(**model(**batch.inputs)["text"]).item()


def plain(bundle):
    """transformers' model with the weights of a bundle."""
    import transformers

    model = getattr(transformers, bundle.processor.architecture)(bundle.model.config)
    names = bundle.processor.names
    model.load_state_dict({transformers_name(n, names): t for n, t in bundle.model.state_dict().items()})
    return model.eval()


def test_the_inputs_are_those_of_transformers(kind, bundle):
    processor = bundle.processor
    for example in ITEMS:
        ours = processor.collate([example], labels=False).inputs
        if kind == "voxtral_realtime":
            theirs = processor.hf(example.audio, sampling_rate=16000, return_tensors="pt")
            assert torch.equal(ours["input_ids"], theirs["input_ids"])
            assert torch.equal(ours["input_features"], theirs["input_features"])
            assert ours["num_delay_tokens"] == theirs["num_delay_tokens"] == 6
        else:
            audio = np.repeat(example.audio, 3)[::2]  # at 24 kHz, whatever it sounds like
            theirs = processor.hf(audio=audio, sampling_rate=24000)["input_values"]
            assert ours["input_values"].shape[-1] == theirs.shape[-1] // 1920 * 1920
            assert not ours["input_values"][..., -int(1.5 * 24000) + 1920 :].any()  # the silence of delay and end


def test_the_loss_is_that_of_transformers(kind, bundle):
    """... of the same inputs and labels, and greedy decoding is that of its generate."""
    model, processor = plain(bundle), bundle.processor
    for example in ITEMS:
        batch = processor.collate([example])
        ids, index = batch.inputs["input_ids"], batch.inputs["label_index"]
        labels = torch.full_like(ids, -100)
        labels[0, index + 1] = batch.inputs["targets"]
        inputs = {k: batch.inputs[k] for k in ("input_features", "num_delay_tokens") if k in batch.inputs}
        if kind == "voxtral_realtime":
            inputs["num_delay_tokens"] = int(inputs["num_delay_tokens"])
        else:
            codes = model.codec_model.encode(batch.inputs["input_values"]).audio_codes.transpose(1, 2)
            first = torch.full_like(codes[:, :1], model.config.audio_bos_token_id)
            ids = torch.cat([ids[..., None], torch.cat([first, codes], 1)], 2)
        with torch.no_grad():
            mean = model(input_ids=ids, labels=labels, **inputs).loss.item()
        assert summed(bundle.model, batch) == pytest.approx(mean * batch.counts["text"], rel=1e-5)
        ours = processor.collate([example], labels=False).inputs
        ((text, log_probs, *_),) = bundle.model.generate(
            ours, [processor.max_new_tokens(len(example.audio) / 16000)], {7}
        )
        settings = processor.generation_config()
        if kind == "voxtral_realtime":
            inputs["input_ids"] = ours["input_ids"]
        else:
            inputs["input_values"] = ours["input_values"]
        written = model.generate(**inputs, generation_config=settings)[0, len(processor.start_ids) :].tolist()
        assert len(written) == processor.max_new_tokens(len(example.audio) / 16000)
        assert text == [written[i] for i in processor.grid.texts(written)[0]] and len(text) == len(log_probs)


def test_all_positions_behind_the_start_are_targets(bundle):
    processor = bundle.processor
    batch = processor.collate(ITEMS[:1])
    length = processor.positions(len(ITEMS[0].audio))
    assert batch.inputs["input_ids"].shape == (1, length)
    assert batch.inputs["label_index"].tolist() == list(range(len(processor.start_ids) - 1, length - 1))
    from lhotse import MonoCut, SupervisionSegment

    segment = SupervisionSegment("a", "r", 0, 2.0, text=ITEMS[0].text, language="en")
    cut = MonoCut("a", 0, 2.0, 0, supervisions=[segment])
    assert processor.tokens(cut, 2.0) == batch.tokens == length
    reason, sentence = ModelDrops(Transcribe(), processor, True)(cut)
    assert reason == "no_word_times" and "`stentor prepare words`" in sentence
    assert ModelDrops(Transcribe(), processor, False)(cut) is None  # may be evaluated


def test_what_has_no_word_times_or_too_many_words_is_left_out_and_counted(bundle):
    none, many = item("none", 1.0, "one two"), item("many", 1.0, "one " * 60)
    none.extra = {}
    batch = bundle.processor.collate([none, ITEMS[0], many])
    assert batch.ids == ["a"]
    assert [(name, reason) for name, reason, _ in batch.dropped] == [
        ("none", "no_word_times"),
        ("many", "text_too_long"),
    ]
    assert "find no frame" in batch.dropped[1][2]
    assert len(bundle.processor.collate([none, many], labels=False).ids) == 2


def test_the_delay_may_be_another(kind, origins, bundle, tmp_path):
    ours = build(origins[kind], delay_seconds=0.96)
    longer = ours.processor.positions(16000) - bundle.processor.positions(16000)
    assert longer == 6
    again = Family.choices()["audio_llm"].load(save(ours, tmp_path))
    assert again.processor.positions(16000) == ours.processor.positions(16000)
    assert summed(again.model, again.processor.collate(ITEMS)) == pytest.approx(
        summed(ours.model, ours.processor.collate(ITEMS)), rel=1e-5
    )
    if kind == "voxtral_realtime":
        assert json.loads((tmp_path / "config.json").read_text())["default_num_delay_tokens"] == 12
        assert json.loads((tmp_path / "tekken.json").read_text())["audio"]["transcription_delay_ms"] == 960
        assert again.processor.hf(ITEMS[0].audio, sampling_rate=16000)["num_delay_tokens"] == 12
        with pytest.raises(ConfigError, match=r"model\.stream\.delay: 0\.1 s must be a whole number of frames"):
            build(origins[kind], delay_seconds=0.1)
    else:
        extractor = json.loads((tmp_path / "processor_config.json").read_text())["feature_extractor"]
        assert extractor["audio_delay_seconds"] == 0.96


def test_clips_have_delays_from_a_range(origins):
    """A clip of a batch, with the delay drawn for it, is what it is in a model of that delay."""
    realtime = origins["voxtral_realtime"]
    ours = build(realtime, stream={"delay": [0.16, 2.4]})
    drawn = [ours.processor.draw_delay(replace(e, rng=np.random.default_rng(7 + i))) for i, e in enumerate(ITEMS)]
    delays = [ours.processor.delay_of(e) for e in drawn]
    assert len(set(delays)) > 1 and all(2 <= delay <= 30 for delay in delays)
    batch = ours.processor.collate([replace(e, rng=None) for e in drawn])
    assert batch.inputs["num_delay_tokens"].tolist() == delays and ours.processor.delay == 6
    total = 0.0
    for example, delay in zip(ITEMS, delays):
        fixed = build(realtime, stream={"delay": delay * 0.08})
        alone = fixed.processor.collate([example])
        assert alone.num_positions == fixed.processor.positions(len(example.audio))
        assert ours.processor.learnt(example) == fixed.processor.learnt(example)
        total += summed(fixed.model, alone)
    assert summed(ours.model, batch) == pytest.approx(total, abs=1e-3)
    with pytest.raises(ConfigError, match="this model has a fixed delay"):
        build(origins["kyutai_speech_to_text"], stream={"delay": [0.16, 2.4]})
    with pytest.raises(ValueError, match="older name"):
        build(realtime, stream={"delay": 0.16}, delay_seconds=0.16)


def test_adapters_are_in_the_attention_unless_configured_otherwise(kind, origins):
    ours = build(origins[kind], lora={"rank": 2})
    trained = {name for name, p in ours.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * 2 and all(".self_attn." in n and n.startswith("language_model.") for n in trained)


def test_other_models_have_no_delay(tmp_path):
    import tiny_voxtral

    with pytest.raises(ConfigError, match=r"model\.stream: this model has no delay"):
        tiny_voxtral.build(tiny_voxtral.write_tokenizer(tmp_path), delay_seconds=0.48)


def test_a_tokenizer_without_streams_is_refused(tmp_path):
    import tiny_voxtral

    folder = tiny_voxtral.write_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"its tekken\.json has no settings of a stream"):
        build({"config": tiny_frame_grid.REALTIME, "tokenizer": str(folder)})
