"""Base weights in 8 and 4 bits: the same function with rounded weights, in every family that takes adapters."""

import json
import sys

import pytest
import tiny_families
import torch
from tiny_families import KINDS, clips, shake
from tiny_runs import run
from torch import nn

from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from stentor.models.pretrained.lora import Lora, inject, is_adapter
from stentor.models.pretrained.quantize import BYTES, dequantized, quantisable, quantize
from stentor.models.pretrained.quantized_layers import QuantizedLinear
from stentor.models.pretrained.weights import merged_state, read_weights

torch.set_num_threads(1)

BITS = ("8bit", "4bit")
RANKS = {"rank": 2, "alpha": 4, "dropout": 0.0}
FAMILIES = ("qwen3_asr", "whisper", "ctc_wav2vec2", "ctc_wavlm", "parakeet_tdt", "speech_llm")


@pytest.fixture(autouse=True)
def kernels(request):
    if "4bit" in request.node.name:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


def build(kind, folder, **keys):
    """A bundle in evaluation mode whose adapters have moved."""
    return shake(KINDS[kind].build(folder, lora=RANKS, **keys), only=is_adapter)


def items(bundle):
    return clips(bundle, 1.0, 2.0, language="en")


def loss(bundle):
    return tiny_families.loss(bundle, items(bundle))


def layers(bundle):
    return {n: m for n, m in bundle.model.named_modules() if isinstance(m, QuantizedLinear)}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_it_computes_what_rounded_weights_compute(kind, bits, tmp_path):
    quantized, plain = build(kind, tmp_path, quantize=bits), build(kind, tmp_path)
    before = loss(plain).item()
    assert len(layers(quantized)) >= 8
    with torch.no_grad():
        for name, layer in layers(quantized).items():
            twin = plain.model.get_submodule(name)
            assert type(twin) is nn.Linear and layer.codes.element_size() == 1 and not layer.codes.requires_grad
            assert layer.codes.numel() == twin.weight.numel() // (1 if bits == "8bit" else 2)
            twin.weight.copy_(layer.weight)
    torch.testing.assert_close(loss(quantized), loss(plain), rtol=1e-5, atol=1e-4)
    assert abs(loss(quantized).item() - before) > 1e-4, "nothing was rounded"
    ours, theirs = (tiny_families.gradients(b, items(b)) for b in (quantized, plain))
    assert set(ours) == set(theirs) and any(map(is_adapter, ours))
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_quantized(kind, tmp_path):
    """Every frozen linear layer of the parts with adapters; never a head, an embedding, or a part without adapters."""
    bundle = build(kind, tmp_path, quantize="8bit")
    adapted = {n.partition(".")[0] for n, _ in bundle.model.named_parameters() if is_adapter(n)}
    if adapted == {"recogniser"}:
        adapted = {f"recogniser.{n.split('.')[1]}" for n, _ in bundle.model.named_parameters() if is_adapter(n)}
    left = [
        n
        for n, m in bundle.model.named_modules()
        if type(m) is nn.Linear and n.startswith(tuple(adapted)) and not m.weight.requires_grad
    ]
    assert all(n.endswith("lm_head") for n in left), left
    assert all(n.startswith(tuple(adapted)) for n in layers(bundle))
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32, torch.int8}
    assert not any(p.dtype == torch.int8 and p.requires_grad for p in bundle.model.parameters())


@pytest.mark.parametrize("bits", BITS)
def test_the_rounding_is_small_and_the_memory_is_as_promised(bits):
    torch.manual_seed(0)
    linear = nn.Linear(256, 96)
    layer = QuantizedLinear(linear, bits, torch.device("cpu"))
    error = (layer.weight - linear.weight).abs()
    if bits == "8bit":
        assert torch.all(error <= linear.weight.abs().amax(1, keepdim=True) / 127 / 2 * 1.001)
        stored_bytes = layer.codes.nbytes + layer.scale.nbytes
    else:
        # The widest gap between two NormalFloat values is 0.304 of the largest weight in the block, of 64.
        assert error.max() < 0.153 * linear.weight.abs().max()
        state = layer.scale
        stored_bytes = layer.codes.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    promised = linear.weight.numel() * BYTES[bits] + (4 * linear.out_features if bits == "8bit" else 0)
    assert stored_bytes == pytest.approx(promised, rel=0.01)
    assert layer.weight.dtype == torch.float32 and layer.expand(torch.bfloat16).dtype == torch.bfloat16
    x = torch.randn(3, 256)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, linear.bias))


@pytest.mark.parametrize("bits", BITS)
def test_it_computes_in_the_type_of_autocast_and_keeps_only_the_codes(bits):
    layer = QuantizedLinear(nn.Linear(64, 64), bits, torch.device("cpu"))
    x = torch.randn(2, 5, 64, requires_grad=True)
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        torch.autocast("cpu", torch.bfloat16),
    ):
        y = layer(x)
    assert y.dtype == torch.bfloat16 and not saved
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand_as(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("bits", BITS)
def test_state_dicts_keep_their_names(bits, tmp_path):
    quantized, plain = build("whisper", tmp_path, quantize=bits), build("whisper", tmp_path)
    assert set(quantized.model.state_dict()) == set(plain.model.state_dict())
    assert [n for n, _ in quantized.model.named_parameters()] == [n for n, _ in plain.model.named_parameters()]
    state = quantized.model.state_dict()
    expanded = dequantized(quantized.model, state)
    for name, layer in layers(quantized).items():
        assert torch.equal(expanded[f"{name}.weight"], layer.weight)
        assert torch.equal(state[f"{name}.weight"], layer.codes)
    codes = {f"{name}.weight" for name in layers(quantized)}
    assert expanded.keys() - codes <= set(state)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_merged_exports_hold_plain_weights(kind, bits, tmp_path):
    """The rounded weights that were trained with, adapters folded in: the same answers, and nothing of ours needed."""
    bundle = build(kind, tmp_path, quantize=bits)
    bundle.family.save_merged(bundle, tmp_path / "merged")
    weights, adapters = read_weights(tmp_path / "merged")
    assert not adapters and {t.dtype for t in weights.values()} <= {torch.float32, torch.int64}
    again = type(bundle.family).load(tmp_path / "merged")
    torch.testing.assert_close(loss(again), loss(bundle), rtol=1e-4, atol=1e-3)
    assert set(merged_state(bundle)) == {
        n.replace(".base_layer.", ".") for n in bundle.model.state_dict() if not is_adapter(n)
    }


@pytest.mark.parametrize("kind", ["whisper", "qwen3_asr"])
def test_adapters_alone_are_exported_on_a_base_that_can_be_had(kind, tmp_path):
    base = build(kind, tmp_path, freeze=[])
    base.family.save_merged(base, tmp_path / "base")
    origin = {"from": str(tmp_path / "base"), "lora": RANKS, "quantize": "8bit"}
    torch.manual_seed(0)
    bundle = Family.model_validate({**KINDS[kind].keys, **origin}).build(TaskRequirements("transcribe", ("text",)))
    names = bundle.family.exported_tensor_names(bundle)
    assert names and all(map(is_adapter, names))
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {n: state[n] for n in names}, tmp_path / "export")
    assert (tmp_path / "export" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "export" / "model.safetensors").exists()
    apart = type(bundle.family).load(tmp_path / "export", trainable=True)
    assert len(layers(apart)) == len(layers(bundle))
    bundle.model.eval(), apart.model.eval()
    torch.testing.assert_close(loss(apart), loss(bundle), rtol=1e-6, atol=1e-5)
    merged = type(bundle.family).load(tmp_path / "export")  # on the base as it is, not rounded
    assert not layers(merged)
    torch.testing.assert_close(loss(merged), loss(base), rtol=1e-4, atol=1e-3)


def test_storage_of_the_rest_leaves_the_codes_alone(tmp_path):
    bundle = build("qwen3_asr", tmp_path, quantize="8bit", dtype="bfloat16")
    plain = build("qwen3_asr", tmp_path, quantize="8bit")
    assert bundle.model.language_model.get_input_embeddings().weight.dtype == torch.bfloat16
    for (name, layer), twin in zip(layers(bundle).items(), layers(plain).values(), strict=True):
        assert torch.equal(layer.codes, twin.codes) and torch.equal(layer.scale, twin.scale), name
    assert torch.isfinite(loss(bundle))


def test_shared_weights_and_parts_without_adapters_stay():
    model = nn.Module()
    model.part, model.other = nn.Module(), nn.Linear(4, 4)
    model.part.table, model.part.out = nn.Embedding(8, 4), nn.Linear(4, 8)
    model.part.q, model.part.k, model.part.lm_head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8)
    model.part.out.weight = model.part.table.weight
    inject(model, Lora(**RANKS), ["part.q"])
    model.other.requires_grad_(False)
    assert quantisable(model) == ["part.q.base_layer", "part.k"]
    quantize(model, None)
    assert type(model.part.k) is nn.Linear
    quantize(model, "8bit")
    assert type(model.part.k) is QuantizedLinear and type(model.part.out) is nn.Linear


@pytest.mark.parametrize("kind", FAMILIES)
def test_it_needs_adapters(kind, tmp_path):
    with pytest.raises(ValueError, match=r"add adapters \(`lora: \{\}`\)"):
        Family.model_validate({**KINDS[kind].keys, **KINDS[kind].origin(tmp_path), "quantize": "8bit"})


def test_missing_kernels_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    build("whisper", tmp_path, quantize="8bit")  # needs none
    with pytest.raises(ConfigError, match=r"4bit needs bitsandbytes \(`pip install 'stentor\[quantize\]'`\)"):
        build("whisper", tmp_path, quantize="4bit")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.long
def test_a_few_steps_through_the_command_line(bits, four, tmp_path):
    base = build("whisper", tmp_path)
    base.family.save_merged(base, tmp_path / "base")
    model = {"type": "seq2seq", "from": str(tmp_path / "base"), "lora": RANKS, "quantize": bits}
    options = {"lr": 1e-2, "data.batch_tokens": 4000}
    folder = run(tmp_path, "a", model, four, steps=2, **options)
    results = json.loads((folder / "results.json").read_text())
    plain = build("whisper", tmp_path)
    parts = {n: sum(p.numel() for p in m.parameters()) for n, m in plain.parts().items()}
    assert {n: row["total"] for n, row in results["parameters"]["parts"].items()} == parts
    weights, adapters = read_weights(folder / "export")
    assert not weights and any(t.abs().sum() > 0 for n, t in adapters.items() if ".lora_B." in n)
    run(tmp_path, "a", model, four, steps=3, **options)  # from the checkpoint, quantised anew
    assert "Resuming from step 2 of 3" in (folder / "log.txt").read_text()


def test_it_is_not_sharded():
    from stentor.engine.sharding import check_shardable

    model = nn.Sequential(QuantizedLinear(nn.Linear(4, 4), "8bit", torch.device("cpu")))
    with pytest.raises(ConfigError, match=r"leave out `model\.quantize` or `train\.shard`"):
        check_shardable(model)
    check_shardable(nn.Linear(4, 4))
