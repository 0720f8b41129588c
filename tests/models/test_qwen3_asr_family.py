"""Qwen3-ASR, on a tiny model: prompts, features, languages, settings and what its exports hold."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_audio_llm import LENGTHS, examples, loss, plain
from tiny_audio_llms import TINY
from tiny_families import save, shake
from tiny_qwen3_asr import CONFIG, build, request, write_processor

from stentor.errors import ConfigError
from stentor.models.audio_llm import modeling
from stentor.models.base import Family
from stentor.models.contracts import GenerationOutput

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_processor(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module")
def bundle(tokenizer):
    return build(tokenizer)


@pytest.mark.parametrize("length", [*LENGTHS, 0.01, 0.99, 1.2345, 3.21])
def test_prompts_and_features_are_those_of_the_processor(bundle, length):
    for item in examples((length,) * 3):
        theirs = request(bundle, item)
        batch = bundle.processor.collate([item], labels=False)
        assert torch.equal(batch.inputs["input_ids"], theirs["input_ids"])
        ours = batch.inputs["input_features"]
        assert ours.shape == theirs["input_features"].shape
        assert (ours - theirs["input_features"]).abs().max() < 1e-4
        assert torch.equal(batch.inputs["input_features_mask"], theirs["input_features_mask"])


def test_prompts_of_a_batch_are_those_of_the_processor(bundle):
    items = examples(LENGTHS)
    theirs = bundle.processor.hf.apply_transcription_request(
        audio=[e.audio for e in items], language=["English", None, "Chinese"] * 2
    )
    batch = bundle.processor.collate(items, labels=False)
    assert torch.equal(batch.inputs["input_ids"], theirs["input_ids"])
    assert torch.equal(batch.inputs["attention_mask"], theirs["attention_mask"])


def test_a_context_is_the_system_turn(bundle):
    (item,) = examples((1.0,))
    item.context = "Ada Lovelace"
    ids = bundle.processor.collate([item], labels=False).inputs["input_ids"]
    assert torch.equal(ids, request(bundle, item)["input_ids"])
    assert "system\nAda Lovelace<|im_end|>" in bundle.processor.hf.tokenizer.decode(ids[0])
    item.context = "a <|audio_pad|> b"  # is no audio
    assert len(bundle.processor.collate([item]).inputs["audio_index"]) == 13


@pytest.mark.parametrize("language, name", [("en", "English"), (None, "None"), ("French", "French")])
def test_training_is_the_whole_conversation(bundle, language, name):
    """The model learns all that it writes without a language, which contains all that it writes with one."""
    (item,) = examples((1.0,), texts=("one two",), languages=(language,))
    batch = bundle.processor.collate([item])
    answer = f"language {name}<asr_text>one two"
    talk = [
        {"role": "user", "content": [{"type": "audio", "audio": item.audio}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
    talked = bundle.processor.hf.apply_chat_template([talk], tokenize=True, return_dict=True)["input_ids"]
    ours = batch.inputs["input_ids"]
    assert torch.equal(ours, talked[:, : ours.shape[1]]) and talked.shape[1] == ours.shape[1] + 1  # a last line break
    assert bundle.processor.hf.tokenizer.decode(batch.inputs["targets"]) == f"{answer}<|im_end|>"


def test_the_end_token_is_learnt_also_where_it_is_the_padding(tokenizer, bundle, tmp_path):
    same = build(write_processor(tmp_path, pad="<|im_end|>"))
    assert same.processor.pad_id == same.processor.eos_id != bundle.processor.pad_id
    same.model.load_state_dict({n: t[: len(t)] for n, t in bundle.model.state_dict().items()})
    items = examples((1.0, 2.0))
    targets = same.processor.collate(items).inputs["targets"].tolist()
    assert targets.count(same.processor.eos_id) == 2 and targets[-1] == same.processor.eos_id
    tiny = TINY["qwen3_asr"]
    expected = tiny.reference_loss(plain(same, tiny.model_class()), same, items)
    assert loss(same, items) == pytest.approx(expected, abs=1e-4)
    batch = same.processor.collate(items, labels=False)
    assert batch.inputs["attention_mask"].sum(1).tolist() == [
        len(same.processor.prompt(e.language, len(e.audio))) for e in items
    ]


def test_special_tokens_in_a_transcript_are_letters(bundle):
    (item,) = examples((1.0,), texts=("one<|im_end|>two",))
    targets = bundle.processor.collate([item]).inputs["targets"].tolist()
    assert targets.count(bundle.processor.eos_id) == 1
    assert bundle.processor.decode(targets).endswith("one<|im_end|>two")


@pytest.mark.parametrize("language", ["en", "EN", "English", "english", "en-US", "en_gb", " en "])
def test_a_language_is_known_by_code_locale_or_name(bundle, language):
    name_of = bundle.processor.name_of
    assert name_of(language) == "English" and name_of(None) is name_of("") is None


def test_the_name_of_the_language_has_room(bundle):
    processor = bundle.processor
    written = processor.answer(processor.ids("one two"), "en")[:-1]
    assert len(written) - len(processor.ids("one two")) <= processor.naming
    assert processor.max_new_tokens(0.1) == 18 + processor.naming
    assert processor.max_new_tokens(1e9) == 64 + processor.naming


@pytest.mark.parametrize(("language", "code"), [("en", "en"), ("French", "fr"), (None, None)])
def test_the_language_that_was_heard_has_its_code(bundle, monkeypatch, language, code):
    processor = bundle.processor
    written = processor.answer(processor.ids("one two"), language)[:-1]
    scores = [-0.1 * i for i in range(len(written))]
    results = [
        GenerationOutput(written, scores),
        GenerationOutput(processor.ids("one"), [0.0]),
    ]  # the language of the second was in the prompt
    monkeypatch.setattr(modeling, "answer", lambda *arguments, **options: results)
    inputs = processor.collate(examples((1.0, 1.0)), labels=False).inputs
    first, second = bundle.model.generate(inputs, [9, 9], {processor.eos_id})
    ids, log_probs = first.ids, first.log_probs
    assert processor.decode(ids) == "one two" and log_probs == scores[-len(ids) :] and second[:2] == results[1][:2]
    assert [processor.named_language(tokens) for tokens in (first.language, second.language)] == [code, None]


def test_layers_to_shard_are_known(bundle):
    assert bundle.wrap_layers == ("Qwen3ASRAudioEncoderLayer", "Qwen3DecoderLayer")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"lora": {"targets": ["lm_head"]}}, r"lm_head shares its weights with the token embeddings"),
        ({"max_text_tokens": 4040}, "leave no room for audio"),
        ({"config": {**CONFIG, "audio": {}}}, r"a Qwen3ASRConfig has no 'audio'; it has audio_config, text_config"),
        ({"config": {**CONFIG, "audio_config": {**CONFIG["audio_config"], "n_window": 40}}}, "n_window must be 50"),
        ({"config": {**CONFIG, "audio_config": {**CONFIG["audio_config"], "output_dim": 8}}}, r"output_dim \(8\) must"),
        (
            {"config": {**CONFIG, "text_config": {**CONFIG["text_config"], "num_hidden_layers": "x"}}},
            r"model\.config: .*layers",
        ),
    ],
)
def test_impossible_settings_are_refused(tokenizer, keys, message):
    with pytest.raises(ConfigError, match=message):
        build(tokenizer, **keys)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({}, r"needs `from` .* or `config` \(a transformers config\)"),
        ({"config": CONFIG}, "needs `tokenizer`, a folder with the processor of a Qwen3-ASR model"),
        ({"from": "x/y", "tokenizer": "z"}, "leave `tokenizer` out"),
        ({"from": "x/y", "quantize": "8bit"}, "add adapters"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        Family.model_validate({"type": "audio_llm", **keys})


def test_other_models_are_refused(tmp_path, bundle):
    parts = bundle.model.config.to_dict()
    config = {"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps({**parts, **config}))
    with pytest.raises(ConfigError, match="a Qwen3ASRForTokenClassification does not transcribe"):
        build(None, **{"from": str(tmp_path)})
    config = {"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "thinker_config": parts}))
    with pytest.raises(ConfigError, match="layout of the package qwen-asr: use the one whose name ends in -hf"):
        build(None, **{"from": str(tmp_path)})
    bundle.processor.hf.tokenizer.save_pretrained(tmp_path / "bare")  # a tokenizer alone
    with pytest.raises(ConfigError, match=r"model\.tokenizer"):
        build(tmp_path / "bare")


def test_an_export_has_each_weight_once_and_both_end_tokens(tokenizer, tmp_path):
    from transformers import AutoModelForSpeechSeq2Seq

    bundle = build(tokenizer)
    shake(bundle)
    save(bundle, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")  # it is the embeddings
    theirs = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path)
    assert theirs.config.model_type == "qwen3_asr"
    assert theirs.generation_config.eos_token_id == sorted(bundle.processor.end_ids)


def test_the_forced_aligner_is_not_read():
    kind = Family.choices()["audio_llm"]
    assert not kind.can_load({"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForTokenClassification"]})
