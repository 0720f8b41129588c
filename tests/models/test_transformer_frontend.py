"""What the transformer hears: frame counts, joining, normalising, padding, text, SSL layers and stored features."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lhotse import MonoCut
from lhotse.cut import Cut
from pydantic import ValidationError

from stentor.data.audio_key import audio_key
from stentor.data.augment import Augment, SpecAugment
from stentor.data.batch import Example
from stentor.data.cut import cut_from_record
from stentor.data.load_audio import load_audio
from stentor.dataloading.batch_sampler import Item, PlannedBatch
from stentor.dataloading.loader import BatchDataset
from stentor.errors import ConfigError, DataError
from stentor.models.encoders.features import Features
from stentor.models.text.tokenizers import characters
from stentor.models.transformer.config import SSL
from stentor.models.transformer.feature_cache import FeatureStore
from stentor.models.transformer.processor import TransformerProcessor
from stentor.models.transformer.ssl import front_end, geometry_of
from stentor.tasks.transcribe import Transcribe
from tiny_configs import WAVE

RATE = 16000
PLAIN = Augment()


def whisper(**keys) -> dict:
    sizes = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "max_source_positions": 50}
    return {"model_type": "whisper", "num_mel_bins": 80, **sizes, **keys}


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32) * np.float32(0.1)


def example(samples: int, name: str = "a", **more) -> Example:
    return Example(name, noise(samples), **more)


# Frames


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stack": 10, "subsample": 10},
        {"stack": 15, "subsample": 10},
        {"stack": 3, "subsample": 4},
        {"snip_edges": True, "stack": 2, "subsample": 3},
        {"frame_shift": 0.0125},
        {"sampling_rate": 8000},
    ],
    ids=str,
)
def test_frames_agree_with_the_batch(settings):
    processor = TransformerProcessor(Features(**settings))
    lengths = [1, 79, 80, 399, 400, 401, 559, 560, 1599, 1600, 1679, 1680, 1681, 15999, 16000, 16001, 54321]
    batch = processor.collate([example(n, str(n)) for n in lengths])
    assert batch.inputs["lengths"].tolist() == [processor.frames(n) for n in lengths]
    features = batch.inputs["features"]
    assert features.dtype == torch.float32 and batch.inputs["lengths"].dtype == torch.int64
    assert features.shape == (len(lengths), max(map(processor.frames, lengths)), processor.size)
    for row, n in zip(features, lengths):
        frames = processor.frames(n)
        assert frames >= 1 and not row[frames:].any()
        assert torch.equal(row[:frames], processor.collate([example(n)]).inputs["features"][0])
    assert batch.tokens == sum(map(processor.frames, lengths))
    assert batch.num_positions == features.shape[0] * features.shape[1]
    assert batch.seconds == pytest.approx(sum(lengths) / processor.sample_rate) and batch.counts == {}


def test_frames_of_20_seconds_and_of_no_frame():
    processor = TransformerProcessor(Features(stack=10, subsample=10))
    assert (processor.frame_seconds, processor.size, processor.frames(20 * RATE)) == (0.1, 800, 200)
    assert processor.frames(10) == 1
    cut = MonoCut("c", 0, 3.0, 0)
    assert processor.tokens(cut, 2.0) == 20


def test_a_frame_hears_its_own_time():
    """A burst of 50 ms lights up the output frames around it, of any joining and thinning."""
    for settings in ({}, {"subsample": 4}, {"stack": 10, "subsample": 10}, {"stack": 15, "subsample": 5}):
        processor = TransformerProcessor(Features(normalize="none", preemph_coeff=0.0, **settings))
        audio = np.zeros(2 * RATE, np.float32)
        at = 1.234
        audio[round((at - 0.025) * RATE) : round((at + 0.025) * RATE)] = noise(800)
        energy = processor.collate([Example("a", audio)]).inputs["features"][0].sum(1)
        lit = (energy > energy.min() + 1).nonzero()[:, 0].float() + 0.5
        assert abs(float(lit.mean()) * processor.frame_seconds - at) <= processor.frame_seconds / 2 + 0.005


def naive(frames: np.ndarray, stack: int, subsample: int) -> np.ndarray:
    rows = []
    for first in range(0, len(frames), subsample):
        row = []
        for k in range(stack):
            place = first + (subsample - stack) // 2 + k
            row.append(frames[min(max(place, 0), len(frames) - 1)])
        rows.append(np.concatenate(row))
    return np.stack(rows)


@pytest.mark.parametrize("stack, subsample", [(1, 1), (1, 4), (10, 10), (15, 10), (7, 1), (4, 3), (3, 8), (2, 2)])
@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 40])
def test_joining_equals_a_loop(stack, subsample, count):
    section = Features(num_mel_bins=5, stack=stack, subsample=subsample)
    frames = np.random.default_rng(0).standard_normal((count, 5)).astype(np.float32)
    assert np.array_equal(section.joined(frames), naive(frames, stack, subsample))


def test_normalisation_is_over_the_clip_alone():
    raw = np.random.default_rng(0).normal(3, 2, (50, 8)).astype(np.float32) * np.arange(1, 9, dtype=np.float32)
    assert np.array_equal(Features(normalize="none").normalized(raw), raw)
    mean = Features(normalize="mean").normalized(raw)
    assert np.abs(mean.mean(0)).max() < 1e-5 and np.allclose(mean.std(0), raw.std(0), rtol=1e-4)
    both = Features(normalize="meanvar").normalized(raw)
    assert np.abs(both.mean(0)).max() < 1e-5 and np.allclose(both.std(0), 1, atol=1e-3)
    overall = Features(normalize="global").normalized(raw)
    assert abs(overall.mean()) < 1e-5 and abs(overall.std() - 1) < 1e-3
    assert np.array_equal(np.argsort(overall.mean(0)), np.argsort(raw.mean(0)))  # loud bins stay loud
    constant = Features(normalize="meanvar").normalized(np.ones((4, 8), np.float32))
    assert np.isfinite(constant).all()


def test_spec_augment_before_joining():
    """Whole raw frames are blanked inside of the joined ones, as the item's generator says; not in evaluation."""
    settings = SpecAugment(time_masks=1, time_width=20, freq_masks=1, freq_width=10).model_dump()
    processor = TransformerProcessor(Features(num_mel_bins=20, stack=10, subsample=10))

    def batch(seed, **extra):
        rng = None if seed is None else np.random.default_rng(seed)
        return processor.collate([example(3 * RATE, rng=rng, extra=extra)]).inputs["features"][0]

    plain, masked = batch(1), batch(1, spec_augment=settings)
    assert torch.equal(masked, batch(1, spec_augment=settings))
    assert torch.equal(plain, batch(None, spec_augment=settings))
    changed = (plain != masked).reshape(300, 20)
    stripes = SpecAugment(**settings).stripes(300, 20, np.random.default_rng(1))
    expected = np.zeros((300, 20), bool)
    for axis, first, last in stripes:
        expected[(slice(first, last), slice(None)) if axis == 0 else (slice(None), slice(first, last))] = True
    assert expected.any() and np.array_equal(changed.numpy(), expected)


# Text


def test_text_for_reading_and_for_learning(tmp_path):
    tokenizer = characters(["one two", "six"])
    processor = TransformerProcessor(
        Features(subsample=4), tokenizer=tokenizer, tokenizer_type="characters", ctc="eginostwx ", token_rate=None
    )
    batch = processor.collate([example(RATE, "a", text="one two"), example(RATE // 2, "b", text="six")])
    tokens, targets = batch.inputs["tokens"], batch.inputs["targets"]
    assert tokens.shape == targets.shape == (2, 8) and tokens[:, 0].tolist() == [processor.bos_id] * 2
    assert torch.equal(tokens[0, 1:], targets[0, :-1]) and int(targets[0, -1]) == processor.eos_id
    assert targets[1].tolist()[3:] == [processor.eos_id, -100, -100, -100, -100]
    assert processor.decode(targets[0].tolist()) == "one two"
    assert batch.inputs["ctc_lengths"].tolist() == [7, 3] and len(batch.inputs["ctc_targets"]) == 10
    assert processor.ctc.decode(batch.inputs["ctc_targets"][:7].tolist()) == "one two"
    assert batch.counts == {"text": 12, "ctc": 10}
    unlabelled = processor.collate([example(RATE, text="one two")], labels=False)
    assert set(unlabelled.inputs) == {"features", "lengths"} and unlabelled.counts == {}
    processor.save(tmp_path)
    again = TransformerProcessor.load(tmp_path)
    assert again.features == processor.features and again.max_new_tokens(2.0) == processor.max_new_tokens(2.0) == 66
    other = again.collate([example(RATE, "a", text="one two"), example(RATE // 2, "b", text="six")])
    assert all(torch.equal(other.inputs[k], v) for k, v in batch.inputs.items())


def test_more_text_than_ctc_can_write_is_left_out():
    processor = TransformerProcessor(
        Features(subsample=10), tokenizer=characters(["one two six"]), tokenizer_type="characters", ctc="eginostwx "
    )
    batch = processor.collate([example(RATE, "long", text="one two six one two"), example(RATE, "b", text="one")])
    assert batch.ids == ["b"] and [(n, r) for n, r, _ in batch.dropped] == [("long", "text_too_long")]
    assert "10" in batch.dropped[0][2] and len(batch.inputs["features"]) == 1
    long = example(RATE, "long", text="one two six one two")
    assert processor.drop_reason(long, True)[0] == "text_too_long" and processor.drop_reason(long, False) is None


def test_a_language_model_reads_texts_alone(tmp_path):
    processor = TransformerProcessor(tokenizer=characters(["one two"]), tokenizer_type="characters")
    batch = processor.collate([Example("a", text="one"), Example("b", text="two one")])
    assert set(batch.inputs) == {"tokens", "targets"} and batch.counts == {"text": 12}
    assert (batch.tokens, batch.num_positions, batch.seconds) == (12, 16, 0.0)
    cut = cut_from_record({"audio_path": "x.wav", "duration": 1.0, "text": "two one"}, Path("."), "x")
    assert processor.tokens(cut, 1.0) == 8 and not processor.has_audio
    processor.save(tmp_path)
    assert not TransformerProcessor.load(tmp_path).has_audio


def test_packed_batches_are_refused():
    with pytest.raises(DataError, match="packed"):
        TransformerProcessor(Features()).collate([example(RATE)], packed=True)


# Self-supervised encoders


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_padding_never_changes_what_an_ssl_encoder_hears(norm, tmp_path):
    norms = {"feat_extract_norm": norm, "do_stable_layer_norm": norm == "layer"}
    section = SSL(config={"model_type": "wavlm", **norms, **WAVE})
    shape = geometry_of(section)
    processor = TransformerProcessor(shape=shape)
    torch.manual_seed(0)
    front = front_end(section, shape).eval()
    lengths = [16000, 5000, 300]
    batch = processor.collate([example(n, str(n)) for n in lengths])
    with torch.no_grad():
        hidden, frames = front(audio=batch.inputs["features"], lengths=batch.inputs["lengths"])
    assert frames.tolist() == [processor.frames(n) for n in lengths] and hidden.shape[2] == front.size == 32
    assert processor.frame_seconds == 0.02 and batch.tokens == sum(frames.tolist())
    for i, n in enumerate(lengths):
        alone = processor.collate([example(n)]).inputs
        with torch.no_grad():
            expected, _ = front(alone["features"], alone["lengths"])
        assert (hidden[i, : frames[i]] - expected[0]).abs().max() < 2e-5 and not hidden[i, frames[i] :].any()
    processor.save(tmp_path)
    assert TransformerProcessor.load(tmp_path).pretrained.shape == shape


def test_the_mix_of_layers_is_learnt():
    section = SSL(config={"model_type": "wavlm", **WAVE})
    shape = geometry_of(section)
    front = front_end(section, shape)
    audio, lengths = torch.from_numpy(noise(8000))[None], torch.tensor([8000])
    assert [n for n, p in front.named_parameters() if p.requires_grad] == ["mix"] and len(front.mix) == 3
    assert front.train().training and not front.encoder.training
    hidden, _ = front(audio, lengths)
    hidden.square().sum().backward()
    assert front.mix.grad.abs().min() > 0
    with torch.no_grad():
        front.mix[:] = torch.tensor([-50.0, -50.0, 50.0])
        last = front.encoder(audio).last_hidden_state
        assert (front(audio, lengths)[0] - last).abs().max() < 1e-4
    trained = front_end(section.model_copy(update={"freeze": False}), shape).train()
    trained(audio, lengths)[0].square().sum().backward()
    assert trained.encoder.training and all(p.grad is not None for p in trained.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", ["whisper", "parakeet_encoder"])
def test_a_mix_is_of_the_layers_that_transformers_gives(kind):
    """Of a clip as long as Whisper's encoder insists on, and of padded ones as of each alone."""
    parakeet = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": 4}
    parakeet |= {"model_type": "parakeet_encoder", "num_mel_bins": 80, "scale_input": False}
    section = SSL(config=whisper() if kind == "whisper" else parakeet, mix=True)
    torch.manual_seed(0)
    front = front_end(section, geometry_of(section)).eval()
    assert [n for n, p in front.named_parameters() if p.requires_grad] == ["mix"] and len(front.mix) == 3
    features = torch.randn(1, 80, 100)
    with torch.no_grad():
        front.mix[:] = torch.tensor([0.3, -0.2, 1.0])
        given = features if kind == "whisper" else features.transpose(1, 2)
        states = front.encoder(given, output_hidden_states=True).hidden_states
        expected = sum(w * state for w, state in zip(front.mix.softmax(0), states, strict=True))
        hidden, frames = front(features, torch.tensor([100]))
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
        both, counts = front(torch.cat([features, torch.randn(1, 80, 100)]), torch.tensor([60, 100]))
        alone, _ = front(features[:, :, :60], torch.tensor([60]))
    assert counts[1] == frames[0] and not both[0, counts[0] :].any()
    torch.testing.assert_close(both[:1, : counts[0]], alone, atol=1e-5, rtol=1e-5)


def test_layers_that_training_skips_are_in_the_mix_as_their_input():
    section = SSL(config=whisper(encoder_layerdrop=0.5), mix=True, freeze=False)
    front = front_end(section, geometry_of(section)).train()
    for seed in range(4):  # one, two or no layers are skipped
        torch.manual_seed(seed)
        hidden, _ = front(torch.randn(1, 80, 40), torch.tensor([40]))
        assert hidden.shape == (1, 20, 16) and hidden.isfinite().all()


@pytest.mark.parametrize("mix", [True, False])
def test_subsampled_frames_are_means(mix, tmp_path):
    torch.manual_seed(0)
    sections = [SSL(config=whisper(max_source_positions=1500), mix=mix, subsample=size) for size in (1, 5)]
    full, front = (front_end(section, geometry_of(section)).eval() for section in sections)
    front.load_state_dict(full.state_dict())
    shape = geometry_of(sections[1])
    processor = TransformerProcessor(shape=shape)
    assert processor.frame_seconds == 0.1 and processor.max_seconds == 30 and processor.frames(480_000) == 300
    lengths = [16000, 5000, 1800]  # 50, 16 and 6 frames of the encoder
    inputs = processor.collate([example(n, str(n)) for n in lengths]).inputs
    with torch.no_grad():
        hidden, frames = front(inputs["features"], inputs["lengths"])
        whole, counts = full(inputs["features"], inputs["lengths"])
    assert counts.tolist() == [50, 16, 6] and frames.tolist() == [processor.frames(n) for n in lengths] == [10, 4, 2]
    for row, every, n, count in zip(hidden, whole, frames.tolist(), counts.tolist()):
        expected = torch.stack([piece.mean(0) for piece in every[:count].split(5)])
        torch.testing.assert_close(row[:n], expected)
        assert not row[n:].any()
    processor.save(tmp_path)
    assert TransformerProcessor.load(tmp_path).pretrained.shape == shape


def test_a_front_end_is_built_from_what_was_saved():
    section = SSL(config={"model_type": "hubert", **WAVE})
    shape = geometry_of(section)
    front = front_end(section, shape).eval()
    known = json.loads(json.dumps(front.config))
    again = front_end(SSL(**{"from": "nobody/nothing"}), shape, known).eval()
    again.load_state_dict(front.state_dict())
    audio, lengths = torch.from_numpy(noise(8000))[None], torch.tensor([8000])
    assert torch.equal(again(audio, lengths)[0], front(audio, lengths)[0])


def test_impossible_ssl_settings():
    with pytest.raises(ValidationError, match="needs `from`"):
        SSL()
    with pytest.raises(ValidationError, match="model_type"):
        SSL(config={"hidden_size": 16})
    with pytest.raises(ConfigError, match=r"model\.ssl: bert encoders are not supported; known are whisper"):
        geometry_of(SSL(config={"model_type": "bert"}))
    with pytest.raises(ConfigError, match=r"model\.ssl\.config: wavlm has no 'hiden_size'"):
        geometry_of(SSL(config={"model_type": "wavlm", "hiden_size": 16}))


# Stored features


@pytest.fixture
def cuts(corpus: Path) -> list[Cut]:
    lines = (corpus / "dev.jsonl").read_text().splitlines()
    return [cut_from_record(json.loads(line), corpus, "dev") for line in lines]


def reader_of(processor: TransformerProcessor, augment: Augment | None = PLAIN) -> BatchDataset:
    return BatchDataset(Transcribe(), processor, augment, seed=0)


def read(processor: TransformerProcessor, cuts: list[Cut], augment: Augment, **item) -> dict:
    reader = reader_of(processor, augment)
    _, batch = reader[PlannedBatch([Item(cut, 0, **item) for cut in cuts], 0, 0, 0)]
    assert len(batch.ids) == len(cuts)
    return batch.inputs


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "spectrogram"])
@pytest.mark.parametrize("bits, most", [(16, 1e-3), (32, 0.0)])
def test_stored_equals_computed(tmp_path, cuts, kind, bits, most, monkeypatch):
    settings = {"type": kind, "stack": 5, "subsample": 5, "normalize": "none"}
    plain = TransformerProcessor(Features(**settings))
    keeping = TransformerProcessor(Features(**settings, store=str(tmp_path / "store"), store_bits=bits))
    augment = Augment(spec_augment=SpecAugment())
    computed, first = read(plain, cuts, augment), read(keeping, cuts, augment)
    monkeypatch.setattr("stentor.dataloading.loader.load_audio", None)  # nobody reads audio any more
    monkeypatch.setattr("stentor.models.transformer.feature_cache.load_audio", None)
    for stored in (first, read(keeping, cuts, augment), read(TransformerProcessor(keeping.features), cuts, augment)):
        assert torch.equal(stored["lengths"], computed["lengths"])
        assert torch.equal(stored["features"], first["features"])
        off = (stored["features"] - computed["features"]).abs().max()
        assert off <= (0 if kind == "spectrogram" else most * (12 if kind == "mfcc" else 1))


def test_samples_of_stored_items_are_known_and_unreadable_ones_are_dropped(tmp_path, cuts):
    processor = TransformerProcessor(Features(store=str(tmp_path)))
    gone = cut_from_record({"id": "gone", "audio_path": "gone.wav", "duration": 1.0, "text": "x"}, tmp_path, "x")
    examples, dropped = reader_of(processor).examples([Item(cut, 0) for cut in (gone, *cuts)])
    assert [d[:2] for d in dropped] == [("gone", "missing")] and all(e.audio is None for e in examples)
    assert [e.extra["samples"] for e in examples] == [len(load_audio(cut)) for cut in cuts]
    assert processor.collate(examples).seconds == pytest.approx(sum(e.extra["samples"] for e in examples) / RATE)


def test_changed_audio_is_never_stored(tmp_path, cuts):
    processor = TransformerProcessor(Features(store=str(tmp_path)))
    for augment, speed in ((Augment(gain=(-3.0, 3.0)), 1.0), (Augment(speed=[0.9, 1.0]), 0.9)):
        examples, _ = reader_of(processor, augment).examples([Item(cut, 0, speed=speed) for cut in cuts])
        assert all(e.audio is not None and "features" not in e.extra for e in examples)
    in_evaluation, _ = reader_of(processor, None).examples([Item(cut, 0) for cut in cuts])
    assert all(e.audio is not None for e in in_evaluation)
    assert not list(tmp_path.glob("*.jsonl"))
    read(processor, cuts, Augment(speed=[0.9, 1.0]), speed=1.0)
    assert all(map(FeatureStore(tmp_path, Features(), 16).has, cuts))


def test_what_a_run_says(tmp_path, cuts, monkeypatch):
    processor = TransformerProcessor(Features(store=str(tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1000))
        with pytest.raises(ConfigError, match="has room for 0"):
            processor.check_cache(cuts, Augment())
    (line,) = processor.check_cache(cuts, Augment())
    assert line.startswith("Features of 0 of 4 training items are stored in") and "they are computed" in line
    processor.cached_features(cuts[0])
    (line,) = processor.check_cache(cuts, Augment())
    assert "Features of 1 of 4" in line and "the other 3 are computed when they first come" in line
    for cut in cuts:
        processor.cached_features(cut)
    assert processor.check_cache(cuts, Augment(spec_augment=SpecAugment())) == [
        f"Features of 4 of 4 training items are stored in {tmp_path}."
    ]
    assert "played at their own speed" in processor.check_cache(cuts, Augment(speed=[0.9, 1.0, 1.1]))[0]
    for augment in (Augment(band=0.1), Augment(speed=[0.9])):
        with pytest.raises(ConfigError, match=r"model\.features\.store: .* Leave out `store`"):
            processor.check_cache(cuts, augment)
    assert TransformerProcessor(Features()).check_cache(cuts, Augment(band=0.1)) == []


def test_other_settings_are_refused(tmp_path, cuts):
    TransformerProcessor(Features(store=str(tmp_path))).cached_features(cuts[0])
    with pytest.raises(ConfigError, match="num_mel_bins was 80 and is 40"):
        TransformerProcessor(Features(store=str(tmp_path), num_mel_bins=40))
    # What is done with the features afterwards may change.
    TransformerProcessor(Features(store=str(tmp_path), stack=5, subsample=5, normalize="mean"))
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "store.json.0123abcd").write_text("")  # another rank is about to rename it
    TransformerProcessor(Features(store=str(tmp_path / "rank")))
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        TransformerProcessor(Features(store=str(tmp_path)))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        TransformerProcessor(Features(store=str(tmp_path / "other")))


def test_a_key_is_about_the_audio(corpus, tmp_path):
    record = {"id": "a", "audio_path": "dev0.wav", "start": 0.1, "duration": 0.5, "text": "one", "speaker": "x"}

    def key(folder=corpus, **change):
        return audio_key(cut_from_record({**record, **change}, folder, "x"))

    for name in ("dev0.wav", "dev1.wav"):
        (tmp_path / name).write_bytes((corpus / name).read_bytes())
        stat = (corpus / name).stat()
        os.utime(tmp_path / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key() == key(text="two", speaker="y") == key(tmp_path)
    others = {key(id="b"), key(start=0.2), key(duration=0.4), key(audio_path="dev1.wav"), key(channel=1)}
    os.utime(tmp_path / "dev0.wav", (1, 1))
    assert key() not in others | {key(tmp_path)} and len(others) == 5
    cut = cut_from_record(record, corpus, "x")
    mixed = [cut.mix(cut, offset_other_by=by) for by in (0.1, 0.2)]
    assert len(set(map(audio_key, [cut, cut.append(cut), *mixed, cut.perturb_volume(0.5)]))) == 5


def test_damage_is_computed_anew(tmp_path, cuts):
    """Half a line, as a kill leaves it, and values that are not those that were written."""
    processor = TransformerProcessor(Features(store=str(tmp_path)))
    intact = [processor.cached_features(cut).features for cut in cuts]
    (index,) = tmp_path.glob("*.jsonl")
    index.write_bytes(index.read_bytes()[:-5])
    (values,) = tmp_path.glob("*.bin")
    data = bytearray(values.read_bytes())
    data[10] ^= 1
    values.write_bytes(data)
    again = TransformerProcessor(processor.features)
    assert [again.store.has(cut) for cut in cuts] == [True, True, True, False]
    for cut, features in zip(cuts, intact):
        assert np.array_equal(again.cached_features(cut).features, features)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert sorted(len(f.read_text().splitlines()) for f in tmp_path.glob("*.jsonl"))[0] == 2


def test_a_full_disk_is_told(tmp_path, cuts, monkeypatch):
    processor = TransformerProcessor(Features(store=str(tmp_path)))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("stentor.models.transformer.feature_cache._write", full)
        with pytest.raises(DataError, match=r"No space left on device.*model\.features\.store"):
            processor.cached_features(cuts[0])
    assert processor.cached_features(cuts[0]).samples == len(load_audio(cuts[0]))


def test_processes_share_what_they_store(tmp_path, cuts):
    """Each stores its part, and finds the others' without being told."""
    from torch.utils.data import DataLoader

    processor = TransformerProcessor(Features(store=str(tmp_path)))
    reader = reader_of(processor)
    one_by_one = [partial(reader.examples, [Item(cut, 0)]) for cut in cuts]
    for _ in range(2):
        loader = DataLoader(one_by_one, batch_size=None, num_workers=2, collate_fn=lambda made: len(made()[0]))
        assert sum(loader) == len(cuts)
    files = list(tmp_path.glob("*.jsonl"))
    assert len(files) == 2 and sum(len(f.read_text().splitlines()) for f in files) == len(cuts)


@pytest.mark.slow
def test_memory_ends_with_the_process(corpus):
    code = (
        "import json, sys, os; from pathlib import Path\n"
        "from stentor.data.cut import cut_from_record\n"
        "from stentor.models.encoders.features import Features\n"
        "from stentor.models.transformer.processor import TransformerProcessor\n"
        "folder = Path(sys.argv[1])\n"
        "cut = cut_from_record(json.loads((folder / 'dev.jsonl').read_text().splitlines()[0]), folder, 'x')\n"
        "p = TransformerProcessor(Features(store='memory')); p.cached_features(cut)\n"
        "assert len(list(p.store.folder.iterdir())) == 3\n"
        "print(p.store.folder, flush=True)\n"
        "if sys.argv[2] == 'kill': os.kill(os.getpid(), 9)\n"
    )

    def run(how):
        done = subprocess.run([sys.executable, "-c", code, str(corpus), how], capture_output=True, text=True)
        return Path(done.stdout.strip())

    killed = run("kill")
    assert killed.is_dir()
    ended = run("end")
    assert not ended.exists() and not killed.exists()  # the next one tidies up
