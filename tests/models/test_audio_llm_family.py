"""Every model of the family, tiny: loss, batches, refusals, freezing, adapters and exports."""

import pytest
import torch
from tiny_audio_llm import LENGTHS, LORA, examples, loss, plain
from tiny_audio_llms import TINY
from tiny_families import gradients, save, shake, trainable

from stentor.errors import ConfigError, DataError
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
    return save(bundle, tmp_path_factory.mktemp("base"))


def table(bundle):
    return {name: trained for name, _, trained in parameter_table(bundle.model, bundle.parts())}


def placed(keys, tiny):
    """Keys of the section with the name of the model's audio tower in place of TOWER."""
    return {key: [glob.replace("TOWER", tiny.tower) for glob in v] if key == "freeze" else v for key, v in keys.items()}


def test_the_loss_is_the_models_own(tiny, bundle):
    items = examples(LENGTHS)
    expected = tiny.reference_loss(plain(bundle, tiny.model_class()), bundle, items)
    assert loss(bundle, items) == pytest.approx(expected, abs=1e-4)


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
    with pytest.raises(DataError, match="Cut it into shorter clips"):
        bundle.processor.collate([item], labels=False)


def test_costs_are_the_lengths_of_the_sequences(bundle):
    from lhotse import MonoCut, SupervisionSegment

    for item, seconds in zip(examples(LENGTHS), LENGTHS):
        item.context = "names" if seconds > 20 and "context" in bundle.processor.hints else None
        custom = {"context": item.context} if item.context else None
        segment = SupervisionSegment("a", "r", 0, seconds, text=item.text, language=item.language, custom=custom)
        cut = MonoCut("a", 0, seconds, 0, supervisions=[segment])
        assert bundle.processor.tokens(cut, seconds) == bundle.processor.collate([item]).tokens


def test_a_frozen_tower_has_no_trainable_parameter_adapters_included(tiny, tokenizer):
    bundle = tiny.build(tokenizer, lora={**LORA, "targets": list(tiny.queries)}, freeze=[f"{tiny.tower}.*"])
    assert table(bundle)[tiny.tower] == 0 and table(bundle)["language_model"] > 0
    tower = getattr(bundle.model.train(), tiny.tower)
    assert not any(is_adapter(n) for n, _ in tower.named_parameters()) and not tower.training
    whole = tiny.build(tokenizer, freeze=[f"{tiny.tower}.*"], gradient_checkpointing=True)
    assert trainable(whole) == gradients(whole, ITEMS).keys()  # also beside a tower without any
    free = tiny.build(tokenizer, lora={**LORA, "targets": list(tiny.queries)})
    assert all(map(is_adapter, trainable(free))) and table(free)[tiny.tower] > 0


def test_adapters_are_in_the_language_model_unless_configured_otherwise(tiny, tokenizer):
    bundle = tiny.build(tokenizer, lora={"rank": 2})
    assert [name for name, trained in table(bundle).items() if trained] == ["language_model"]
    assert len(table(bundle)) == 4 and {tiny.tower, "language_model", "lm_head"} < set(table(bundle))


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


def test_a_full_export_loads_in_transformers(tiny, tokenizer, tmp_path):
    bundle = tiny.build(tokenizer)
    shake(bundle)
    expected = loss(bundle, ITEMS)
    save(bundle, tmp_path)
    theirs = tiny.model_class().from_pretrained(tmp_path).eval()
    assert tiny.reference_loss(theirs, bundle, ITEMS) == pytest.approx(expected, 1e-5)
    processor = type(bundle.processor.hf).from_pretrained(tmp_path)
    kind = Family.choices()["audio_llm"]
    theirs.save_pretrained(tmp_path / "plain")  # any folder of transformers is read as well
    processor.save_pretrained(tmp_path / "plain")
    assert loss(kind.load(tmp_path / "plain"), ITEMS) == pytest.approx(expected, 1e-5)


def test_adapters_on_a_base_in_bfloat16_stay_apart(family, tiny, base, tmp_path):
    """Folded in, most of what small adapters learnt would be rounded away."""
    bundle = tiny.build(None, **{"from": str(base)}, lora=LORA, dtype="bfloat16")
    untrained = loss(bundle, ITEMS)
    shake(bundle, 0.02)
    bundle.model.eval()
    expected = loss(bundle, ITEMS)
    assert expected != pytest.approx(untrained, abs=1e-5)
    again = Family.choices()["audio_llm"].load(save(bundle, tmp_path))
    assert loss(again, ITEMS) == expected
    assert not trainable(again) and not again.model.training
    assert any(map(is_adapter, again.model.state_dict()))


def test_adapters_on_weights_of_our_own_are_folded_into_the_export(tiny, tokenizer, tmp_path):
    bundle = tiny.build(tokenizer, lora=LORA)
    shake(bundle, 0.5)
    expected = loss(bundle, ITEMS)
    save(bundle, tmp_path)
    assert not (tmp_path / "adapter_model.safetensors").exists()
    theirs = tiny.model_class().from_pretrained(tmp_path).eval()
    assert tiny.reference_loss(theirs, bundle, ITEMS) == pytest.approx(expected, 1e-5)


def test_another_model_is_refused(tiny, tmp_path):
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a model of the type qwen2, which is no audio language model"):
        tiny.build(None, **{"from": str(tmp_path)})
