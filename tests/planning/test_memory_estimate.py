"""Memory estimates beside the truth: the bytes of all tensors while tiny models train."""

import numpy as np
import pytest
import tiny_speech_llm
import tiny_voxtral
import torch
from torch import nn

import tiny_configs
from stentor.commands.plan.memory import methods
from stentor.config.schema import Config
from stentor.data.batch import Example
from stentor.engine.memory_estimate import Live, Peak, activations, compared, largest, moments
from stentor.engine.optim import build as optimizers
from stentor.engine.standing_memory import STATE, MemoryEstimate, standing
from stentor.losses.base import Loss
from stentor.models.base import Family, TaskRequirements

torch.set_num_threads(1)

WHISPER = {
    "model_type": "whisper",
    "d_model": 32,
    "encoder_layers": 4,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
WAVE = {"model_type": "wav2vec2", **tiny_configs.WAVE, "num_hidden_layers": 4}
KINDS = ("whisper", "voxtral", "ctc", "speech_llm")
LORA = {"rank": 4}


def section(kind, folder):
    if kind == "voxtral":
        tokenizer = str(tiny_voxtral.write_tokenizer(folder / "tekken"))
        return {"type": "voxtral", "config": tiny_voxtral.CONFIG, "tokenizer": tokenizer}
    if kind == "whisper":
        return {"type": "seq2seq", "config": WHISPER}
    if kind == "ctc":
        return {"type": "ctc", "config": WAVE}
    return {
        "type": "speech_llm",
        "encoder": {"config": tiny_speech_llm.ENCODERS["whisper"] | {"encoder_layers": 3}},
        "llm": {"config": tiny_speech_llm.LLMS["qwen2"] | {"num_hidden_layers": 4}},
        "tokenizer": {"type": "characters"},
    }


class Tried:
    """A tiny model with batches of 1, 2 and 5 clips, as training runs them."""

    def __init__(self, kind, folder, **keys):
        torch.manual_seed(0)
        model = Family.model_validate({**section(kind, folder), **keys})
        data = {"train": [{"type": "jsonl", "path": "x.jsonl"}]}
        self.config = Config.model_validate({"task": "transcribe", "model": model, "data": data})
        term = "ctc" if kind == "ctc" else "text"
        texts = ("one two three", "four five six", "seven eight", "nine", "ten eleven")
        self.bundle = model.build(TaskRequirements("transcribe", (term,), lambda: iter(texts)))
        self.model = self.bundle.model.train()
        rng = np.random.default_rng(0)
        clips = [
            Example(str(i), (0.1 * rng.standard_normal(24000 - 800 * i)).astype(np.float32), t, "en")
            for i, t in enumerate(texts)
        ]
        self.batches = [self.bundle.processor.collate(clips[:n]) for n in (1, 2, 5)]
        self.loss = Loss.model_validate("ctc" if kind == "ctc" else "cross_entropy")
        self.term = term

    def run(self, batch):
        self.loss.sum(**self.model(**batch.inputs)[self.term]).backward()

    def methods(self, **options):
        tries = [(b.num_positions, b) for b in self.batches[:2]]
        rows = methods(self.config, self.bundle, self.run, tries, self.batches[2].num_positions, casts=False, **options)
        return {m.name: m for m in rows}

    def chosen(self):
        (one,) = [m.estimate for m in self.methods().values() if m.chosen]
        return one

    def truth(self):
        """(bytes at the largest moment of a forward and backward pass, and with the optimizer's state)."""
        (optimizer, *_) = optimizers(self.config.optim, self.model)
        with Live() as live:
            self.run(self.batches[2])
        optimizer.step()
        weights = sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])
        state = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
        return weights + live.peak, weights + live.peak + state


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="full"),
        pytest.param({"lora": LORA}, id="lora", marks=pytest.mark.slow),
        pytest.param({"lora": LORA, "quantize": "8bit"}, id="8bit"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_the_estimate_is_near_the_truth(kind, keys, tmp_path):
    """Within a tenth, from one and two clips and one and two layers. Where convolutions over raw audio come and go and
    are large beside few small layers, up to half too much."""
    tried = Tried(kind, tmp_path, **keys)
    estimate = tried.chosen()
    batch, total = tried.truth()
    most = 1.5 if kind == "ctc" else 1.1
    assert 0.9 * batch < estimate.batch < most * batch
    assert 0.9 * total < estimate.total < most * total


@pytest.mark.slow
def test_recomputed_activations_are_estimated_too(tmp_path):
    tried = Tried("whisper", tmp_path, gradient_checkpointing=True)
    plain = Tried("whisper", tmp_path).chosen()
    assert tried.chosen().batch == pytest.approx(tried.truth()[0], rel=0.1)
    assert tried.chosen().activations < 0.7 * plain.activations


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in ("whisper", "voxtral"))) for k in KINDS]
)
def test_other_methods_are_estimated_as_if_configured(kind, tmp_path):
    """From any config all rows are the same; but convolutions that were built to be trained keep more for a batch."""
    tables = [Tried(kind, tmp_path, **keys).methods() for keys in ({}, {"lora": {}}, {"lora": {}, "quantize": "8bit"})]
    assert [[n for n, m in rows.items() if m.chosen] for rows in tables] == [["full"], ["LoRA"], ["LoRA 8-bit"]]
    for name in ("full", "LoRA", "LoRA 8-bit", "LoRA 4-bit"):
        first, *others = [rows[name].estimate for rows in tables]
        for other in others:
            for part in ("weights", "gradients", "optimizer", "activations"):
                near = 0.5 if kind == "ctc" and part == "activations" else 0.01
                assert getattr(other, part) == pytest.approx(getattr(first, part), rel=near), (name, part)
    order = [tables[0][n].estimate for n in ("full", "LoRA", "LoRA 8-bit", "LoRA 4-bit")]
    assert order[0].optimizer > order[1].optimizer == order[2].optimizer
    assert order[1].weights > order[2].weights > order[3].weights


def test_models_that_the_usual_adapters_do_not_fit_have_one_row(tmp_path):
    tried = Tried("speech_llm", tmp_path)
    tried.config.model.freeze = ["llm.*"]
    tried.model.llm.requires_grad_(False)
    assert list(tried.methods()) == ["full"]


def test_the_model_is_left_as_it_was(tmp_path):
    tried = Tried("speech_llm", tmp_path, lora=LORA, quantize="8bit")
    modules = [(n, id(m)) for n, m in tried.model.named_modules()]
    flags = {n: (id(p), p.requires_grad, p.grad is None) for n, p in tried.model.named_parameters()}
    tried.methods()
    assert [(n, id(m)) for n, m in tried.model.named_modules()] == modules
    assert {n: (id(p), p.requires_grad, p.grad is None) for n, p in tried.model.named_parameters()} == flags


@pytest.mark.parametrize("kind", sorted(set(STATE) - {"adamw8bit"}))
def test_the_state_of_optimizers(kind):
    config = Config.model_validate(
        {
            "task": "transcribe",
            "model": {"type": "seq2seq", "config": {"model_type": "whisper"}},
            "optim": kind,
            "data": {"train": [{"type": "jsonl", "path": "x"}]},
        }
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    built = optimizers(config.optim, model)
    model(torch.randn(2, 64)).sum().backward()
    for optimizer in built:
        optimizer.step()
    state = sum(t.nbytes for o in built for s in o.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    count = sum(p.numel() for p in model.parameters())
    assert standing(0, count, config.optim, config.train).optimizer == pytest.approx(state, rel=0.05)


def test_what_is_sharded_is_shared():
    def of(world, **train):
        config = {
            "task": "transcribe",
            "model": {"type": "seq2seq", "config": {"model_type": "whisper"}},
            "train": train,
            "data": {"train": [{"type": "jsonl", "path": "x"}]},
        }
        config = Config.model_validate(config)
        return standing(4000, 1000, config.optim, config.train, world)

    assert of(1) == MemoryEstimate(4000, 4000, 8000, None, False)
    assert of(4) == MemoryEstimate(4000, 4000, 8000, None, True)
    assert of(4, shard=True) == MemoryEstimate(1000, 1000, 2000, None, True)
    assert of(1, ema=0.9).optimizer == 12000 and of(1, accumulate=2).together


def test_gradients_come_while_activations_go():
    apart, together = MemoryEstimate(10, 4, 8, 6), MemoryEstimate(10, 4, 8, 6, True)
    assert (apart.batch, apart.total) == (16, 24) and (together.batch, together.total) == (20, 28)
    assert MemoryEstimate(10, 4, 8).batch == 14


def test_tensors_are_counted_while_they_live():
    with Live() as live:
        a = torch.zeros(1000)
        assert live.now == 4000
        b = a + 1
        a = a.view(10, 100)  # the same memory
        del a
        assert (live.now, live.peak) == (4000, 8000)
        b.add_(1)
        assert (live.now, live.peak) == (4000, 8000)


def test_small_batches_tell_of_large_ones():
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))

    def run(x):
        model(x).square().sum().backward()

    tries = [(n, torch.randn(n, 8)) for n in (20, 40)]
    x = torch.randn(500, 8)
    truth = moments(model, lambda: run(x))
    assert activations(model, run, tries, 500) == pytest.approx(truth, rel=0.05)
    assert largest(truth) >= truth[1] > 500 * (8 + 64 + 64) * 4
    assert all(p.grad is None for p in model.parameters())


def test_a_dry_run_is_measured():
    x = torch.randn(1000, requires_grad=True)
    with Peak(torch.device("cpu"), weights=100.0) as peak:
        (x * 2 * x).sum().backward()
    assert 100 + 3 * 4000 <= peak.bytes <= 100 + 6 * 4000 and peak.grown is not None
    comparison = compared(peak, MemoryEstimate(100, 50, 200, None))
    assert "GiB; the process grew by" in comparison and "activations not estimated" in comparison
    with Peak(torch.device("cpu"), weights=100.0, count=False) as other:
        pass
    assert other.bytes == 100 + other.grown
