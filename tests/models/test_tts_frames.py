"""Higgs Audio v2, Pocket TTS and Phonon: inputs and losses are transformers' own, items do not depend on one another,
and exports speak in plain transformers as they do here."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_families import save
from tiny_tts_frames import CONFIGS, TEXTS, build, clip, codes_of, examples, write

from stentor.data.cut import cut_from_record
from stentor.errors import ConfigError, DataError
from stentor.models.base import Family, TaskRequirements
from stentor.models.codecs.base import open_codec
from stentor.models.tts.config import TTS
from stentor.tasks.speak.task import Speak

KINDS = tuple(CONFIGS)
SURE = {"generation": {"temperature": 0.0}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: write(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def bundles(folders):
    return {kind: build(kind, folders[kind], **SURE) for kind in KINDS}


def talk(*turns) -> list[dict]:
    """A conversation of (role, texts); "" stands for audio."""
    parts = [[{"type": "text", "text": text} if text else {"type": "audio"} for text in texts] for _, *texts in turns]
    return [{"role": role, "content": content} for (role, *_), content in zip(turns, parts)]


def sums(bundle, items) -> dict[str, float]:
    bundle.model.eval()
    with torch.no_grad():
        outputs = bundle.model(**bundle.processor.collate(items).inputs)
    return {term: float(output["loss"]) for term, output in outputs.items()}


def test_higgs_loss_is_the_models_own(bundles):
    bundle = bundles["higgs_audio_v2"]
    items = examples(bundle)
    batch = bundle.processor.collate(items)
    with torch.no_grad():
        expected = float(bundle.model.pretrained(**batch.inputs).loss)
    assert sums(bundle, items)["codes"] / batch.counts["codes"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["pocket_tts", "gradium_phonon_tts"])
def test_pocket_loss_is_the_models_own(bundles, kind, monkeypatch):
    """With the noise and the times of the batch in the place of those that transformers would draw."""
    bundle = bundles[kind]
    config = bundle.model.config
    monkeypatch.setattr(config, "lsd_distill_probability", 1.0)
    items = examples(bundle)
    batch = bundle.processor.collate(items)
    inputs = dict(batch.inputs)
    noise, times = inputs.pop("noise").flatten(0, 1), inputs.pop("times").flatten(0, 1)
    assert inputs.pop("jumps").all() and (times[:, 1] <= times[:, 2]).all()
    logits = (torch.log(times / (1 - times)) - config.lsd_time_logit_mean) / config.lsd_time_logit_std
    drawn = iter([noise, logits[:, :1], logits[:, 1:]])

    def randn_like(tensor):
        value = next(drawn)
        assert value.shape == tensor.shape
        return value

    model = bundle.model.pretrained.eval()
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch, "randn_like", randn_like)
        expected = float(model(**inputs).loss)
    parts = sums(bundle, items)
    weights = {f"codes_{part}": weight for part, weight in bundle.traits.loss_parts.items()}
    assert weights == {"codes_flow": 1.0, "codes_end": pytest.approx(0.1)}
    total = sum(weight * parts[term] / batch.counts[term] for term, weight in weights.items())
    assert total == pytest.approx(expected, rel=1e-5)


def test_the_share_of_jumps_is_made_up_for(bundles):
    """A frame's term of the jump counts for those of the frames that have none."""
    bundle = bundles["pocket_tts"]
    inputs = bundle.processor.collate(examples(bundle, frames=(6,))).inputs

    def flow(jumps: bool, probability: float) -> float:
        model = copy.copy(bundle.model.pretrained)
        model.config = copy.copy(model.config)
        model.config.lsd_distill_probability = probability
        batch = {**inputs, "jumps": torch.full_like(inputs["jumps"], jumps)}
        with torch.no_grad():
            return float(bundle.processor.loss(model, batch)["flow"])

    never = flow(False, 0.25)
    assert flow(True, 0.25) - never == pytest.approx(4 * (flow(True, 1.0) - never), rel=1e-4)


def test_higgs_inputs_are_those_of_transformers_processor(bundles, folders, monkeypatch):
    """But for the labels of the end, which it leaves out: a model trained so would forget how to end."""
    from transformers import AutoTokenizer, DacFeatureExtractor, HiggsAudioV2Processor

    processor = bundles["higgs_audio_v2"].processor
    # Without torchaudio transformers has a stand-in for the codec's class.
    monkeypatch.setattr(HiggsAudioV2Processor, "check_argument_for_proper_class", lambda self, name, value: type(value))
    tokenizer = AutoTokenizer.from_pretrained(folders["higgs_audio_v2"])
    extractor = DacFeatureExtractor(hop_length=1, sampling_rate=24000)
    hf = HiggsAudioV2Processor(extractor, tokenizer, processor.codec.model, tokenizer.chat_template)
    audio = clip(1, 0.4)
    system = ("system", "Generate audio following instruction.")
    text = (
        hf.apply_chat_template(talk(system, ("user", "one two three")), tokenize=False, add_generation_prompt=True)
        + hf.audio_token
    )
    options = {"return_tensors": "pt", "sampling_rate": 24000}
    expected = hf(text=[text], audio=[audio], output_labels=True, **options)
    [item] = examples(bundles["higgs_audio_v2"], frames=(10,))
    item.extra["codes"] = processor.codec.encode([audio])[0]
    inputs = processor.collate([item]).inputs
    assert torch.equal(inputs["audio_input_ids"], expected["audio_input_ids"])
    theirs = expected["input_ids"].masked_fill(
        expected["input_ids"] == processor.tokenizer.convert_tokens_to_ids(hf.audio_delay_token), hf.audio_token_id
    )
    assert torch.equal(inputs["input_ids"], theirs)
    ends = inputs["audio_labels"] == hf.audio_stream_eos_id
    assert ends.sum(1).tolist() == [[1] * 8]
    assert torch.equal(inputs["audio_labels"].masked_fill(ends, -100), expected["audio_labels"])
    # A voice is a turn before: the same as when transformers' processor encodes it.
    conversation = talk(system, ("user", "four"), ("assistant", ""), ("user", "one two three"))
    text = hf.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    expected = hf(text=[text], audio=[audio], **options)
    prompt = processor.utterance("one two three", reference=(item.extra["codes"], "four"), frames=10)
    assert torch.equal(torch.from_numpy(prompt.codes.T.copy())[None], expected["audio_input_ids"])
    assert len(prompt.ids) == expected["input_ids"].shape[1]


def test_pocket_inputs_are_those_of_transformers_processor(bundles, folders):
    from transformers import AutoProcessor

    bundle = bundles["pocket_tts"]
    hf = AutoProcessor.from_pretrained(folders["pocket_tts"])
    audios = [clip(1, 0.8), clip(2, 0.31)]
    conversations = [talk(("user", text), ("assistant", "")) for text in TEXTS[:2]]
    texts = [hf.apply_chat_template(c, tokenize=False) for c in conversations]
    items = examples(bundle, frames=(1, 1))
    for item, audio in zip(items, audios):
        item.extra["codes"] = bundle.processor.codec.encode([audio])[0]
    inputs = bundle.processor.collate(items).inputs
    right = {"padding": True, "padding_side": "right"}
    expected = hf(text=texts, audio=audios, return_tensors="pt", sampling_rate=24000, text_kwargs=right)
    for name in ("input_ids", "attention_mask", "labels_mask"):
        assert torch.equal(inputs[name], expected[name]), name
    assert torch.allclose(inputs["labels"], expected["labels"], atol=1e-5)


def plain_speech(kind, folder, codec, text, reference=None) -> np.ndarray:
    """Audio by transformers' model and, of Pocket TTS, its processor alone."""
    import transformers

    if kind == "pocket_tts":
        processor = transformers.AutoProcessor.from_pretrained(folder)
        model = transformers.PocketTTSForConditionalGeneration.from_pretrained(folder)
        spoken = talk(("user", "", text) if reference else ("user", text))
        text = processor.apply_chat_template(spoken, tokenize=False)
        voice = {"audio_prompt_latents": [torch.from_numpy(reference[0].T.copy())]} if reference else {}
        inputs = processor(text=text, **voice, return_tensors="pt")
        latents = model.generate(**inputs, do_sample=False, max_new_tokens=37)[0]
        processor.fade_in_duration = 0
        return processor.decode(latents).numpy()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.HiggsAudioV2ForConditionalGeneration.from_pretrained(folder)
    conversation = talk(("system", "Generate audio following instruction."), ("user", text))
    inputs = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    columns = model.generate(**inputs, do_sample=False, max_new_tokens=46)[0]
    rows = [columns[c + 1 : len(columns) - 8 + c + 1, c] for c in range(8)]
    codes = torch.stack(rows).clip(0, 1023)
    return codec.decode([codes.numpy()])[0]


@pytest.mark.parametrize("kind", ["higgs_audio_v2", "pocket_tts"])
def test_exports_speak_the_same_in_plain_transformers(bundles, kind, tmp_path):
    bundle = bundles[kind]
    if kind == "higgs_audio_v2":  # untrained, it would hardly end: cut at the same length
        with torch.no_grad():
            bundle.model.audio_lm_head.weight[1025::1026] = 0
    folder = save(bundle, tmp_path / "export")
    loaded = TTS.load(folder)
    references = [None] if kind == "higgs_audio_v2" else [None, (codes_of(bundle, 5, 9), "four")]
    for reference in references:
        prompt = loaded.processor.utterance("one two three", reference=reference, frames=12)
        prompt.limit = 37
        [codes] = loaded.model.speak([prompt], seeds=[3])
        [here] = bundle.model.speak([prompt], seeds=[5])
        # Latents go through numbers that lie elsewhere in memory: sums may round otherwise.
        assert np.allclose(codes, here, rtol=1e-3, atol=0.05) and codes.shape[0] == bundle.processor.codebooks
        audio = loaded.processor.codec.decode([codes])[0]
        expected = plain_speech(kind, folder, loaded.processor.codec, "one two three", reference)
        assert np.abs(audio - expected).max() < 1e-3


@pytest.mark.parametrize("kind", ["higgs_audio_v2", "pocket_tts"])
def test_chance_and_voices(bundles, folders, kind):
    """Each utterance is its prompt and its seed alone; a voice changes what is spoken."""
    bundle = build(kind, folders[kind], generation={"temperature": 0.8})
    voice = (codes_of(bundle, 5, 9), "four")
    prompts = [bundle.processor.utterance("one two", reference=r, frames=6) for r in (None, voice, None)]
    together = bundle.model.speak(prompts, seeds=[1, 1, 2])
    again = bundle.model.speak(prompts[:1], seeds=[1])
    assert np.array_equal(together[0], again[0])
    assert not np.array_equal(together[0][:, :4], together[1][:, :4])
    assert not np.array_equal(together[0][:, :4], together[2][:, :4])


def test_wrong_settings(bundles, folders, tmp_path):
    requirements = TaskRequirements("speak", ("codes",))

    def error(**keys):
        with pytest.raises(ConfigError) as caught:
            Family.model_validate({"type": "tts", **keys}).build(requirements)
        return str(caught.value)

    flow = {**CONFIGS["pocket_tts"]["flow_head_config"], "flow_type": "drifting"}
    drifting = {**CONFIGS["pocket_tts"], "flow_head_config": flow}
    assert "flow_type: lsd" in error(config=drifting, tokenizer=str(folders["pocket_tts"]))
    wrong = {"type": "higgs_audio_v2", "from": str(folders["higgs_audio_v2"])}
    sizes = {**CONFIGS["pocket_tts"], "latent_dim": 8, "flow_head_config": {**flow, "flow_type": "lsd"}}
    assert "do not fit" in error(config=sizes, tokenizer=str(folders["pocket_tts"]), codec=wrong)
    with pytest.raises(ConfigError, match="leave out the voice"):
        voice = (codes_of(bundles["gradium_phonon_tts"], 0, 4), "four")
        bundles["gradium_phonon_tts"].processor.utterance("one", reference=voice, frames=5)
    for kind, key in (("higgs_audio_v2", "flow_steps"), ("higgs_audio_v2", "guidance"), ("pocket_tts", "top_k")):
        section = {"config": CONFIGS[kind], "tokenizer": str(folders[kind]), "generation": {key: 2}}
        assert f"model.generation.{key}: a {kind} has no such setting" in error(**section)
    with pytest.raises(ConfigError, match="train on the recordings"):
        bundles["pocket_tts"].processor.codec.require_tokens()
    for kind, bad in (("pocket_tts", np.int16), ("higgs_audio_v2", np.float32)):
        items = examples(bundles[kind])
        items[1].extra["codes"] = items[1].extra["codes"].astype(bad)
        assert [name for name, *_ in bundles[kind].processor.collate(items).dropped] == ["item1"]


@pytest.mark.parametrize("kind", ["higgs_audio_v2", "gradium_phonon_tts"])
def test_long_texts_come_in_pieces(bundles, kind):
    """The first piece is the voice of the others, of models that take voices."""
    from stentor.inference.speak.speaker import Speaker
    from stentor.inference.speak.utterance import Utterance

    speaker = Speaker(bundles[kind], Speak(), {"model": {}}, {"chunk_duration": 1.0, "chunk_threshold": 1.0})
    assert speaker.settings["chunk_duration"] == 1.0 and "steps" not in speaker.settings
    (speech,) = speaker.speak([Utterance("one two. three four five six.")])
    assert len(speech.texts) > 1


def test_the_continuous_codec_and_its_voices(folders, tmp_path):
    from stentor.inference.speak.voice import Voice, load_voice, save_voice

    codec = open_codec(str(folders["pocket_tts"]))
    assert (codec.sample_rate, codec.hop, codec.codebooks, codec.vocabulary) == (24000, 1920, 8, None)
    [latents] = codec.encode([clip(3, 0.5)])
    assert latents.dtype == np.float32 and latents.shape == (8, 7)
    with torch.no_grad():
        expected = codec.model.decode(torch.from_numpy(latents.T.copy())[None]).audio_values[0, 0]
    assert np.array_equal(codec.decode([latents])[0], expected.numpy())
    save_voice(Voice(latents, "four"), tmp_path / "voice", codec)
    assert np.array_equal(load_voice(tmp_path / "voice", codec).codes, latents)
    latents[2, 3] = np.nan
    save_voice(Voice(latents, "four"), tmp_path / "broken", codec)
    with pytest.raises(DataError, match="damaged"):
        load_voice(tmp_path / "broken", codec)


def test_an_instruct_takes_positions(bundles):
    processor = bundles["higgs_audio_v2"].processor
    record = {"id": "a", "audio_path": "-", "duration": 1.0, "text": "one"}
    plain, described = (cut_from_record(record | more, Path(), "a") for more in ({}, {"instruct": "two three"}))
    ids = [processor.prompt_ids("one", instruct) for instruct in (None, "two three")]
    assert processor.tokens(described, 1.0) - processor.tokens(plain, 1.0) == len(ids[1]) - len(ids[0]) > 0
