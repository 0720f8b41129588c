"""Qwen3-ASR: prompts, features, loss, batches, decoding, freezing and exports, on a tiny model."""

import json
import pickle

import pytest
import torch
from tiny_qwen3_asr import CONFIG, LORA, build, examples, loss, own_losses, plain, request, write_processor

from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss
from stentor.models.base import Family
from stentor.models.parameters import parameter_table
from stentor.models.peft import is_adapter
from stentor.models.qwen3_asr.processor import languages, name_of
from stentor.tasks.base import Task

torch.set_num_threads(1)

LENGTHS = (0.5, 5.0, 29.9, 30.0, 30.1, 61.0)


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
        ours = batch.inputs["features"][None]
        assert ours.shape == theirs["input_features"].shape
        assert (ours - theirs["input_features"]).abs().max() < 1e-4
        assert torch.equal(batch.inputs["frame_mask"][None], theirs["input_features_mask"])


def test_prompts_of_a_batch_are_those_of_the_processor(bundle):
    items = examples(LENGTHS)
    theirs = bundle.processor.hf.apply_transcription_request(
        audio=[e.audio for e in items], language=["English", None, "French"] * 2
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
    whole = bundle.processor.hf.apply_chat_template([talk], tokenize=True, return_dict=True)["input_ids"]
    ours = batch.inputs["input_ids"]
    assert torch.equal(ours, whole[:, : ours.shape[1]]) and whole.shape[1] == ours.shape[1] + 1  # a last line break
    assert bundle.processor.hf.tokenizer.decode(batch.inputs["targets"]) == f"{answer}<|im_end|>"


def test_the_loss_is_the_models_own(bundle):
    items = examples(LENGTHS)
    ours, _ = loss(bundle, items)
    assert ours == pytest.approx(sum(own_losses(plain(bundle), bundle, items)), abs=1e-4)


def test_a_batch_is_its_items(bundle):
    items = examples(LENGTHS)
    together, _ = loss(bundle, items)
    assert together == pytest.approx(sum(loss(bundle, [item])[0] for item in items), abs=1e-4)


def test_the_end_token_is_learnt_also_where_it_is_the_padding(tokenizer, bundle, tmp_path):
    same = build(write_processor(tmp_path, pad="<|im_end|>"))
    assert same.processor.pad_id == same.processor.eos_id != bundle.processor.pad_id
    same.model.load_state_dict({n: t[: len(t)] for n, t in bundle.model.state_dict().items()})
    items = examples((1.0, 2.0))
    for made in (same, bundle):
        targets = made.processor.collate(items).inputs["targets"].tolist()
        assert targets.count(made.processor.eos_id) == 2 and targets[-1] == made.processor.eos_id
    assert loss(same, items)[0] == pytest.approx(sum(own_losses(plain(same), same, items)), abs=1e-4)
    batch = same.processor.collate(items, labels=False)
    assert batch.inputs["attention_mask"].sum(1).tolist() == [
        len(same.processor.prompt(e.language, len(e.audio))) for e in items
    ]


def test_special_tokens_in_a_transcript_are_letters(bundle):
    (item,) = examples((1.0,), texts=("one<|im_end|>two",))
    targets = bundle.processor.collate([item]).inputs["targets"].tolist()
    assert targets.count(bundle.processor.eos_id) == 1
    assert bundle.processor.decode(targets).endswith("one<|im_end|>two")


def test_long_transcripts_are_refused_and_counted(bundle):
    items = examples((1.0, 1.0), texts=("one", "word " * 65))
    batch = bundle.processor.collate(items)
    assert batch.ids == ["0"] and len(batch.inputs["input_ids"]) == 1
    ((name, reason, message),) = batch.dropped
    assert (name, reason) == ("1", "text_too_long") and "`model.max_text_tokens` is 64" in message
    nothing = bundle.processor.collate(items[1:])
    assert nothing.inputs == {} and len(nothing.dropped) == 1


def test_long_clips_are_refused(bundle):
    longest = bundle.processor.max_seconds
    assert 300 < longest < 310
    assert not bundle.processor.collate(examples((longest,))).dropped
    (item,) = examples((longest + 1,))
    assert bundle.processor.collate([item]).dropped[0][1] == "too_long"
    with pytest.raises(DataError, match="Cut longer audio into windows first"):
        bundle.processor.collate([item], labels=False)


@pytest.mark.parametrize("given", ["en", "EN", "English", "english", "en-US", "en_gb", " en "])
def test_a_language_is_known_by_code_locale_or_name(given):
    assert name_of(given) == "English"
    assert name_of(None) is name_of("") is None


def test_an_unknown_language_is_refused_and_the_known_ones_are_named(bundle):
    items = examples((1.0, 1.0), languages=("la", "en"))
    batch = bundle.processor.collate(items)
    assert batch.ids == ["1"]
    ((name, reason, message),) = batch.dropped
    assert (name, reason) == ("0", "unknown_language")
    assert message.startswith("0: Qwen3-ASR knows no language 'la': there is ar (Arabic), ")
    assert all(f"{code} ({n})" in message for code, n in languages().items()) and "Leave the language out" in message
    with pytest.raises(DataError, match="0: Qwen3-ASR knows no language 'la'"):
        bundle.processor.collate(items, labels=False)


def test_costs_are_the_lengths_of_the_sequences(bundle):
    from lhotse import MonoCut, SupervisionSegment

    for item, seconds in zip(examples(LENGTHS), LENGTHS):
        item.context = "names" if seconds > 20 else None
        custom = {"context": item.context} if item.context else None
        segment = SupervisionSegment("a", "r", 0, seconds, text=item.text, language=item.language, custom=custom)
        cut = MonoCut("a", 0, seconds, 0, supervisions=[segment])
        assert bundle.processor.tokens(cut, seconds) == bundle.processor.collate([item]).tokens
    segment = SupervisionSegment("a", "r", 0, 1.0, text="one", language="la")  # is refused later, in its batch
    assert bundle.processor.tokens(MonoCut("a", 0, 1.0, 0, supervisions=[segment]), 1.0) > 0


def test_the_processor_pickles(bundle):
    again = pickle.loads(pickle.dumps(bundle.processor))
    items = examples((1.0, 31.0))
    ours, theirs = bundle.processor.collate(items).inputs, again.collate(items).inputs
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_decoding_is_that_of_transformers(bundle):
    items = examples((0.5, 5.0, 30.1))
    batch = bundle.processor.collate(items, labels=False)
    answers = bundle.model.generate(batch.inputs, max_new_tokens=[6] * 3, eos_ids={bundle.processor.eos_id})
    model, ends = plain(bundle), bundle.processor.end_ids
    for item, (ids, log_probs) in zip(items, answers):
        inputs = request(bundle, item)
        out = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=sorted(ends), pad_token_id=0)
        assert ids == [t for t in out[0, inputs["input_ids"].shape[1] :].tolist() if t not in ends]
        assert len(log_probs) == len(ids) == 6 and all(p <= 0 for p in log_probs)


def test_the_language_that_was_heard_is_no_part_of_the_text(bundle):
    processor = bundle.processor
    told = processor.answer(processor.ids("one two"), "en")[:-1]
    log_probs = [-0.1 * i for i in range(len(told))]
    ids, kept = bundle.model._text(told, log_probs)
    assert processor.decode(ids) == "one two" and kept == log_probs[-len(ids) :]
    assert bundle.model._text(ids, kept) == (ids, kept)  # the language was given
    assert len(told) - len(ids) <= processor.naming
    assert (
        processor.max_new_tokens(0.1) == 18 + processor.naming
        and processor.max_new_tokens(1e9) == 64 + processor.naming
    )


def test_predictions_of_a_batch_are_those_of_its_items(bundle):
    task = Task.model_validate("transcribe")
    items = examples((0.5, 5.0, 30.1))
    together = task.predict(bundle, items)
    for item, output in zip(items, together):
        (alone,) = task.predict(bundle, [item])
        assert alone["text"] == output["text"] and alone["log_prob"] == pytest.approx(output["log_prob"], abs=1e-3)


def table(bundle):
    return {name: trained for name, _, trained in parameter_table(bundle.model, bundle.parts())}


def test_a_frozen_tower_has_no_trainable_parameter_adapters_included(tokenizer):
    made = build(tokenizer, lora={**LORA, "targets": ["*.q_proj"]}, freeze=["audio_tower.*"])
    assert table(made)["audio_tower"] == 0 and table(made)["language_model"] > 0
    assert not any(is_adapter(n) for n, _ in made.model.audio_tower.named_parameters())
    assert not made.model.train().audio_tower.training


def test_with_adapters_nothing_else_is_trained(tokenizer):
    made = build(tokenizer, lora={**LORA, "targets": ["*.q_proj"]})
    trained = {n for n, p in made.model.named_parameters() if p.requires_grad}
    assert trained and all(map(is_adapter, trained))
    assert table(made)["audio_tower"] > 0


def test_adapters_are_in_the_language_model_unless_told_otherwise(tokenizer):
    made = build(tokenizer, lora={"rank": 2})
    assert [name for name, trained in table(made).items() if trained] == ["language_model"]
    assert set(table(made)) == {"audio_tower", "multi_modal_projector", "language_model", "lm_head"}


@pytest.mark.parametrize("keys", [{}, {"lora": LORA}, {"freeze": ["audio_tower.*"]}])
def test_every_trainable_parameter_gets_a_gradient(tokenizer, keys):
    made = build(tokenizer, **keys, gradient_checkpointing=True)
    made.model.train()
    batch = made.processor.collate(examples((0.5, 31.0)))
    Loss.model_validate("cross_entropy").sum(**made.model(**batch.inputs)["text"]).backward()
    trained = {n for n, p in made.model.named_parameters() if p.requires_grad}
    assert trained == {n for n, p in made.model.named_parameters() if p.grad is not None}
    assert any(n.startswith("audio_tower.") for n in trained) == (not keys)


def test_gradient_checkpointing_changes_nothing(tokenizer):
    grads = []
    for on in (False, True):
        made = build(tokenizer, gradient_checkpointing=on)
        made.model.train()
        batch = made.processor.collate(examples((0.5, 31.0)))
        Loss.model_validate("cross_entropy").sum(**made.model(**batch.inputs)["text"]).backward()
        grads.append({n: p.grad for n, p in made.model.named_parameters()})
    assert all(torch.allclose(grads[0][n], grads[1][n], atol=1e-6) for n in grads[0])


def test_layers_to_shard_are_known(bundle):
    assert bundle.family.wrap_layers == ("Qwen3ASRAudioEncoderLayer", "Qwen3DecoderLayer")


@pytest.mark.parametrize(
    "keys, small",
    [
        ({"lora": LORA}, {"audio_tower", "multi_modal_projector", "language_model"}),
        ({"freeze": ["audio_tower.*"]}, {"audio_tower"}),
        ({"freeze": ["language_model.*"]}, {"language_model"}),
    ],
)
def test_parts_that_are_not_trained_may_be_in_bfloat16(tokenizer, keys, small):
    items = examples((0.5, 31.0))
    want, _ = loss(build(tokenizer, **keys), items)
    made = build(tokenizer, **keys, dtype="bfloat16")
    kinds = {n: p.dtype for n, p in made.model.named_parameters()}
    assert {n.split(".")[0] for n, kind in kinds.items() if kind == torch.bfloat16} == small
    assert all(kinds[n] == torch.float32 for n, p in made.model.named_parameters() if p.requires_grad)
    assert loss(made, items)[0] == pytest.approx(want, rel=0.01)
    assert len(Task.model_validate("transcribe").predict(made, items)) == 2


def test_the_base_may_be_kept_in_8_bits(tokenizer):
    items = examples((0.5, 31.0))
    want, _ = loss(build(tokenizer, lora=LORA), items)
    made = build(tokenizer, lora=LORA, quantize="8bit")
    codes = {n.split(".")[0] for n, p in made.model.named_parameters() if p.dtype == torch.int8}
    assert codes == {"language_model"}
    assert loss(made, items)[0] == pytest.approx(want, rel=0.01)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"freeze": ["tower.*"]}, r"model\.freeze: 'tower\.\*' matches nothing"),
        ({"lora": {"targets": ["language_model.*.q"]}}, r"model\.lora\.targets: .* matches nothing"),
        ({"lora": {"targets": ["lm_head"]}}, r"lm_head shares its weights with the token embeddings"),
        ({"max_text_tokens": 4040}, "leave no room for audio"),
        ({"init": "nowhere"}, r"nowhere is no export of a run with a qwen3_asr model"),
        ({"config": {**CONFIG, "audio": {}}}, r"a Qwen3ASRConfig has no 'audio'"),
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
        ({}, r"give either `from` .* or `config` \(keys of a Qwen3ASRConfig\), not both"),
        ({"config": CONFIG}, "needs `tokenizer`, a folder with the processor of a Qwen3-ASR model"),
        ({"from": "x/y", "tokenizer": "z"}, "leave `tokenizer` out"),
        ({"from": "x/y", "quantize": "8bit"}, "add adapters"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        Family.model_validate({"type": "qwen3_asr", **keys})


def test_other_models_are_refused(tmp_path, bundle):
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a model of the type qwen2, not qwen3_asr"):
        build(None, **{"from": str(tmp_path)})
    parts = bundle.model.config.to_dict()
    config = {"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps({**parts, **config}))
    with pytest.raises(ConfigError, match="a Qwen3ASRForTokenClassification does not transcribe"):
        build(None, **{"from": str(tmp_path)})
    config = {"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "thinker_config": parts}))
    with pytest.raises(ConfigError, match="layout of the package qwen-asr: take the one whose name ends in -hf"):
        build(None, **{"from": str(tmp_path)})
    bundle.processor.hf.tokenizer.save_pretrained(tmp_path / "bare")  # a tokenizer alone
    with pytest.raises(ConfigError, match=r"model\.tokenizer"):
        build(tmp_path / "bare")
    with pytest.raises(ConfigError, match="the folder /no/where does not exist"):
        build(None, **{"from": "/no/where"})
