"""Exports of Qwen3-ASR, on a tiny model: read back here, by transformers and by PEFT."""

import json

import pytest
import torch
from tiny_qwen3_asr import LORA, build, examples, loss, own_losses, write_processor

from stentor.models.base import Family
from stentor.models.peft import is_adapter

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_processor(tmp_path_factory.mktemp("processor"))


def shake(bundle, size=0.05):
    """Change what is trained, as training would."""
    torch.manual_seed(1)
    for parameter in bundle.model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(size * torch.randn_like(parameter))


def export(bundle, folder):
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {n: state[n].clone() for n in bundle.family.exported_tensor_names(bundle)}, folder)
    return folder


def test_a_full_export_loads_in_transformers_and_here(tokenizer, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForSpeechSeq2Seq, Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    made, items = build(tokenizer), examples((0.5, 31.0))
    shake(made)
    want, _ = loss(made, items)
    export(made, tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")  # it is the embeddings
    theirs = Qwen3ASRForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert sum(own_losses(theirs, made, items)) == pytest.approx(want, 1e-5)
    assert theirs.generation_config.eos_token_id == sorted(made.processor.end_ids)
    assert Qwen3ASRProcessor.from_pretrained(tmp_path).audio_token_id == made.processor.audio_id
    config = json.loads((tmp_path / "config.json").read_text())
    kinds = [kind for kind in Family.choices().values() if kind.can_load(config)]
    assert kinds == [Family.choices()["qwen3_asr"]]
    for trainable in (False, True):
        again = kinds[0].load(tmp_path, trainable)
        again.model.eval()
        assert loss(again, items)[0] == pytest.approx(want, 1e-5)
        assert any(p.requires_grad for p in again.model.parameters()) == trainable
    theirs.save_pretrained(tmp_path / "own")  # any folder of transformers is read as well
    made.processor.hf.save_pretrained(tmp_path / "own")
    assert loss(kinds[0].load(tmp_path / "own"), items)[0] == pytest.approx(want, 1e-5)
    assert AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path).config.model_type == "qwen3_asr"


def test_the_forced_aligner_is_not_read():
    kind = Family.choices()["qwen3_asr"]
    assert not kind.can_load({"model_type": "qwen3_asr", "architectures": ["Qwen3ASRForTokenClassification"]})


def test_an_adapter_export_is_small_and_loads_in_peft_and_here(tokenizer, tmp_path):
    from peft import PeftModel
    from transformers import Qwen3ASRForConditionalGeneration as Theirs

    items = examples((0.5, 31.0))
    base = export(build(tokenizer), tmp_path / "base")
    made = build(None, **{"from": str(base)}, lora=LORA)
    shake(made, 0.5)
    want, _ = loss(made, items)
    folder = export(made, tmp_path / "adapter")
    assert not list(folder.glob("model*.safetensors"))
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    peft = PeftModel.from_pretrained(Theirs.from_pretrained(base), folder).eval()
    assert sum(own_losses(peft, made, items)) == pytest.approx(want, 1e-5)
    assert sum(own_losses(Theirs.from_pretrained(base).eval(), made, items)) != pytest.approx(want, 1e-3)
    for trainable in (False, True):
        again = Family.choices()["qwen3_asr"].load(folder, trainable)
        again.model.eval()
        assert loss(again, items)[0] == pytest.approx(want, 1e-5)
        assert any(is_adapter(n) for n, _ in again.model.named_parameters()) == trainable
    made.family.save_merged(made, tmp_path / "merged")
    merged = Theirs.from_pretrained(tmp_path / "merged").eval()
    assert sum(own_losses(merged, made, items)) == pytest.approx(want, 1e-4)
    further = build(None, **{"from": str(base)}, lora=LORA, init=str(folder))  # goes on with the adapters
    assert loss(further, items)[0] == pytest.approx(want, 1e-5)
    full = build(None, **{"from": str(base)}, init=str(folder))  # folds them in
    assert loss(full, items)[0] == pytest.approx(want, 1e-4)
    started = build(tokenizer, seed=3, init=str(tmp_path / "merged"))  # tied weights come along
    assert loss(started, items)[0] == pytest.approx(want, 1e-4)


def test_adapters_on_weights_of_our_own_are_folded_into_the_export(tokenizer, tmp_path):
    from transformers import Qwen3ASRForConditionalGeneration

    made, items = build(tokenizer, lora=LORA), examples((0.5, 31.0))
    shake(made, 0.5)
    want, _ = loss(made, items)
    export(made, tmp_path)
    assert not (tmp_path / "adapter_model.safetensors").exists()
    theirs = Qwen3ASRForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert sum(own_losses(theirs, made, items)) == pytest.approx(want, 1e-5)
