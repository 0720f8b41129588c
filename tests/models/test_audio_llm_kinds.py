"""What single models of the family `audio_llm` have of their own: prompts and features of their processors, adapters
that come with a model, translation."""

import json
import re

import numpy as np
import pytest
import torch
from lhotse import MonoCut, SupervisionSegment
from tiny_audio_llm import LENGTHS, LORA, examples, loss, plain
from tiny_audio_llms import TINY
from tiny_families import save, shake
from tiny_runs import from_scratch, records_of, run, write_records

from stentor.dataloading.planned import ModelDrops
from stentor.errors import ConfigError, DataError
from stentor.tasks.transcribe import Transcribe

torch.set_num_threads(1)

OURS = ("audio_index", "position_ids", "lengths", "cu_seqlens")
"""Inputs that transformers does not take, or makes by itself."""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds the tiny model of a name."""

    def make(name, **keys):
        return TINY[name].build(TINY[name].write(tmp_path_factory.mktemp(name)), **keys)

    return make


@pytest.mark.parametrize("seconds", [0.5, 1.2345, 30.0, 30.5, 61.0])
def test_what_glm_asr_reads_is_made_as_its_processor_makes_it(build, seconds):
    bundle = build("glmasr")
    (item,) = examples((seconds,))
    theirs = bundle.processor.hf.apply_transcription_request([item.audio])
    ours = bundle.processor.collate([item], labels=False).inputs
    assert torch.equal(ours["input_ids"], theirs["input_ids"])
    assert torch.equal(ours["input_features_mask"], theirs["input_features_mask"])
    assert (ours["input_features"] - theirs["input_features"]).abs().max() < 1e-4


def test_prompts_of_voxtral_are_those_of_its_processor(build):
    bundle, items = build("voxtral"), examples(LENGTHS)
    theirs = bundle.processor.hf.apply_transcription_request(
        audio=[e.audio for e in items],
        language=[e.language for e in items],
        model_id="x",
        sampling_rate=16000,
        format=["WAV"] * len(items),
    )
    batch = bundle.processor.collate(items, labels=False)
    assert torch.equal(batch.inputs["input_ids"], theirs["input_ids"])
    assert torch.equal(batch.inputs["attention_mask"], theirs["attention_mask"])
    assert len(set(map(tuple, [bundle.processor.prompt_parts(e.language)[1] for e in items]))) == 3


def test_features_of_voxtral_are_those_of_its_processor(build):
    bundle = build("voxtral")
    items = examples((*LENGTHS, 60.0))  # the end of the last window is mirrored, which clips that reach it show
    hf = bundle.processor.hf
    padded = [np.pad(e.audio, (0, -len(e.audio) % 480000)) for e in items]
    theirs = hf._retrieve_input_features(
        padded,
        3000,
        sampling_rate=16000,
        padding=True,
        truncation=False,
        pad_to_multiple_of=480000,
        return_tensors="pt",
    )
    ours = bundle.processor.features(items)
    assert ours.shape == theirs.shape == (11, 128, 3000)
    assert (ours - theirs).abs().max() < 1e-4


def test_voxtral_knows_languages_by_code_locale_and_name(build):
    prompt = build("voxtral").processor.prompt
    assert prompt("fr", 16000) != prompt("", 16000) == prompt(None, 16000)
    for name in ("FR", "fr-CA", "fr_fr", "French", "fra"):
        assert prompt(name, 16000) == prompt("fr", 16000), name


def test_a_run_with_a_language_that_the_prompt_cannot_name(four, tmp_path, attempt):
    """Left out and counted up to `data.max_bad`; beyond that the run stops before training, with the record's name."""
    records = records_of(four)
    records[1]["language"] = "klingon"
    odd = write_records(tmp_path / "odd.jsonl", records)
    sentence = f"{records[1]['id']}: Voxtral's prompt can name no language 'klingon': give a code"
    model = from_scratch("voxtral", tmp_path / "tekken")
    options = {"data.max_bad": 0.5, "data.eval.same.path": four, "data.batch_tokens": 4000}
    folder = run(tmp_path, "odd", model, odd, steps=2, lr=1e-3, **options)
    results = json.loads((folder / "results.json").read_text())
    assert results["data"]["dropped"] == {"unknown_language": 1}
    for train, dev in ((odd, four), (four, odd)):
        paths = (f"data.train.0.path={train}", f"data.eval.same.path={dev}")
        code, printed = attempt("train", tmp_path / "odd.json", *paths, "name=none")
        assert code == 3 and sentence in printed and "Traceback" not in printed and "step 1" not in printed


@pytest.mark.parametrize("name", TINY)
def test_decoding_is_that_of_transformers(name, build):
    bundle = build(name)
    model, processor = plain(bundle, TINY[name].model_class()), bundle.processor
    items = examples((0.5, 5.0, 30.1))
    answers = bundle.model.generate(processor.collate(items, labels=False).inputs, [6] * 3, {processor.eos_id})
    for item, (ids, log_probs, *_) in zip(items, answers):
        inputs = processor.collate([item], labels=False).inputs
        inputs = {n: t for n, t in inputs.items() if n not in OURS}
        ends = sorted(processor.end_ids)
        out = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=ends, pad_token_id=0)
        ended = out[0, inputs["input_ids"].shape[1] :].tolist()
        assert ids == [token for token in ended if token not in ends]
        assert len(log_probs) == len(ids) and all(p <= 0 for p in log_probs)


def test_features_of_granite_speech_are_those_of_the_formula(build):
    """Log-mel of transformers' own filters and transform, two frames side by side."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    (item,) = examples((1.2345,))
    ours = build("granite_speech").processor.audio_inputs([item])["input_features"][0]
    filters = mel_filter_bank(257, 80, 0.0, 8000.0, 16000, norm=None, mel_scale="htk")
    power = spectrogram(item.audio, window_function(400, "hann"), 400, 160, 512, power=2.0, mel_filters=filters)
    log = np.log10(np.maximum(power, 1e-10))
    log = (np.maximum(log, log.max() - 8) / 4 + 1).T
    theirs = log[: len(log) // 2 * 2].reshape(-1, 160)
    assert ours.shape == theirs.shape and np.abs(ours.numpy() - theirs).max() < 1e-3


def test_the_positions_of_fun_asr_hold_seven_frames(build):
    (item,) = examples((0.5,))
    features = build("fun_asr_nano").processor.audio_inputs([item])["input_features"][0]
    frames = features.unflatten(1, (7, 80))
    assert len(features) == 8  # 48 frames
    assert torch.equal(frames[0, 0], frames[0, 3]) and torch.equal(frames[0, 6], frames[1, 0])
    assert not torch.equal(frames[0, 3], frames[0, 4])


def test_adapters_that_a_model_comes_with_are_folded_into_it(build, tmp_path):
    """Granite Speech 3: adapters lie beside the weights, and transformers puts them on when it loads."""
    bundle = build("granite_speech", lora=LORA)
    shake(bundle, 0.5)
    expected = loss(bundle, examples((1.0,)))
    theirs = plain_with_adapters(bundle, tmp_path / "shipped")
    assert theirs == pytest.approx(expected, abs=1e-3)
    again = TINY["granite_speech"].build(None, **{"from": str(tmp_path / "shipped")})
    assert loss(again, examples((1.0,))) == pytest.approx(expected, abs=1e-3)
    further = TINY["granite_speech"].build(None, **{"from": str(tmp_path / "shipped")}, lora=LORA)
    folder = save(further, tmp_path / "export")  # whole: its base alone would lack what was folded in
    assert (folder / "model.safetensors").exists() and not (folder / "adapter_model.safetensors").exists()


def plain_with_adapters(bundle, folder):
    """Write a model whose folder holds adapters beside the weights; the loss of transformers' own."""
    from stentor.models.audio_llm.modeling import transformers_name
    from stentor.models.pretrained.lora import base_name, is_adapter
    from stentor.models.pretrained.weights import write_adapters

    tiny = TINY["granite_speech"]
    model = tiny.model_class()(bundle.model.config)
    state = bundle.model.state_dict()
    model.load_state_dict({transformers_name(base_name(n)): t for n, t in state.items() if not is_adapter(n)})
    model.save_pretrained(folder)
    bundle.processor.save(folder)
    write_adapters(bundle.model, state, folder, transformers_name)
    loaded = tiny.model_class().from_pretrained(folder).eval()
    assert loaded._hf_peft_config_loaded
    return tiny.reference_loss(loaded, bundle, examples((1.0,)))


def test_granite_speech_translates_and_others_say_that_they_do_not(build):
    bundle = build("granite_speech")
    (item,) = examples((1.0,))
    item.extra["translate"] = True
    decode = bundle.processor.hf.tokenizer.decode
    assert bundle.family.translates()
    assert "translate the speech to English" in decode(bundle.processor.collate([item]).inputs["input_ids"][0])
    for name in ("fun_asr_nano", "qwen3_asr"):
        other = build(name)
        assert not other.family.translates()
        with pytest.raises(ConfigError, match=f"{name} model transcribes and does not translate: leave out"):
            other.processor.collate([item])


@pytest.mark.parametrize(
    ("name", "language", "sentence"),
    [
        (
            "voxtral",
            "klingon",
            "Voxtral's prompt can name no language 'klingon': give a code",
        ),  # has none of two letters
        ("qwen3_asr", "la", "This model knows no 'la', but ar, "),
        ("fun_asr_nano", "fr", "This model knows no 'fr', but en, ja, zh."),
    ],
)
def test_a_language_that_the_prompt_cannot_name(build, name, language, sentence):
    """Such a record has a cost, is refused before batches are planned, left out of those of training, and an error in
    others."""
    bundle, items = build(name), examples((1.0, 1.0), languages=(language, "en"))
    batch = bundle.processor.collate(items)
    ((dropped, reason, message),) = batch.dropped
    assert (batch.ids, dropped, reason) == (["1"], "0", "unknown_language") and message.startswith(f"0: {sentence}")
    assert message.endswith("eave the language out to detect it.")
    with pytest.raises(DataError, match=re.escape(f"0: {sentence}")):
        bundle.processor.collate(items, labels=False)
    for spoken, refused in ((language, True), ("en", False), (None, False)):
        segment = SupervisionSegment("a", "r", 0, 1.0, text="one", language=spoken)
        cut = MonoCut("a", 0, 1.0, 0, supervisions=[segment])
        assert (ModelDrops(Transcribe(), bundle.processor, True)(cut) is not None) == refused
        assert bundle.processor.tokens(cut, 1.0) > 0
