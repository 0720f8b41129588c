"""From records to batches: what is hidden, what an item costs, which codes are refused."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_omnivoice import BOOKS, ENTRIES, LLMS, TEXTS, build, codes_of, examples

from stentor.data.augment import Augment
from stentor.data.batch import Example
from stentor.data.conditions import Conditions, draw
from stentor.data.cut import cut_from_record
from stentor.dataloading.planned import ModelDrops
from stentor.errors import AudioError, ConfigError
from stentor.models.base import TaskRequirements
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.omnivoice.processor import OmniVoiceProcessor, rounded
from stentor.tasks.speak.task import Speak

HERE = Path()


@pytest.fixture(scope="module")
def processor() -> OmniVoiceProcessor:
    return build().processor


@pytest.fixture(scope="module")
def hearing(corpus) -> OmniVoiceProcessor:
    """A processor with a codec that was fitted on the training audio."""
    bundle = of_records(cuts(corpus), codec={"type": "mel_rvq", "codebooks": 2, "entries": 16, "rounds": 3})
    assert bundle.codebooks == 2
    return bundle.processor


def of_records(records, texts=TEXTS, instruct_from=None, **keys):
    """A model that is made for these training records."""
    section = {"type": "omnivoice", "llm": {"config": LLMS["qwen3"]}, "text": "characters", **keys}
    return OmniVoice.model_validate(section).build(
        TaskRequirements("speak", ("codes",), lambda: iter(texts), lambda: iter(records), instruct_from=instruct_from)
    )


def record_of(audio="a.wav", **record):
    return cut_from_record({"audio_path": audio, "duration": 1.0, "text": "one", "id": "a", **record}, HERE, "here")


def cuts(folder, part="train", **record):
    import json

    lines = (folder / f"{part}.jsonl").read_text().splitlines()
    return [cut_from_record({**json.loads(line), **record}, folder, "here") for line in lines]


def conditions(**keys) -> Conditions:
    usual = {
        "unconditional": False,
        "prompt_frames_ratio": 0.0,
        "language": None,
        "instruct": None,
        "text": "one",
        "denoise": False,
        "clean_from": None,
        "mask_ratio": 0.5,
    }
    return Conditions(**usual | keys)


def sample(processor, frames=40, seed=0, **keys):
    extra = {"conditions": conditions(**keys)}
    example = Example("x", text="one", rng=np.random.default_rng(seed), extra=extra)
    return processor.sample(example, codes_of(1, frames))


# Samples


def test_a_sample_is_style_text_prompt_and_masked_frames(processor):
    training = sample(processor, prompt_frames_ratio=0.25, language="en")
    text = processor.text_ids("one", "en")
    assert training.text == len(text) and training.ids.shape == training.labels.shape == (BOOKS, len(text) + 40)
    assert (training.ids[:, : len(text)] == text).all()
    codes, prompt = codes_of(1, 40), slice(len(text), len(text) + 10)
    assert np.array_equal(training.ids[:, prompt], codes[:, :10])
    assert (training.labels[:, : prompt.stop] == -100).all()
    rest, labels = training.ids[:, prompt.stop :], training.labels[:, prompt.stop :]
    hidden = labels != -100
    assert np.array_equal(np.where(hidden, labels, rest), codes[:, 10:])
    assert (rest[hidden] == ENTRIES).all() and (rest[~hidden] < ENTRIES).all()
    assert 0.3 < hidden.mean() < 0.7
    assert hidden.any(0).sum() > hidden.all(0).sum() + 5, "cells are masked one by one, not frame by frame"


def test_samples_without_text_and_of_noisy_records(processor):
    """An unconditional sample is audio alone; the prompt of a noisy record is its noisy beginning."""
    training = sample(processor, unconditional=True, text="")
    assert training.text == 0 and training.length == 40
    training = sample(processor, denoise=True, clean_from=7, prompt_frames_ratio=0.3, mask_ratio=1.0)
    first = processor.tokenizer.convert_ids_to_tokens(int(training.ids[0, 0]))
    assert first == "<|denoise|>"
    assert (training.labels[0, training.text :] == -100).sum() == 7


@pytest.mark.parametrize("ratio, share", [(0.0, 0.0), (0.2, 0.2), (1.0, 1.0)])
def test_the_share_of_hidden_cells_is_the_mask_ratio(processor, ratio, share):
    hidden = sample(processor, frames=2000, mask_ratio=ratio).labels[:, -2000:] != -100
    assert hidden.mean() == pytest.approx(share, abs=0.02)


def test_the_same_item_gives_the_same_sample_and_others_do_not(processor):
    one, again, other = sample(processor), sample(processor), sample(processor, seed=1)
    assert np.array_equal(one.ids, again.ids) and not np.array_equal(one.ids, other.ids)
    items = examples()
    first, second = (processor.collate(items).inputs for _ in range(2))  # collating draws nothing from the items
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_masks_differ_by_epoch_copy_and_item(processor):
    """Of whatever rank or worker reads an item, only seed, epoch, id and copy decide."""
    from stentor.dataloading.batch_sampler import Item

    cut = record_of()
    same = copy.deepcopy(cut)
    same.id = "b"
    task = Speak(type="speak")
    masks = []
    for item in (Item(cut, 0), Item(cut, 0), Item(cut, 1), Item(cut, 0, copy=1), Item(same, 0)):
        example = task.example(cut, None, item.rng(7, "augment"))
        masks.append(processor.sample(example, codes_of(0, 60)).labels[:, -60:].tobytes())
    assert masks[0] == masks[1] and len(set(masks)) == 4
    # and in evaluation only the id
    drawn = [task.example(c, None, None) for c in (cut, cut, same)]
    labels = [processor.sample(e, codes_of(0, 60)).labels[:, -60:].tobytes() for e in drawn]
    assert labels[0] == labels[1] != labels[2]


# Batches


def test_layouts_hold_the_same_samples(processor):
    items = examples()
    padded, packed = processor.collate(items), processor.collate(items, packed=True)
    assert padded.counts == packed.counts and padded.tokens == packed.tokens == packed.num_positions
    assert padded.num_positions == 4 * int(padded.inputs["lengths"].max())
    assert padded.ids == packed.ids == [f"item{i}" for i in range(4)]
    ids, places = packed.inputs["input_ids"][0], packed.inputs["documents"]
    starts = packed.inputs["position_ids"][0]
    for i, length in enumerate(padded.inputs["lengths"].tolist()):
        assert torch.equal(padded.inputs["input_ids"][i, :, :length], ids[:, places == i])
        assert torch.equal(padded.inputs["audio_mask"][i, :length], packed.inputs["audio_mask"][0, places == i])
        assert torch.equal(starts[places == i], torch.arange(length))
    assert padded.seconds == pytest.approx(sum((17, 5, 30, 11)) / processor.frame_rate)
    # A batch of equal lengths needs no mask.
    assert "lengths" not in processor.collate(examples(frames=(9,))).inputs


def test_targets_stand_where_rows_point(processor):
    for packed in (False, True):
        inputs = processor.collate(examples(), packed=packed).inputs
        cells = inputs["input_ids"].where(inputs["audio_mask"][:, None], -1).transpose(0, 1).flatten(1)  # [C, B L]
        rows = inputs["rows"].split([len(inputs[f"targets_{c}"]) for c in range(BOOKS)])
        for c in range(BOOKS):
            assert (cells[c, rows[c]] == ENTRIES).all()
            assert (cells[c] == ENTRIES).sum() == len(rows[c])
            assert ((inputs[f"targets_{c}"] >= 0) & (inputs[f"targets_{c}"] < ENTRIES)).all()


@pytest.mark.parametrize(
    "total, length", [(1, 128), (128, 128), (1000, 1024), (4097, 4352), (8100, 8192), (8192, 8192)]
)
def test_packed_lengths_for_flex_are_few(total, length):
    assert rounded(total) == length and length % 128 == 0


# Codes


@pytest.mark.parametrize(
    "codes, reason, message",
    [
        (np.zeros((2, 9), np.int16), "wrong_shape", r"the shape \[2, 9\]; this model takes \[4, frames\]"),
        (np.zeros((BOOKS, 0), np.int16), "wrong_shape", r"the shape \[4, 0\]"),
        (np.zeros(9, np.int16), "wrong_shape", r"the shape \[9\]"),
        (np.full((BOOKS, 9), ENTRIES, np.int16), "wrong_range", "go from 12 to 12; those of this model are 0 to 11"),
        (np.full((BOOKS, 9), -1, np.int16), "wrong_range", "go from -1 to -1"),
    ],
)
def test_codes_of_another_model_are_left_out_and_counted(processor, codes, reason, message):
    import re

    items = examples()
    items[1].extra["codes"] = codes
    for packed in (False, True):
        batch = processor.collate(items, packed=packed)
        assert batch.ids == ["item0", "item2", "item3"]
        [(name, cause, sentence)] = batch.dropped
        assert (name, cause) == ("item1", reason) and re.search(message, sentence)
    assert processor.collate(items[1:2]).ids == []


def test_audio_is_encoded_and_too_little_of_it_is_left_out(hearing):
    rng = np.random.default_rng(0)
    items = examples()
    for item, samples in zip(items, (16000, 20, 5000, 8000)):
        del item.extra["codes"]
        item.audio = rng.standard_normal(samples).astype(np.float32)
    batch = hearing.collate(items)
    assert batch.ids == ["item0", "item2", "item3"]
    assert [d[:2] for d in batch.dropped] == [("item1", "too_short")]
    one = hearing.collate(items[:1])
    length = one.inputs["audio_mask"].shape[1]
    assert torch.equal(one.inputs["input_ids"][0], batch.inputs["input_ids"][0, :, :length])


def test_audio_is_encoded_once_for_the_loss_and_for_speaking(hearing, monkeypatch):
    [item] = examples((9,))
    del item.extra["codes"]
    item.audio = np.random.default_rng(0).standard_normal(hearing.sample_rate).astype(np.float32)
    first = hearing.collate([item])
    monkeypatch.setattr(type(hearing.codec), "encode", lambda *_: pytest.fail("it was encoded again"))
    assert hearing.codes(item).shape[1] == hearing.codec.frames(hearing.sample_rate)
    again = hearing.collate([item])
    assert all(torch.equal(first.inputs[key], again.inputs[key]) for key in first.inputs)


def test_what_was_encoded_is_kept(hearing, corpus, monkeypatch):
    records = cuts(corpus)[:3]
    [line] = hearing.check_cache(records, Augment())
    assert "Encoded 3 records (0.00 h) with the codec mel_rvq" in line
    monkeypatch.setattr(type(hearing.codec), "encode", lambda *_: pytest.fail("it was encoded again"))
    cached = [hearing.cached_features(cut) for cut in records]
    assert [k.features.shape for k in cached] == [(2, hearing.frames(c, c.duration)) for c in records]
    assert hearing.check_cache(records, Augment(gain=(-6.0, 6.0))) == []


def test_encoding_before_training_stops_in_time(hearing, corpus, monkeypatch):
    from stentor.models import codec_processor as module

    other = copy.copy(hearing)
    other._cached, other._bytes = {}, 0
    monkeypatch.setattr(module, "MEMORY", 100)
    [line] = other.check_cache(cuts(corpus), Augment())
    assert "are encoded whenever they are read: `stentor prepare tokens`" in line
    assert len(other._cached) < 16
    other.cached_features(cuts(corpus)[15])  # beyond the limit it is made and not kept
    assert other._bytes < 100 + 2 * 2 * 100


# Costs and refusals


def test_an_item_never_costs_more_than_was_planned(hearing, corpus):
    record = {"language": "en", "instruct": "a low voice", "text_pinyin": "one hundred and one"}
    task = Speak(type="speak", use_pinyin_ratio=0.5)
    costs, lengths = [], []
    for cut in cuts(corpus, **record):
        cost = hearing.tokens(cut, cut.duration)
        frames = hearing.frames(cut, cut.duration)
        for seed in range(20):
            conditions = draw(task.spoken(cut), task, np.random.default_rng(seed))
            example = Example("x", rng=np.random.default_rng(0), extra={"conditions": conditions})
            length = hearing.sample(example, np.zeros((2, frames), np.int16)).length
            assert length <= cost
            lengths.append(length)
            costs.append(cost)
    assert max(np.array(lengths) / costs) == 1.0, "and some cost all of it"


def test_the_field_that_describes_the_voice_counts(hearing, corpus):
    cut = cuts(corpus, speaker="five six seven eight")[0]
    other = copy.copy(hearing)
    other.instruct_from = "speaker"
    assert other.tokens(cut, 1.0) == hearing.tokens(cut, 1.0) + len("five six seven eight") - len("None")


def test_characters_that_nobody_knows_are_left_out_and_texts_of_them_refused(processor):
    assert processor.ids("onë") == processor.ids("on")
    assert processor.knows("ö one") and not processor.knows("öäü") and not processor.knows("  ")

    def drop_reason(text):
        cut = record_of(text=text)
        cut.custom = {"codes": {}}
        cut.recording.sources = []
        return ModelDrops(Speak(), processor, True)(cut)

    assert drop_reason("one") is None
    reason, message = drop_reason("öäü")
    assert reason == "not_in_alphabet" and message.startswith("a: the tokenizer knows no character of 'öäü'")


def test_audio_without_a_codec_is_refused(processor, corpus):
    reason, message = ModelDrops(Speak(), processor, True)(cuts(corpus)[0])
    assert reason == "no_codec" and "set `model.codec`" in message
    with pytest.raises(ConfigError, match="the training data is audio, and there is no codec"):
        of_records(cuts(corpus))


def test_tokens_of_another_codec_are_refused(hearing):
    cut = record_of(duration=4.0)
    cut.recording.sources = []
    expected = hearing.codec.frames(4 * hearing.sample_rate)
    for frames, refused in ((expected, False), (expected + 2, False), (2 * expected, True), (expected // 2, True)):
        cut.custom = {"codes": {}, "num_tokens": frames}
        refusal = ModelDrops(Speak(), hearing, True)(cut)
        assert (refusal is not None) == refused
        assert not refused or (refusal[0] == "other_codec" and f"{frames / 4:.1f} frames a second" in refusal[1])


def test_a_codec_is_fitted_on_audio_alone(corpus):
    with pytest.raises(ConfigError, match=r"model.codec: mel_rvq is fitted on training audio, and there is none"):
        build(codec={"type": "mel_rvq"})
    records = cuts(corpus)
    records[3].custom = {"codes": {}}
    records[3].recording.sources = []
    with pytest.raises(ConfigError, match="1 training records are codec tokens already"):
        of_records(records, codec="mel_rvq")


def test_the_tokenizer_has_what_styles_are_written_with(corpus):
    records = cuts(corpus, language="x-klingon", instruct="QUIET")
    codec = {"type": "mel_rvq", "codebooks": 2, "entries": 4, "rounds": 1}
    processor = of_records(records, ["one"], "id", codebooks=2, entries=4, codec=codec).processor
    for text in ("x-klingon", "QUIET", "None", "one"):
        assert len(processor.ids(text)) == len(text)
    assert processor.instruct_from == "id" and not processor.knows("#")


def test_unreadable_audio_is_the_loaders_affair(hearing):
    cut = record_of("none.wav")
    with pytest.raises(AudioError):
        hearing.cached_features(cut)
    assert hearing.check_cache([cut], Augment()) == []
