"""Exports: what is written, what comes back, what PEFT reads, what the next stage starts from."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import save, shake, trainable
from tiny_speech_llm import ENCODERS, LLMS, TEXTS, build, examples, sums

from stentor.errors import ConfigError
from stentor.models.pretrained.parts import save_merged
from stentor.models.pretrained.weights import merged_state
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.text.tokenizers import characters

torch.set_num_threads(1)

LORA = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["llm.*.q_proj", "llm.*.v_proj"]}
WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights" / "whisper-tiny.en-rebuilt"


def logits(bundle):
    head = bundle.model(**bundle.processor.collate(examples()).inputs)["text"]
    return torch.nn.functional.linear(head["hidden"], head["weight"], head["bias"]).detach()


@pytest.fixture
def bases(tmp_path):
    """Folders of a pretrained Whisper and Qwen2 with a tokenizer, as a user has them."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

    torch.manual_seed(1)
    tokenizer = characters(["abcdefghijklmnopqrstuvwxyz \n.:ABCDEFGHIJKLMNOPQRSTUVWXYZ"])
    ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = AutoConfig.for_model(**LLMS["qwen2"], **ids)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "llm")
    tokenizer.save_pretrained(tmp_path / "llm")
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    sizes = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8, "vocab_size": 60}
    config = AutoConfig.for_model(**ENCODERS["whisper"], **sizes, **ids)
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "whisper")
    return {
        "encoder": {"from": str(tmp_path / "whisper")},
        "llm": {"from": str(tmp_path / "llm")},
        "tokenizer": None,
        "prompt": {"dropout": 0.0},
    }


@pytest.mark.parametrize("encoder", ["whisper", "parakeet", "wav2vec2-base"])
def test_a_model_from_configs_is_saved_whole(encoder, tmp_path):
    bundle = shake(build(encoder, ctc={}, freeze=["encoder.*"]))
    save(bundle, tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"} <= {
        p.name for p in tmp_path.iterdir()
    }
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "llm.lm_head.weight" not in names and "llm.model.embed_tokens.weight" in names  # tied: once
    again = SpeechLLM.load(tmp_path)
    torch.testing.assert_close(logits(again), logits(bundle), rtol=0, atol=0)
    assert sums(again, examples())["ctc"] == sums(bundle, examples())["ctc"]
    assert not any(p.requires_grad for p in again.model.parameters()) and not again.model.training
    facts = json.loads((tmp_path / "config.json").read_text())
    assert facts["model_type"] == "speech_llm" and facts["ctc_alphabet"] == "".join(sorted(set("".join(TEXTS))))


@pytest.mark.parametrize("frozen", ["encoder.*", "encoder.layers.0.*"])
def test_only_what_was_trained_of_a_base_is_written(bases, frozen, tmp_path):
    bundle = shake(build(**bases, freeze=[frozen, "llm.*"]))
    names = load_file(save(bundle, tmp_path / "export") / "model.safetensors").keys()
    assert not any(n.startswith(("llm.", frozen.rstrip("*"))) for n in names)
    parts = {"projector"} if frozen == "encoder.*" else {"projector", "encoder"}
    assert {n.partition(".")[0] for n in names} == parts
    torch.testing.assert_close(logits(SpeechLLM.load(tmp_path / "export")), logits(bundle), rtol=0, atol=0)


def test_a_fully_trained_export_needs_no_base(bases, tmp_path):
    bases["encoder"]["from"] = _with_few_positions(Path(bases["encoder"]["from"]))
    bundle = shake(build(**bases))
    assert not bundle.model.encoder.embed_positions.weight.requires_grad  # Whisper's sinusoids: fixed, yet written
    save(bundle, tmp_path / "export")
    (tmp_path / "llm").rename(tmp_path / "gone")
    (tmp_path / "whisper").rename(tmp_path / "gone2")
    torch.testing.assert_close(logits(SpeechLLM.load(tmp_path / "export")), logits(bundle), rtol=0, atol=0)


def _with_few_positions(folder):
    """Cut the positions to 100, so that trained weights are the most, as in a real Whisper."""
    from safetensors.torch import save_file

    weights = load_file(folder / "model.safetensors")
    name = "model.encoder.embed_positions.weight"
    weights[name] = weights[name][:100].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_source_positions": 100}))
    return str(folder)


def test_a_missing_base_is_named(bases, tmp_path):
    save(build(**bases, freeze=["llm.*"]), tmp_path / "export")
    (tmp_path / "llm").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"the folder .*llm does not exist"):
        SpeechLLM.load(tmp_path / "export")


def test_adapters_come_back_apart_folded_through_peft_and_merged(bases, tmp_path):
    from peft import PeftModel

    bundle = shake(build(**bases, lora=LORA, freeze=["encoder.*"]))
    folder = save(bundle, tmp_path / "export")
    names = set(load_file(folder / "model.safetensors"))
    assert {n.partition(".")[0] for n in names} == {"projector"}
    folded, apart = SpeechLLM.load(folder), SpeechLLM.load(folder, trainable=True)
    assert not any("lora_" in n for n in folded.model.state_dict())
    torch.testing.assert_close(logits(folded), logits(bundle), rtol=1e-4, atol=1e-5)
    apart.model.eval()
    torch.testing.assert_close(logits(apart), logits(bundle), rtol=0, atol=0)
    assert trainable(apart) == trainable(bundle)
    plain = build(**bases)
    plain.model.projector.load_state_dict(bundle.model.projector.state_dict())
    assert not torch.allclose(logits(plain), logits(bundle), atol=1e-3)  # the adapters do something
    loaded = PeftModel.from_pretrained(plain.model, folder).eval()
    assert loaded.peft_config["default"].r == 2
    inputs = plain.processor.collate(examples()).inputs
    states = [model(**inputs)["text"]["hidden"] for model in (loaded, bundle.model)]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)
    save_merged(bundle, tmp_path / "whole")
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    for base in ("llm", "whisper"):
        (tmp_path / base).rename(tmp_path / f"{base}-gone")
    merged = SpeechLLM.load(tmp_path / "whole")
    torch.testing.assert_close(logits(merged), logits(bundle), rtol=1e-4, atol=1e-5)
    assert merged_state(bundle).keys() == merged_state(merged).keys()


def test_the_next_stage_starts_from_the_export(bases, tmp_path):
    first = shake(build(**bases, freeze=["encoder.*"], ctc={}))
    save(first, tmp_path / "one")
    second = build(**bases, freeze=["llm.*", "encoder.*"], ctc={}, init=str(tmp_path / "one"), texts=("other words",))
    torch.testing.assert_close(logits(second), logits(first), rtol=0, atol=0)
    assert second.processor.ctc.units == first.processor.ctc.units
    save(second, tmp_path / "two")
    # frozen now, but trained before: it is not the base's any more
    assert any(n.startswith("llm.") for n in load_file(tmp_path / "two" / "model.safetensors"))
    torch.testing.assert_close(logits(SpeechLLM.load(tmp_path / "two")), logits(first), rtol=0, atol=0)


@pytest.mark.parametrize("lora", [LORA, None, {**LORA, "rank": 3}])
def test_the_next_stage_goes_on_with_adapters_or_folds_them(bases, lora, tmp_path):
    first = shake(build(**bases, lora=LORA, freeze=["encoder.*"]))
    save(first, tmp_path / "one")
    second = build(**bases, lora=lora, freeze=["encoder.*"], init=str(tmp_path / "one"))
    torch.testing.assert_close(logits(second), logits(first), rtol=1e-4, atol=1e-5)
    second = shake(second, seed=6)
    save(second, tmp_path / "two")
    torch.testing.assert_close(logits(SpeechLLM.load(tmp_path / "two")), logits(second), rtol=1e-4, atol=1e-5)


def test_init_of_another_shape_is_refused(tmp_path):
    save(build(), tmp_path)
    config = {**LLMS["qwen2"], "hidden_size": 16}
    with pytest.raises(ConfigError, match=r"model\.init: .* must describe the same parts"):
        build(llm={"config": config}, init=str(tmp_path))


def test_a_damaged_export_is_refused(tmp_path):
    from safetensors.torch import save_file

    save(build(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("projector.linear2.weight")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"1 missing, 0 unexpected, for example projector\.linear2\.weight"):
        SpeechLLM.load(tmp_path)


def test_a_base_of_equal_pad_and_end_still_learns_to_end(bases, tmp_path):
    path = tmp_path / "llm" / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["pad_token"] = settings["eos_token"]
    path.write_text(json.dumps(settings))
    bundle = build(**bases)
    tokenizer = bundle.processor.tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id != bundle.processor.pad_id
    assert bundle.model.llm.get_input_embeddings().weight.shape[0] == len(tokenizer)
    batch = bundle.processor.collate(examples())
    assert batch.inputs["targets"].tolist().count(tokenizer.eos_token_id) == 3


def test_frozen_parts_can_be_kept_in_bfloat16(bases, tmp_path):
    bundle = shake(build(**bases, lora=LORA, freeze=["encoder.*"], dtype="bfloat16"))
    kinds = {name: p.dtype for name, p in bundle.model.named_parameters()}
    assert all(
        kind == (torch.float32 if "lora_" in name or name.startswith("projector.") else torch.bfloat16)
        for name, kind in kinds.items()
    )
    full = build(**bases, lora=LORA, freeze=["encoder.*"])
    full.model.load_state_dict(bundle.model.state_dict())
    torch.testing.assert_close(
        sums(bundle, examples())["text"], sums(full, examples())["text"], rtol=2e-2, atol=0, check_dtype=False
    )
    save(bundle, tmp_path / "export")
    again = SpeechLLM.load(tmp_path / "export")
    assert next(again.model.llm.parameters()).dtype == torch.bfloat16
    torch.testing.assert_close(sums(again, examples())["text"], sums(bundle, examples())["text"], rtol=2e-2, atol=0)


def test_the_pretrained_whisper_encoder(tmp_path):
    if not WEIGHTS.is_dir():
        pytest.skip(f"needs {WEIGHTS.name} in shared/data/weights")
    from transformers.models.whisper.modeling_whisper import WhisperForConditionalGeneration

    bundle = build(encoder={"from": str(WEIGHTS)}, freeze=["encoder.*"])
    assert next(bundle.model.encoder.parameters()).dtype == torch.float32
    pretrained = WhisperForConditionalGeneration.from_pretrained(WEIGHTS, dtype=torch.float32).model.encoder.eval()
    features = torch.randn(1, 80, 3000)
    with torch.no_grad():
        ours, _ = bundle.model.frames(features, torch.tensor([3000]))
        torch.testing.assert_close(ours, pretrained(features).last_hidden_state, rtol=1e-4, atol=1e-4)
    save(bundle, tmp_path)
    assert not any(n.startswith("encoder.") for n in load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(logits(SpeechLLM.load(tmp_path)), logits(bundle), rtol=0, atol=0)
