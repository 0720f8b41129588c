"""Iterative unmasking against the formulas, written again in plain torch for one utterance at a time."""

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from stentor.models.omnivoice.generate import Prompt, generate, schedule, speak

C, ENTRIES, MASK, WIDTH = 3, 20, 20, 16


class Bidirectional(torch.nn.Module):
    """Two layers of attention over whole sequences: every position sees the others, and none sees padding."""

    codebooks, mask_id, vocabulary = C, MASK, ENTRIES + 1

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.nn.Parameter(torch.randn(*shape, generator=generator))

        self.text, self.audio = draw(50, WIDTH), draw(C, ENTRIES + 1, WIDTH)
        self.layers = torch.nn.ParameterList([draw(3, WIDTH, WIDTH) for _ in range(2)])
        self.head = draw(WIDTH, C * (ENTRIES + 1))
        self.calls = []

    def hidden(self, input_ids, audio_mask, lengths):
        self.calls.append((input_ids.clone(), lengths.tolist()))
        audio = sum(self.audio[c][input_ids[:, c].clamp(max=ENTRIES)] for c in range(C))
        x = torch.where(audio_mask[..., None], audio, self.text[input_ids[:, 0]])
        places = torch.arange(x.shape[1])
        x = x + torch.sin(places[:, None] * torch.arange(1, WIDTH + 1) / 7)
        for q, k, v in self.layers:
            seen = (places < lengths[:, None])[:, None]
            weights = ((x @ q) @ (x @ k).mT / WIDTH).masked_fill(~seen, -math.inf).softmax(-1)
            x = torch.nn.functional.rms_norm(x + weights @ (x @ v), (WIDTH,))
        return x

    def audio_heads(self, states):
        return states @ self.head

    def logits(self, *inputs):
        return self.audio_heads(self.hidden(*inputs)).unflatten(-1, (C, ENTRIES + 1)).transpose(1, 2)


def reference(model, prompt, s):
    """Section 1.8 for one utterance with the settings `s`: two forwards of their own in each step, cells one by one."""
    generator = torch.Generator().manual_seed(s.seed)
    start, frames = prompt.ids.shape[1], prompt.frames
    codes = torch.full((C, frames), MASK)
    left = C * frames
    r = [s.t_shift * (n / s.steps) / (1 + (s.t_shift - 1) * n / s.steps) for n in range(s.steps + 1)]
    history = []
    for n in range(s.steps):
        audio = torch.cat([prompt.audio_mask, torch.ones(frames, dtype=torch.bool)])
        with torch.no_grad():
            conditional = torch.cat([prompt.ids, codes], 1)
            c = model.logits(conditional[None], audio[None], torch.tensor([len(audio)]))[0, :, start:].log_softmax(-1)
            u = model.logits(codes[None], audio[None, start:], torch.tensor([frames]))[0].log_softmax(-1)
        p = (c + s.guidance * (c - u)).log_softmax(-1)
        p[..., MASK] = -math.inf
        choice = p.argmax(-1)
        if s.class_temperature:
            best = p.topk(math.ceil(0.1 * ENTRIES), -1)
            noise = -torch.empty(best.values.shape).exponential_(generator=generator).log()
            choice = best.indices.gather(-1, (best.values / s.class_temperature + noise).argmax(-1)[..., None])[..., 0]
        score = p.max(-1).values - s.layer_penalty * torch.arange(C)[:, None]
        if s.position_temperature:
            noise = -torch.empty(score.shape).exponential_(generator=generator).log()
            score = score / s.position_temperature + noise
        count = left if n == s.steps - 1 else min(left, math.ceil(C * frames * (r[n + 1] - r[n]) - 1e-9))
        free = [(float(score[k, t]), k, t) for k in range(C) for t in range(frames) if codes[k, t] == MASK]
        for _, k, t in sorted(free, reverse=True)[:count]:
            codes[k, t] = choice[k, t]
        left -= count
        history.append(codes.clone())
    return codes, history


def prompts():
    generator = torch.Generator().manual_seed(2)
    batch = []
    for text, voice_frames, frames in ((5, 0, 7), (9, 6, 12), (2, 3, 1), (4, 0, 23)):
        ids = torch.randint(0, 50, (1, text), generator=generator).expand(C, -1)
        voice = torch.randint(0, ENTRIES, (C, voice_frames), generator=generator)
        mask = torch.arange(text + voice_frames) >= text
        batch.append(Prompt(torch.cat([ids, voice], 1), mask, frames))
    return batch


SETTINGS = [
    {},
    {"steps": 1},
    {"steps": 5, "t_shift": 1.0, "layer_penalty": 0.0},
    {"steps": 9, "guidance": 0.7, "position_temperature": 0.0},
    {"steps": 6, "class_temperature": 1.3},
    {"steps": 4, "class_temperature": 0.5, "position_temperature": 0.0, "seed": 11},
]
DEFAULTS = {
    "steps": 32,
    "guidance": 2.0,
    "t_shift": 0.1,
    "layer_penalty": 5.0,
    "position_temperature": 5.0,
    "class_temperature": 0.0,
    "seed": 0,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_is_the_formulas(settings):
    """A batch of four, against each alone; the generator's defaults are OmniVoice's."""
    model = Bidirectional()
    outputs = generate(model, prompts(), **{("seeds" if k == "seed" else k): v for k, v in settings.items()})
    for prompt, codes in zip(prompts(), outputs):
        assert torch.equal(codes, reference(model, prompt, SimpleNamespace(**{**DEFAULTS, **settings}))[0])
        assert codes.shape == (C, prompt.frames) and codes.dtype == torch.int64
        assert codes.min() >= 0 and codes.max() < ENTRIES


@pytest.mark.parametrize("class_temperature", [0.0, 1.0])
def test_neighbours_change_nothing(class_temperature):
    model, batch = Bidirectional(), prompts()
    options = {"steps": 6, "class_temperature": class_temperature}
    alone = [generate(model, [prompt], seeds=seed, **options)[0] for seed, prompt in enumerate(batch)]
    together = generate(model, batch, seeds=range(4), **options)
    backwards = generate(model, batch[::-1], seeds=[3, 2, 1, 0], **options)[::-1]
    for a, b, c in zip(alone, together, backwards):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_the_seed_decides_and_only_where_there_is_chance():
    model, batch = Bidirectional(), prompts()[3:]
    first, again, other = (generate(model, batch, steps=6, seeds=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    sure = [generate(model, batch, steps=6, position_temperature=0.0, seeds=seed)[0] for seed in (1, 2)]
    assert torch.equal(*sure)
    model.calls.clear()
    generate(model, batch, steps=3, guidance=0.0)  # without guidance there are no rows of frames alone
    assert [len(lengths) for _, lengths in model.calls] == [1] * 3


def test_speak_batches_by_length_and_keeps_the_order():
    model, batch = Bidirectional(), prompts() * 2
    together = speak(model, batch, steps=4, seeds=range(8))
    sizes = {len(lengths) for _, lengths in model.calls}
    model.calls.clear()
    small = speak(model, batch, steps=4, seeds=range(8), batch_tokens=60)
    assert sizes == {16} and max(len(lengths) * max(lengths) for _, lengths in model.calls) <= 60
    for a, b, prompt in zip(together, small, batch):
        assert a.dtype == "int16" and a.shape == (C, prompt.frames) and (a == b).all()


@pytest.mark.parametrize(("cells", "steps", "t_shift"), [(200, 32, 0.1), (6000, 16, 0.1), (3, 32, 0.1), (64, 8, 1.0)])
def test_the_schedule_is_the_formula_in_exact_arithmetic(cells, steps, t_shift):
    tau = Fraction(str(t_shift))
    r = [tau * Fraction(n, steps) / (1 + (tau - 1) * Fraction(n, steps)) for n in range(steps + 1)]
    expected, left = [], cells
    for n in range(steps - 1):
        expected.append(min(left, math.ceil(cells * (r[n + 1] - r[n]))))
        left -= expected[-1]
    assert schedule(cells, steps, t_shift) == [*expected, left]


def test_compiled_it_sees_few_lengths_and_says_the_same(monkeypatch):
    """The compiler itself takes minutes; here the model stays as it is."""
    wrapped = []

    def compile(function, **options):
        wrapped.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    model, batch = Bidirectional(), prompts()
    plain = generate(model, batch, steps=4)
    model.calls.clear()
    compiled = generate(model, batch, steps=4, compile=True)
    assert wrapped == [{"dynamic": True}] and {ids.shape[-1] for ids, _ in model.calls} == {64}
    assert all(torch.equal(a, b) for a, b in zip(plain, compiled))
