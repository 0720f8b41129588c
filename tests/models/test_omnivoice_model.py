"""The model against the formulas of OmniVoice in plain torch; packed, padded and alone; flex and SDPA."""

import pytest
import torch
from tiny_omnivoice import BOOKS, ENTRIES, LLMS, build, examples, sums
from torch.nn import functional as F

from stentor.errors import ConfigError
from stentor.losses.codebook import Codebook
from stentor.models.packing import flex
from stentor.models.packing.flex import block_mask, item_table, one_by_one, side_by_side
from stentor.tasks.speak.task import Speak

torch.set_num_threads(1)


def published_logits(w: dict, c: dict, ids: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    """Logits [C, L, V] of one sequence ids [C, L] by the published formulas: Qwen3 without a causal mask."""
    books, length = ids.shape
    table = w["audio_embeddings.weight"].view(books, -1, c["hidden_size"])
    x = torch.stack(
        [
            sum(table[b, ids[b, t]] for b in range(books)) if audio[t] else w["llm.embed_tokens.weight"][ids[0, t]]
            for t in range(length)
        ]
    )

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    size = c["head_dim"]
    angle = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones_like(angle), angle)

    def rotate(x: torch.Tensor) -> torch.Tensor:  # [heads, L, size], the halves being real and imaginary parts
        turned = torch.complex(x[..., : size // 2], x[..., size // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    for i in range(c["num_hidden_layers"]):
        layer = {n.removeprefix(f"llm.layers.{i}."): t for n, t in w.items() if n.startswith(f"llm.layers.{i}.")}
        y = norm(x, layer["input_layernorm.weight"])
        q, k, v = ((y @ layer[f"self_attn.{p}_proj.weight"].T).unflatten(-1, (-1, size)).transpose(0, 1) for p in "qkv")
        q = rotate(norm(q, layer["self_attn.q_norm.weight"]))
        k = rotate(norm(k, layer["self_attn.k_norm.weight"]))
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        heads = [
            ((q[h] @ k[h // group].T) / size**0.5).softmax(-1) @ v[h // group] for h in range(c["num_attention_heads"])
        ]
        x = x + torch.cat(heads, -1) @ layer["self_attn.o_proj.weight"].T
        y = norm(x, layer["post_attention_layernorm.weight"])
        gate, up = (y @ layer[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ layer["mlp.down_proj.weight"].T
    out = norm(x, w["llm.norm.weight"]) @ w["audio_heads.weight"].T
    return out.view(length, books, -1).transpose(0, 1)


def alone(bundle, items):
    """(ids [C, L], labels [C, L], audio mask [L]) of each item."""
    samples = []
    for item in items:
        sample = bundle.processor.sample(item, item.extra["codes"])
        samples.append(
            (torch.tensor(sample.ids), torch.tensor(sample.labels), torch.arange(sample.length) >= sample.text)
        )
    return samples


@torch.no_grad()
def test_logits_are_those_of_the_published_formulas():
    bundle = build()
    weights = bundle.model.state_dict()
    for ids, _, audio in alone(bundle, examples()):
        ours = bundle.model.logits(ids[None], audio[None])[0]
        torch.testing.assert_close(ours, published_logits(weights, LLMS["qwen3"], ids, audio), rtol=1e-4, atol=1e-4)
    assert ours.shape == (BOOKS, ids.shape[1], ENTRIES + 1)


@torch.no_grad()
@pytest.mark.parametrize("packed", [False, True])
def test_the_loss_is_that_of_the_published_formula(packed):
    """The sum over codebooks of weight times the mean cross entropy of the batch's masked cells of that codebook."""
    bundle, items = build(), examples()
    weights = torch.tensor([8.0, 6.0, 4.0, 2.0]) / 20
    cells = [([], []) for _ in range(BOOKS)]
    for ids, labels, audio in alone(bundle, items):
        logits = published_logits(bundle.model.state_dict(), LLMS["qwen3"], ids, audio)
        for c in range(BOOKS):
            cells[c][0].append(logits[c])
            cells[c][1].append(labels[c])
    expected = sum(
        w * F.cross_entropy(torch.cat(logits_of_book), torch.cat(labels_of_book), ignore_index=-100)
        for w, (logits_of_book, labels_of_book) in zip(weights, cells)
    )
    terms = Codebook(weights=None).terms("codes", BOOKS)
    batch = bundle.processor.collate(items, packed=packed)
    outputs = bundle.model(**batch.inputs)
    ours = sum(loss.weight * loss.sum(**outputs[t]) / batch.counts[t] for t, loss in terms.items())
    assert batch.counts == {f"codes_{c}": int((torch.cat(cells[c][1]) != -100).sum()) for c in range(BOOKS)}
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("llm", LLMS)
def test_packed_is_padded_is_one_by_one(llm):
    bundle = build(llm)
    items = examples()
    one = [sums(bundle, [item]) for item in items]
    together = {term: sum(o[term] for o in one) for term in one[0]}
    for packed in (False, True):
        losses = sums(bundle, items, packed)
        assert losses.keys() == {f"codes_{c}" for c in range(BOOKS)}
        for term, value in losses.items():
            torch.testing.assert_close(value, together[term], rtol=1e-5, atol=0, msg=f"{term}, packed={packed}")


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_a_neighbour_in_the_pack_changes_nothing(attention):
    bundle = build(attention=attention)
    items = examples()
    other = examples(seed=5)
    changed = [other[0], items[1], other[2], other[3]]
    for batch in (items, changed):
        batch[2].extra["codes"] = batch[2].extra["codes"][:, :30]
    states = []
    for batch in (items, changed):
        inputs = bundle.processor.collate(batch, packed=True).inputs
        hidden = bundle.model.hidden(**{k: v for k, v in inputs.items() if not k.startswith(("rows", "targets"))})[0]
        places = (inputs["documents"] == 1).nonzero()[:, 0]
        states.append(hidden[places])
    assert torch.equal(*states) or torch.allclose(*states, rtol=1e-6, atol=1e-6)
    assert len(states[0]) > 5


@torch.no_grad()
def test_every_position_of_an_item_sees_all_of_it():
    bundle = build()
    ids, _, audio = alone(bundle, examples())[2]
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % ENTRIES
    one, other = (bundle.model.hidden(i[None], audio[None])[0] for i in (ids, changed))
    assert (one - other).abs().amax(-1).min() > 1e-4


# flex_attention


@torch.no_grad()
@pytest.mark.parametrize("llm", ["qwen3", "llama"])
def test_the_forward_pass_of_flex_is_that_of_sdpa(llm, monkeypatch):
    bundle, items = build(llm, attention="flex"), examples(frames=(90, 40, 75, 130))
    batch = bundle.processor.collate(items, packed=True)
    assert batch.num_positions % 128 == 0 and batch.num_positions > batch.tokens
    masked = sums(bundle, items, packed=True)  # on the CPU: SDPA with a mask of the documents
    model = bundle.model
    monkeypatch.setattr(
        model, "_packed", lambda documents, tables: block_mask(documents, **tables, causal=False)
    )  # what a GPU gets
    with torch.compiler.set_stance("force_eager"):
        flexed = sums(bundle, items, packed=True)
    for term, value in flexed.items():
        torch.testing.assert_close(value, masked[term], rtol=1e-5, atol=0, msg=term)
        torch.testing.assert_close(value, sums(build(llm), items)[term], rtol=1e-5, atol=0, msg=term)


@pytest.mark.parametrize("way", [one_by_one, side_by_side])
def test_item_by_item_is_sdpa_with_a_mask_of_the_documents(way, monkeypatch):
    monkeypatch.setattr("stentor.models.packing.flex.one_by_one", way)  # which is the CPU's
    lengths = [7, 1, 30, 12]
    documents = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)).int()
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 50, 8, requires_grad=True) for heads in (4, 4, 4))
    mask = (documents[:, None] == documents)[None, None]
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
    module = torch.nn.Module()
    places = item_table(documents)
    ours, _ = flex.attention(module, query, key, value, places, scaling=8**-0.5)
    torch.testing.assert_close(ours, expected)
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((out * weight).sum(), (query, key, value)) for out in (ours, expected)]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert places.shape == (1, 1, 4, 30) and places[0, 0, 1].tolist() == [7, *[-1] * 29]


def test_training_packed_on_the_cpu_goes_through_sdpa_and_says_so_once(caplog):
    bundle = build(attention="flex")
    for _ in range(2):
        sum(sums(bundle, examples(), packed=True).values()).backward()
    assert caplog.text.count("packed batches go through SDPA") == 1


def test_under_autocast_the_loss_is_nearly_the_same():
    bundle = build()
    with torch.no_grad():
        plain = sums(bundle, examples(), packed=True)
        with torch.autocast("cpu", torch.bfloat16):
            low = sums(bundle, examples(), packed=True)
    for term, value in low.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, plain[term], rtol=0.05, atol=0.5)


def test_no_logits_of_other_cells_are_computed():
    """What the losses get is the hidden states of the masked cells alone, in the order of the targets."""
    bundle = build()
    batch = bundle.processor.collate(examples())
    outputs = bundle.model(**batch.inputs)
    for c in range(BOOKS):
        term = outputs[f"codes_{c}"]
        assert set(term) == {"hidden", "weight", "targets"}
        assert len(term["hidden"]) == len(term["targets"]) == batch.counts[f"codes_{c}"]
        rows = slice(c * (ENTRIES + 1), (c + 1) * (ENTRIES + 1))
        assert torch.equal(term["weight"], bundle.model.audio_heads.weight[rows])


def test_a_batch_without_text_trains_all_parts():
    """Data-parallel training waits for a gradient of every parameter, whatever is in the batch."""
    bundle = build()
    items = examples(task=Speak(type="speak", drop_cond_ratio=1.0))
    sum(sums(bundle, items).values()).backward()
    assert all(p.grad is not None for p in bundle.model.parameters())
    assert not bundle.model.llm.embed_tokens.weight.grad.any()


# Backbones


@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_a_decoder_that_looks_back_only_is_refused(attention):
    mamba = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
    with pytest.raises(ConfigError, match=r"model.llm: mamba has layers of the kind `linear_attention`"):
        build(mamba, attention=attention)
    gemma = {**LLMS["gemma"], "model_type": "gemma2"}
    with pytest.raises(ConfigError, match=r"model.llm: gemma2 has layers of the kind `sliding_attention`"):
        build(gemma, attention=attention)
    bloom = {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 4}
    with pytest.raises(ConfigError, match=r"model.llm: .*(cannot be made bidirectional|scaled_dot_product)"):
        build(bloom, attention=attention)


# Layout


SPEAK = ("speak", {"type": "omnivoice", "from": "k2-fsa/OmniVoice"}, {"type": "shards", "path": "tokens"})
OTHER = ("transcribe", {"type": "seq2seq", "from": "openai/whisper-tiny"}, {"type": "jsonl", "path": "a.jsonl"})


@pytest.mark.parametrize(
    "setting, model, configured, layout",
    [
        (SPEAK, {"attention": "flex"}, None, "packed"),
        (SPEAK, {"attention": "sdpa"}, None, "padded"),
        (SPEAK, {"attention": "flex"}, "padded", "padded"),
        (SPEAK, {"attention": "sdpa"}, "packed", "packed"),
        (OTHER, {}, None, "padded"),
    ],
)
def test_attention_chooses_the_layout_unless_the_config_does(setting, model, configured, layout):
    from stentor.config.schema import Config

    task, section, source = setting
    data = {"train": [source], "layout": configured}
    config = Config.model_validate({"task": task, "model": {**section, **model}, "data": data})
    assert config.data.layout == config.plain()["data"]["layout"] == layout
