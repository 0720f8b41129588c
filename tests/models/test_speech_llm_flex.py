"""flex_attention: block tables, the mask they describe, and the forward pass against SDPA (CPU has no backward)."""

import numpy as np
import pytest
import torch
from tiny_speech_llm import LLMS, build, examples, sums
from torch.nn.attention.flex_attention import create_block_mask

from stentor.errors import ConfigError
from stentor.models.packing.flex import block_mask, tables

torch.set_num_threads(1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[128], [100, 28], [384], [300, 5, 200, 7, 128], [1, 127, 128, 256, 255, 1]])
def test_tables_are_those_of_the_evaluated_mask(lengths, causal):
    ours = block_mask(**tables(lengths, causal), causal=causal)
    documents = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))

    def mask(batch, head, query, key):
        return ((query >= key) | (not causal)) & (documents[query] == documents[key])

    theirs = create_block_mask(mask, None, None, sum(lengths), sum(lengths), device="cpu")
    assert ours.shape == theirs.shape
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("llm", ["qwen2", "qwen3"])
def test_flex_forward_is_sdpa(llm):
    flex = build(llm={"config": LLMS[llm], "attention": "flex"})
    sdpa = build(llm=llm)
    items = examples(seconds=(1.3, 0.6, 0.97), texts=("one two three" * 6, "nine eight" * 9, "zero zero seven" * 5))
    batch = flex.processor.collate(items, packed=True)
    assert batch.num_positions == 384 > batch.tokens
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(
            sums(flex, items, packed=True)["text"], sums(sdpa, items, packed=True)["text"], rtol=1e-5, atol=0
        )


def test_decoding_with_flex_is_decoding_with_sdpa():
    flex, sdpa = build(llm={"config": LLMS["qwen2"], "attention": "flex"}), build()

    def run(bundle):
        inputs = bundle.processor.collate(examples(), labels=False).inputs
        return bundle.model.generate(inputs, max_new_tokens=5, eos_ids={2})

    assert [ids for ids, *_ in run(flex)] == [ids for ids, *_ in run(sdpa)]
    assert flex.model.llm.config._attn_implementation == "stentor_flex"


@pytest.mark.parametrize(
    "config, message",
    [
        ({**LLMS["qwen2"], "attention_dropout": 0.1}, "no attention dropout"),
        (LLMS["gemma2"], "sliding-window layers"),
        (LLMS["mistral"], "sliding-window layers"),
    ],
)
def test_what_flex_cannot_do_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build(llm={"config": config, "attention": "flex"})


def test_training_with_flex_on_the_cpu_is_refused():
    bundle = build(llm={"config": LLMS["qwen2"], "attention": "flex"})
    with pytest.raises(ConfigError, match="no backward pass on the CPU"):
        sums(bundle, examples(), packed=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention has a backward pass on GPUs only")
@pytest.mark.parametrize("llm", ["qwen2", "qwen3"])
def test_flex_gradients_are_those_of_sdpa(llm):
    from stentor.losses.token import CrossEntropy

    items = examples(seconds=(1.3, 0.6, 0.97), texts=("one two three" * 6, "nine eight" * 9, "zero zero seven" * 5))
    config = {**LLMS[llm], "hidden_size": 64, "head_dim": 16}
    grads = []
    for attention in ("flex", "sdpa"):
        bundle = build(llm={"config": config, "attention": attention})
        model = bundle.model.cuda()
        batch = bundle.processor.collate(items, packed=True).to(torch.device("cuda"))
        CrossEntropy().sum(**model(**batch.inputs)["text"]).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in grads[1].items():
        torch.testing.assert_close(grads[0][name], gradient, rtol=1e-2, atol=1e-3, msg=name)
