"""Every model of the family, tiny: loss, batches, refusals, freezing, adapters and exports."""

import json
import pickle

import pytest
import torch
from tiny_audio_llm import LENGTHS, LORA, examples, export, loss, plain, shake
from tiny_audio_llms import TINY

from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss
from stentor.models.base import Family
from stentor.models.parameters import parameter_table
from stentor.models.pretrained.lora import is_adapter
from stentor.tasks.base import Task

torch.set_num_threads(1)

ITEMS = examples((0.5, 31.0))


@pytest.fixture(scope="module", params=TINY)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(family):
    return TINY[family]


@pytest.fixture(scope="module")
def tokenizer(tiny, tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def bundle(tiny, tokenizer):
    return tiny.build(tokenizer)


@pytest.fixture(scope="module")
def base(bundle, tmp_path_factory):
    """The folder of a pretrained model."""
    return export(bundle, tmp_path_factory.mktemp("base"))


def trainable(bundle):
    return {name for name, p in bundle.model.named_parameters() if p.requires_grad}


def table(bundle):
    return {name: trained for name, _, trained in parameter_table(bundle.model, bundle.parts())}


def placed(keys, tiny):
    """Keys of the section with the name of the model's audio tower in place of TOWER."""
    return {key: [glob.replace("TOWER", tiny.tower) for glob in v] if key == "freeze" else v for key, v in keys.items()}


def gradients(bundle):
    bundle.model.train()
    outputs = bundle.model(**bundle.processor.collate(ITEMS).inputs)
    Loss.model_validate("cross_entropy").sum(**outputs["text"]).backward()
    return {name: p.grad for name, p in bundle.model.named_parameters() if p.grad is not None}


def test_the_loss_is_the_models_own(tiny, bundle):
    items = examples(LENGTHS)
    expected = tiny.reference_loss(plain(bundle, tiny.model_class()), bundle, items)
    assert loss(bundle, items) == pytest.approx(expected, abs=1e-4)


def test_a_batch_is_its_items(bundle):
    items = examples(LENGTHS)
    assert loss(bundle, items) == pytest.approx(sum(loss(bundle, [item]) for item in items), abs=1e-4)


def test_the_end_token_is_learnt(bundle):
    targets = bundle.processor.collate(examples((1.0, 2.0))).inputs["targets"].tolist()
    assert targets.count(bundle.processor.eos_id) == 2 and targets[-1] == bundle.processor.eos_id
    assert bundle.processor.pad_id not in targets


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
    longer = bundle.processor.positions(round((longest + 1) * 16000))
    assert bundle.processor.positions(round(longest * 16000)) < 4096 - 64 < longer + 100  # whole windows in some
    assert not bundle.processor.collate(examples((longest,))).dropped
    (item,) = examples((longest + 1,))
    assert bundle.processor.collate([item]).dropped[0][1] == "too_long"
    with pytest.raises(DataError, match="Cut longer audio into windows first"):
        bundle.processor.collate([item], labels=False)


def test_costs_are_the_lengths_of_the_sequences(bundle):
    from lhotse import MonoCut, SupervisionSegment

    for item, seconds in zip(examples(LENGTHS), LENGTHS):
        item.context = "names" if seconds > 20 and "context" in bundle.processor.hints else None
        custom = {"context": item.context} if item.context else None
        segment = SupervisionSegment("a", "r", 0, seconds, text=item.text, language=item.language, custom=custom)
        cut = MonoCut("a", 0, seconds, 0, supervisions=[segment])
        assert bundle.processor.tokens(cut, seconds) == bundle.processor.collate([item]).tokens


def test_the_processor_pickles(bundle):
    again = pickle.loads(pickle.dumps(bundle.processor))
    items = examples((1.0, 31.0))
    ours, theirs = bundle.processor.collate(items).inputs, again.collate(items).inputs
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_predictions_of_a_batch_are_those_of_its_items(bundle):
    task = Task.model_validate("transcribe")
    items = examples((0.5, 5.0, 30.1))
    together = task.predict(bundle, items)
    for item, output in zip(items, together):
        (alone,) = task.predict(bundle, [item])
        assert alone["text"] == output["text"] and alone["log_prob"] == pytest.approx(output["log_prob"], abs=1e-3)


def test_a_frozen_tower_has_no_trainable_parameter_adapters_included(tiny, tokenizer):
    bundle = tiny.build(tokenizer, lora={**LORA, "targets": list(tiny.queries)}, freeze=[f"{tiny.tower}.*"])
    assert table(bundle)[tiny.tower] == 0 and table(bundle)["language_model"] > 0
    tower = getattr(bundle.model.train(), tiny.tower)
    assert not any(is_adapter(n) for n, _ in tower.named_parameters()) and not tower.training


def test_with_adapters_nothing_else_is_trained(tiny, tokenizer):
    bundle = tiny.build(tokenizer, lora={**LORA, "targets": list(tiny.queries)})
    assert trainable(bundle) and all(map(is_adapter, trainable(bundle)))
    assert table(bundle)[tiny.tower] > 0


def test_adapters_are_in_the_language_model_unless_configured_otherwise(tiny, tokenizer):
    bundle = tiny.build(tokenizer, lora={"rank": 2})
    assert [name for name, trained in table(bundle).items() if trained] == ["language_model"]
    assert len(table(bundle)) == 4 and {tiny.tower, "language_model", "lm_head"} < set(table(bundle))


@pytest.mark.parametrize("keys", [{}, {"lora": LORA}, {"freeze": ["TOWER.*"]}])
def test_every_trainable_parameter_gets_a_gradient(tiny, tokenizer, keys):
    bundle = tiny.build(tokenizer, **placed(keys, tiny), gradient_checkpointing=True)
    trained = trainable(bundle)
    assert trained == gradients(bundle).keys()
    assert "audio_tower.embed_positions.weight" not in trained
    assert any(n.startswith(f"{tiny.tower}.") for n in trained) == (not keys)


def test_gradient_checkpointing_changes_nothing(tiny, tokenizer):
    expected, saving = (gradients(tiny.build(tokenizer, gradient_checkpointing=on)) for on in (False, True))
    assert all(torch.allclose(expected[n], saving[n], atol=1e-6) for n in expected)


@pytest.mark.parametrize(
    "keys, small",
    [
        ({"lora": LORA}, None),
        ({"freeze": ["TOWER.*"]}, {"TOWER"}),
        ({"freeze": ["language_model.*"]}, {"language_model"}),
    ],
)
def test_parts_that_are_not_trained_may_be_in_bfloat16(tiny, tokenizer, keys, small):
    keys = placed(keys, tiny)
    expected = loss(tiny.build(tokenizer, **keys), ITEMS)
    bundle = tiny.build(tokenizer, **keys, dtype="bfloat16")
    small = set(bundle.parts()) if small is None else {name.replace("TOWER", tiny.tower) for name in small}
    kinds = {n: p.dtype for n, p in bundle.model.named_parameters()}
    parts = {n.split(".")[0] for n in kinds}  # without the head where it is the embeddings
    assert {n.split(".")[0] for n, kind in kinds.items() if kind == torch.bfloat16} == small & parts
    assert all(kinds[n] == torch.float32 for n in trainable(bundle))
    assert loss(bundle, ITEMS) == pytest.approx(expected, rel=0.01)
    assert len(Task.model_validate("transcribe").predict(bundle, ITEMS)) == 2


def test_the_base_may_be_kept_in_8_bits(tiny, tokenizer):
    expected = loss(tiny.build(tokenizer, lora=LORA), ITEMS)
    bundle = tiny.build(tokenizer, lora=LORA, quantize="8bit")
    codes = {n.split(".")[0] for n, p in bundle.model.named_parameters() if p.dtype == torch.int8}
    assert codes == {"language_model"}
    assert loss(bundle, ITEMS) == pytest.approx(expected, rel=0.01)


def test_a_full_export_loads_in_transformers_and_here(family, tiny, tokenizer, tmp_path):
    bundle = tiny.build(tokenizer)
    shake(bundle)
    expected = loss(bundle, ITEMS)
    export(bundle, tmp_path)
    theirs = tiny.model_class().from_pretrained(tmp_path).eval()
    assert tiny.reference_loss(theirs, bundle, ITEMS) == pytest.approx(expected, 1e-5)
    processor = type(bundle.processor.hf).from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (kind,) = (kind for kind in Family.choices().values() if kind.can_load(config))
    assert kind is Family.choices()["audio_llm"]
    for training in (False, True):
        again = kind.load(tmp_path, training)
        again.model.eval()
        assert loss(again, ITEMS) == pytest.approx(expected, 1e-5)
        assert bool(trainable(again)) == training
    theirs.save_pretrained(tmp_path / "plain")  # any folder of transformers is read as well
    processor.save_pretrained(tmp_path / "plain")
    assert loss(kind.load(tmp_path / "plain"), ITEMS) == pytest.approx(expected, 1e-5)


@pytest.mark.long
def test_an_adapter_export_is_small_and_loads_in_peft_and_here(family, tiny, tokenizer, base, tmp_path):
    from peft import PeftModel

    origin, theirs = {"from": str(base)}, tiny.model_class()
    bundle = tiny.build(None, **origin, lora=LORA)
    shake(bundle, 0.5)
    expected = loss(bundle, ITEMS)
    folder = export(bundle, tmp_path / "adapter")
    assert not list(folder.glob("model*.safetensors"))
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    peft = PeftModel.from_pretrained(theirs.from_pretrained(base), folder).eval()
    assert tiny.reference_loss(peft, bundle, ITEMS) == pytest.approx(expected, 1e-5)
    untrained = theirs.from_pretrained(base).eval()
    assert tiny.reference_loss(untrained, bundle, ITEMS) != pytest.approx(expected, 1e-3)
    for training in (False, True):
        again = Family.choices()["audio_llm"].load(folder, training)
        again.model.eval()
        assert loss(again, ITEMS) == pytest.approx(expected, 1e-5)
        assert any(is_adapter(n) for n, _ in again.model.named_parameters()) == training
    bundle.family.save_merged(bundle, tmp_path / "merged")
    merged = theirs.from_pretrained(tmp_path / "merged").eval()
    assert tiny.reference_loss(merged, bundle, ITEMS) == pytest.approx(expected, 1e-4)
    further = tiny.build(None, **origin, lora=LORA, init=str(folder))  # goes on with the adapters
    assert loss(further, ITEMS) == pytest.approx(expected, 1e-5)
    full = tiny.build(None, **origin, init=str(folder))  # folds them in
    assert loss(full, ITEMS) == pytest.approx(expected, 1e-4)
    started = tiny.build(tokenizer, seed=3, init=str(tmp_path / "merged"))  # tied weights come along
    assert loss(started, ITEMS) == pytest.approx(expected, 1e-4)


def test_adapters_on_a_base_in_bfloat16_stay_apart(family, tiny, base, tmp_path):
    """Folded in, most of what small adapters learnt would be rounded away."""
    bundle = tiny.build(None, **{"from": str(base)}, lora=LORA, dtype="bfloat16")
    untrained = loss(bundle, ITEMS)
    shake(bundle, 0.02)
    bundle.model.eval()
    expected = loss(bundle, ITEMS)
    assert expected != pytest.approx(untrained, abs=1e-5)
    again = Family.choices()["audio_llm"].load(export(bundle, tmp_path))
    assert loss(again, ITEMS) == expected
    assert not trainable(again) and not again.model.training
    assert any(map(is_adapter, again.model.state_dict()))


def test_adapters_on_weights_of_our_own_are_folded_into_the_export(tiny, tokenizer, tmp_path):
    bundle = tiny.build(tokenizer, lora=LORA)
    shake(bundle, 0.5)
    expected = loss(bundle, ITEMS)
    export(bundle, tmp_path)
    assert not (tmp_path / "adapter_model.safetensors").exists()
    theirs = tiny.model_class().from_pretrained(tmp_path).eval()
    assert tiny.reference_loss(theirs, bundle, ITEMS) == pytest.approx(expected, 1e-5)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"freeze": ["tower.*"]}, r"model\.freeze: 'tower\.\*' matches nothing"),
        ({"lora": {"targets": ["language_model.*.q"]}}, r"model\.lora\.targets: .* matches nothing"),
        ({"init": "nowhere"}, r"nowhere is no export of a run with a model of type audio_llm"),
    ],
)
def test_impossible_settings_are_refused(tiny, tokenizer, keys, message):
    with pytest.raises(ConfigError, match=message):
        tiny.build(tokenizer, **keys)


def test_another_model_is_refused(tiny, tmp_path):
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a model of the type qwen2, which is no audio language model"):
        tiny.build(None, **{"from": str(tmp_path)})
    with pytest.raises(ConfigError, match="the folder /no/where does not exist"):
        tiny.build(None, **{"from": "/no/where"})
