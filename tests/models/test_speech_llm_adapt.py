"""Freezing, adapters, gradients and the parameter table."""

import pytest
import torch
from tiny_families import trainable
from tiny_speech_llm import ENCODERS, build, examples, gradients

from stentor.errors import ConfigError
from stentor.models.parameters import parameter_table
from stentor.models.pretrained.lora import adapt, matching

torch.set_num_threads(1)

LLM_LORA = {"rank": 2, "alpha": 4, "targets": ["llm.*.q_proj", "llm.*.v_proj"]}


def table(bundle):
    return {part: (total, trained) for part, total, trained in parameter_table(bundle.model, bundle.parts())}


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_trainable_parameter_is_in_the_graph(encoder):
    """Data-parallel training waits for the gradient of each of them, whatever the batch holds."""
    bundle = build(encoder, ctc={})
    assert gradients(bundle, examples()).keys() == trainable(bundle)
    too_short = examples(seconds=(0.1, 0.1))  # no item has a CTC target
    assert len(bundle.processor.collate(too_short).inputs["ctc_rows"]) == 0
    assert gradients(bundle, too_short).keys() == trainable(bundle)
    assert "encoder.embed_positions.weight" not in trainable(bundle)  # Whisper's sinusoids


def test_a_frozen_encoder_has_no_trainable_parameter_adapters_included():
    bundle = build(lora={"rank": 2, "targets": ["*.q_proj"]}, freeze=["encoder.*"])
    assert table(bundle)["encoder"][1] == 0
    assert not any("lora" in name for name, _ in bundle.model.encoder.named_parameters())
    assert any("lora" in name for name in trainable(bundle))
    assert not any(name.startswith("encoder.") for name in gradients(bundle, examples()))


def test_a_frozen_part_runs_without_dropout_while_the_rest_trains():
    bundle = build(freeze=["encoder.*"])
    bundle.model.train()
    assert not bundle.model.encoder.training
    assert bundle.model.projector.training and bundle.model.llm.training


@pytest.mark.parametrize("parts", [("llm",), ("encoder", "llm")])
def test_a_part_with_adapters_trains_only_these(parts):
    bundle = build(lora={"rank": 2, "targets": [f"{part}.*.{p}_proj" for part in parts for p in "qv"]})
    trained = trainable(bundle)
    for part in ("encoder", "llm"):
        names = [name for name in trained if name.startswith(f"{part}.")]
        adapters = [name for name in names if "lora_" in name]
        assert len(adapters) == (2 * 2 * 2 if part in parts else 0)  # layers x targets x (A, B)
        assert (names == adapters) == (part in parts) and names
    assert any(name.startswith("projector.") for name in trained)


def test_every_target_frozen_is_refused():
    with pytest.raises(ConfigError, match=r"every layer that matches is frozen by `model\.freeze`"):
        build(lora=LLM_LORA, freeze=["llm.*"])


def test_globs_are_anchored_at_both_ends():
    names = ["encoder.layers.0.fc1.weight", "encoder.layers.1.fc1.weight", "llm.encoder.x"]
    assert matching(names, ["encoder.*"], "x") == set(names[:2])
    assert matching(names, ["encoder.layers.[1]*"], "x") == {names[1]}


def test_the_table_counts_each_parameter_once():
    bundle = build(ctc={})
    rows = table(bundle)
    assert sum(total for total, _ in rows.values()) == sum(p.numel() for p in bundle.model.parameters())
    assert list(rows) == ["encoder", "projector", "llm", "ctc_head"]


def test_adapt_works_on_any_model():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    adapt(model, None, ["a.*"])
    assert parameter_table(model) == [("a", 6, 0), ("b", 6, 6)]


def test_sharding_units_are_the_layers_of_both_parts():
    bundle = build()
    assert bundle.wrap_layers == ("Qwen2DecoderLayer", "WhisperEncoderLayer")
