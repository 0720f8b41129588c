"""Attention of the transformer family: softmax and FAVOR+, beside plain computations of the same in float64."""

import math

import pytest
import torch
from torch import Tensor

from stentor.models.transformer import favor as favor_module
from stentor.models.transformer.attention import Attention, softmax
from stentor.models.transformer.favor import Favor, orthogonal
from stentor.models.transformer.layers import Positions, Rotary

KINDS = ("softmax", "linear", "causal_linear")


@pytest.fixture(autouse=True)
def draws():
    torch.manual_seed(0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def valid(*lengths: int, size: int | None = None) -> Tensor:
    """A mask of right-padded items."""
    return torch.arange(size or max(lengths))[None] < torch.tensor(lengths)[:, None]


def inputs(batch=2, heads=3, queries=37, keys=37, dim=8, scale=1.0, dtype=torch.float32) -> list[Tensor]:
    generator = seeded(1)
    shapes = ((batch, heads, queries, dim), (batch, heads, keys, dim), (batch, heads, keys, dim))
    return [(torch.randn(s, generator=generator, dtype=torch.float64) * scale).to(dtype) for s in shapes]


def exponents(x: Tensor, projection: Tensor) -> Tensor:
    dim = x.shape[-1]
    return x.double() @ projection.double().T / dim**0.25 - x.double().square().sum(-1, keepdim=True) / 2 / dim**0.5


def dense(favor: Favor, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """FAVOR+ by the formula of `stentor.models.transformer.favor`, one query of one head at a time, in float64; `seen`
    is bool [B, T, S]."""
    k = exponents(key, favor.projection)
    q = query.double() @ favor.projection.double().T / query.shape[-1] ** 0.25
    answer = torch.zeros(*query.shape[:3], value.shape[-1], dtype=torch.float64)
    for b, h, t in ((b, h, t) for b in range(len(q)) for h in range(q.shape[1]) for t in range(q.shape[2])):
        mine = k[b, h][seen[b, t]]
        if len(mine):
            phi_q = (q[b, h, t] - q[b, h, t].max().detach()).exp() + favor.eps
            phi_k = (mine - mine.max().detach()).exp() + favor.eps
            weights = phi_k @ phi_q
            answer[b, h, t] = weights @ value[b, h][seen[b, t]].double() / weights.sum()
    return answer


def with_eps(favor: Favor, eps: float) -> Favor:
    favor.eps = eps
    return favor


def everything(batch: int, queries: int, keys: int) -> Tensor:
    return torch.ones(batch, queries, keys, dtype=torch.bool)


# The features -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features, dim", [(16, 8), (21, 8), (5, 8)])
def test_rows_of_a_block_are_orthogonal(features, dim):
    rows = orthogonal(features, dim, seeded())
    assert rows.shape == (features, dim)
    for start in range(0, features, dim):
        block = rows[start : start + dim]
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-4, rtol=0)


def test_lengths_of_rows():
    many = torch.cat([orthogonal(64, 16, seeded(i)) for i in range(200)]).norm(dim=1)
    # The chi distribution with 16 degrees of freedom: mean 3.938, variance 16 - mean^2.
    assert many.mean() == pytest.approx(3.938, abs=0.03) and many.var() == pytest.approx(0.491, abs=0.03)


def test_number_of_features():
    assert Favor(64).features == int(64 * math.log(64)) == len(Favor(64).projection)
    assert Favor(64, 100).projection.shape == (100, 64)
    assert Favor(2).features == 2


def test_the_kernel_is_unbiased():
    """The mean of phi(q).phi(k) over many draws approaches exp(q.k / sqrt(d)), as closely as its spread allows."""
    query, key = torch.randn(6, 8, generator=seeded(2)) * 0.6, torch.randn(6, 8, generator=seeded(3)) * 0.6
    exact = (query.double() @ key.double().T / 8**0.5).exp()
    draws = []
    for i in range(3000):
        projection = orthogonal(8, 8, seeded(i))
        draws.append(exponents(query, projection).exp() @ exponents(key, projection).exp().T / 8)
    draws = torch.stack(draws)
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() < 4.5 * error).all()
    assert (error / exact).max() < 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_attention_approaches_softmax(causal):
    """The mean over draws comes near; one draw is further off, the more so the fewer features it has."""
    query, key, value = inputs(queries=20, keys=20, scale=0.5)
    exact = softmax(query, key, value, causal=causal)

    def answers(features: int) -> Tensor:
        favor = Favor(8, features)
        outputs = []
        for i in range(60):
            favor.redraw(seeded(i))
            outputs.append(favor.causal(query, key, value) if causal else favor(query, key, value))
        return torch.stack(outputs)

    few, many = answers(16), answers(1024)
    off = [(a - exact).square().mean().sqrt() for a in (few, many, many.mean(0))]
    assert off[0] > 4 * off[1] > 16 * off[2]
    assert off[2] < 0.02 * exact.std()


def test_redrawn_and_fixed():
    favor = Favor(8)
    first, place = favor.projection.clone(), favor.projection.data_ptr()
    favor.redraw(seeded(5))
    assert not torch.equal(favor.projection, first) and favor.projection.data_ptr() == place
    again = Favor(8)
    again.redraw(seeded(5))
    assert torch.equal(again.projection, favor.projection)
    assert "projection" in favor.state_dict() and not favor.fixed and Favor(8, fixed=True).fixed


# Linear attention beside the plain computation ----------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-4, 1e-2])
@pytest.mark.parametrize("queries, lengths", [(37, (37, 20)), (5, (11, 11)), (9, (1, 30))])
def test_linear_equals_the_dense_computation(eps, queries, lengths):
    query, key, value = inputs(queries=queries, keys=max(lengths), scale=1.5)
    favor, mask = with_eps(Favor(8), eps), valid(*lengths)
    expected = dense(favor, query, key, value, everything(2, queries, max(lengths)) & mask[:, None])
    torch.testing.assert_close(favor(query, key, value, mask).double(), expected, atol=1e-5, rtol=1e-5)


def test_eps_weighs_alike_beside_short_and_long_queries():
    """Unlike in the paper's code, whose stabiliser leaves |q|^2 out: there a long query sees little but eps."""
    query, key, value = inputs(batch=1, heads=1, queries=6, keys=9)
    favor = with_eps(Favor(8), 1e-3)
    direction = favor.projection[0] / favor.projection[0].norm()
    query = direction * torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])[:, None].expand(6, 8)
    answers = favor(query[None, None], key, value)[0, 0]
    phi_k = (exponents(key, favor.projection) - exponents(key, favor.projection).max()).exp()[0, 0] + favor.eps

    def answered(phi_q):
        return (phi_q @ phi_k.T @ value[0, 0].double()) / (phi_q @ phi_k.T).sum(-1, keepdim=True)

    e = exponents(query, favor.projection)
    largest = (query.double() @ favor.projection.double().T / 8**0.25).amax(-1, keepdim=True)
    ours, paper = answered((e - e.amax(-1, keepdim=True)).exp() + favor.eps), answered((e - largest).exp() + favor.eps)
    torch.testing.assert_close(answers.double(), ours, atol=1e-5, rtol=1e-5)
    only_eps = answered(torch.ones(1, favor.features, dtype=torch.float64))
    torch.testing.assert_close(paper[-1:], only_eps)
    assert not torch.allclose(ours[-1:], only_eps, atol=1e-2)


@pytest.mark.parametrize("chunk", [1, 5, 8, 16, 64])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_causal_equals_the_dense_computation_of_each_prefix(chunk, scale):
    query, key, value = inputs(scale=scale)
    mask = valid(37, 30)
    mask[0, :3] = False  # nothing to see at first
    mask[1, 10:17] = False
    favor = Favor(8)
    seen = everything(2, 37, 37).tril() & mask[:, None]
    got = favor.causal(query, key, value, mask, chunk=chunk)
    torch.testing.assert_close(got.double(), dense(favor, query, key, value, seen), atol=1e-5, rtol=1e-5)
    assert got[0, :, :3].abs().max() == 0


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("causal", [False, True])
def test_keys_of_very_different_lengths(causal, order):
    """Exponents that differ by hundreds, growing or falling: one stabiliser for a whole chunk would lose the first."""
    query, key, value = inputs()
    key = key * torch.linspace(0.1, 16, 37)[:, None]
    key = key.flip(2) if order < 0 else key
    favor = Favor(8)
    highest = exponents(key, favor.projection).amax(-1)
    assert highest.max() - highest.min() > 200  # exp of -104 is 0 in float32
    seen = everything(2, 37, 37)
    expected = dense(favor, query, key, value, seen.tril() if causal else seen)
    got = favor.causal(query, key, value) if causal else favor(query, key, value)
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_those_of_the_dense_computation(causal):
    favor, mask = with_eps(Favor(4), 1e-3).double(), valid(9, 6)
    ours = [x.requires_grad_() for x in inputs(heads=2, queries=9, keys=9, dim=4, dtype=torch.float64)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    seen = everything(2, 9, 9) & mask[:, None]
    weight = torch.randn(2, 2, 9, 4, generator=seeded(7), dtype=torch.float64)
    got = favor.causal(*ours, mask, chunk=4) if causal else favor(*ours, mask)
    (got * weight).sum().backward()
    (dense(favor, *theirs, seen.tril() if causal else seen) * weight).sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_the_function(causal):
    """Without eps the stabiliser cancels, and finite differences agree with gradients that do not go through it."""
    favor, mask = with_eps(Favor(4), 0.0).double(), valid(7, 4)
    arguments = [x.requires_grad_() for x in inputs(heads=1, queries=7, keys=7, dim=4, dtype=torch.float64)]
    attend = (lambda q, k, v: favor.causal(q, k, v, mask, chunk=3)) if causal else lambda q, k, v: favor(q, k, v, mask)
    assert torch.autograd.gradcheck(attend, arguments)


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("kind", ["linear", "causal_linear"])
def test_long_sequences_are_computed_again_in_the_backward_pass(kind, low, monkeypatch):
    """In spans, of which nothing is kept: the same answers and gradients as at one go, under autocast too."""
    model, x, mask = attention(kind, rope=True), sequence().requires_grad_(), valid(90, 64, 7)
    mask[0, :20] = False

    def run(span: int) -> list[Tensor]:
        monkeypatch.setattr(favor_module, "SPAN", span)
        model.zero_grad()
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            answer = model(x, mask=mask)
            answer.float().square().sum().backward()
        return [answer, x.grad, *(p.grad for p in model.parameters())]

    for a, b in zip(run(1000), run(16)):
        if low:  # the projections before and after round alike, but what they round differs in its last digits
            assert (a - b).norm() < 0.02 * a.norm()
        else:
            torch.testing.assert_close(b, a, atol=1e-4, rtol=1e-4)


def test_long_contexts_are_gathered_in_spans(monkeypatch):
    model, x, context = attention("linear"), sequence(), sequence(length=300, seed=8)
    mask = valid(300, 31, 0)
    mask[0, :40] = False
    answers = []
    for span in (1000, 16):
        monkeypatch.setattr(favor_module, "SPAN", span)
        answers.append(model(x, context, mask))
    torch.testing.assert_close(*answers, atol=1e-5, rtol=1e-5)


def test_the_future_changes_nothing():
    """Not even the rounding: what comes later is in no sum and in no stabiliser, whichever chunk it falls into."""
    query, key, value = inputs(queries=150, keys=150)
    favor = Favor(8)
    before = favor.causal(query, key, value)
    for x in (query, key, value):
        x[:, :, 100:] *= 30
    after = favor.causal(query, key, value)
    assert torch.equal(before[:, :, :100], after[:, :, :100]) and not torch.equal(before, after)


# Softmax ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_softmax_equals_the_dense_computation(causal, masked):
    query, key, value = inputs(queries=12, keys=20)
    mask = valid(20, 13) if masked else None
    seen = everything(2, 12, 20)
    if causal:
        seen = seen.tril(8)
    if masked:
        seen = seen & mask[:, None]
    scores = (query.double() @ key.double().transpose(-1, -2) / 8**0.5).masked_fill(~seen[:, None], -math.inf)
    expected = scores.softmax(-1) @ value.double()
    torch.testing.assert_close(softmax(query, key, value, mask, causal).double(), expected, atol=1e-5, rtol=1e-5)


# The module ---------------------------------------------------------------------------------------------------------


def attention(kind: str, causal: bool = False, rope: bool = False, **options) -> Attention:
    torch.manual_seed(0)
    return Attention(24, 3, kind, causal, rotary=Rotary(8) if rope else None, **options)


def sequence(batch: int = 3, length: int = 90, dim: int = 24, seed: int = 4) -> Tensor:
    return torch.randn(batch, length, dim, generator=seeded(seed))


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_valid_answer_and_gets_no_gradient(kind, causal, rope):
    model, x, lengths = attention(kind, causal, rope), sequence(), (90, 64, 7)
    mask = valid(*lengths)
    x = x.masked_fill(~mask[..., None], 50.0).requires_grad_()
    padded = model(x, mask=mask)
    assert padded.isfinite().all()
    for row, length in enumerate(lengths):
        alone = model(x[row : row + 1, :length])
        torch.testing.assert_close(padded[row : row + 1, :length], alone, atol=1e-5, rtol=1e-5)
    (padded * mask[..., None]).square().sum().backward()
    assert x.grad[~mask].abs().max() == 0 and x.grad[mask].abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_padding_of_a_context_never_changes_answers(kind):
    model, x, lengths = attention(kind, context_dim=10, qk_norm=True), sequence(length=8), (30, 1, 17)
    context = sequence(length=30, dim=10).masked_fill(~valid(*lengths)[..., None], 50.0)
    padded = model(x, context, valid(*lengths))
    remembered = model.remember(context, valid(*lengths))
    torch.testing.assert_close(model(x, state=remembered), padded, atol=1e-6, rtol=1e-6)
    for row, length in enumerate(lengths):
        alone = model(x[row : row + 1], context[row : row + 1, :length])
        torch.testing.assert_close(padded[row : row + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_normed_queries_and_keys(kind):
    """Attention does not depend on how large queries and keys are, but on the scales that are learnt; linear attention
    begins where its random features are good."""
    model, x = attention(kind, causal=True, rope=True, qk_norm=True), sequence()
    answer = model(x)
    q = model.q_norm(model._split(model.q_proj(x)))
    size = q.square().sum(-1) / 8**0.5
    torch.testing.assert_close(size, torch.full_like(size, 8**0.5 if kind == "softmax" else 1.0), atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        for linear in (model.q_proj, model.k_proj):
            linear.weight *= 50.0
            linear.bias *= 50.0
    torch.testing.assert_close(model(x), answer, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        model.k_norm.weight *= 3.0
    assert not torch.allclose(model(x), answer, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cross", [False, True])
def test_nothing_to_see_is_zero(kind, cross):
    model, x = attention(kind), sequence().requires_grad_()
    mask = valid(90, 0, 5, size=90)
    answer = model(x, sequence(seed=9) if cross else None, mask)
    torch.testing.assert_close(answer[1], model.out_proj.bias.expand_as(answer[1]))
    answer.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters()) and x.grad.isfinite().all()


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "causal_linear"])
def test_step_by_step_equals_the_whole_sequence(kind, masked, rope):
    model, x = attention(kind, causal=True, rope=rope, qk_norm=rope), sequence()
    mask = valid(90, 64, 7) if masked else None
    full = model(x, mask=mask)
    for steps in ([1] * 90, [40, *[1] * 50], [7, 64, 19]):
        state, parts, start = model.start(), [], 0
        for size in steps:
            now = slice(start, start + size)
            parts.append(model(x[:, now], mask=None if mask is None else mask[:, now], state=state))
            start += size
            assert state.length == start
        torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "causal_linear"])
def test_beams_go_on_from_chosen_items(kind):
    model, x = attention(kind, causal=True, rope=True), sequence(length=12)
    state = model.start()
    model(x[:, :10], state=state)
    rows = torch.tensor([2, 2, 0, 1])
    chosen = state.select(rows)
    last = model(x[rows, 10:], state=chosen)
    torch.testing.assert_close(last, model(x)[rows, 10:], atol=1e-5, rtol=1e-5)
    assert state.length == 10 and chosen.length == 12
    torch.testing.assert_close(model(x[:, 10:], state=state), model(x)[:, 10:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_of_chosen_items(kind):
    model, x, context = attention(kind), sequence(length=4), sequence(length=20, seed=6)
    rows = torch.tensor([1, 1, 0])
    state = model.remember(context, valid(20, 13, 5))
    torch.testing.assert_close(model(x[rows], state=state.select(rows)), model(x, state=state)[rows])
    assert state.closed and state.select(rows).closed


def test_the_state_of_linear_attention_does_not_grow():
    model = attention("causal_linear")
    state = model.start()
    shapes = []
    for part in sequence(length=60).split(20, 1):
        model(part, state=state)
        shapes.append((state.sums.shape, state.values.shape, state.peak.shape))
    assert len(set(shapes)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.filterwarnings("error")
def test_autocast(kind, dtype, qk_norm):
    """The answer has the type that autocast gives, and linear attention sums in float32."""
    model, x, mask = attention(kind, causal=True, rope=True, qk_norm=qk_norm), sequence(), valid(90, 64, 7)
    exact = model(x, mask=mask)
    with torch.autocast("cpu", dtype):
        low = model(x, mask=mask)
    assert low.dtype == dtype
    low.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(low[mask].float(), exact[mask], atol=0.03, rtol=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_computes_the_same(kind, monkeypatch):
    monkeypatch.setattr(favor_module, "SPAN", 32)
    model, x, mask = attention(kind, causal=True, rope=True), sequence(), valid(90, 64, 0, size=90)
    answers = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        for module in model.modules():
            if isinstance(module, Favor):
                module.redraw(seeded(3))
        answer = model(x.to(device), mask=mask.to(device))
        answer.square().sum().backward()
        answers.append([answer.cpu(), *(p.grad.cpu().clone() for p in model.parameters())])
    for ours, theirs in zip(*answers):
        torch.testing.assert_close(theirs, ours, atol=1e-3, rtol=1e-3)


def test_sums_are_in_float32_whatever_the_inputs_are():
    """The sum of 3,000 equal numbers: in bfloat16 it would stop growing at 256, in float16 overflow at 65,504."""
    value = torch.full((1, 1, 3000, 8), 40.0)
    query, key, _ = inputs(1, 1, 3000, 3000)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (x.to(dtype) for x in (query, key, value))
        favor = Favor(8).to(dtype)
        with torch.autocast("cpu", dtype):
            for answer in (favor(q, k, v), favor.causal(q, k, v)):
                assert answer.dtype == dtype
                torch.testing.assert_close(answer.float(), value, atol=0, rtol=0.01)


def test_dropout_is_of_training_alone():
    model, x = attention("softmax", dropout=0.5), sequence()
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_wrong_sizes():
    with pytest.raises(ValueError, match="10 numbers cannot be divided among 4 heads"):
        Attention(10, 4)
    with pytest.raises(ValueError, match="a head of size 5 is odd"):
        Rotary(5)
    with pytest.raises(ValueError, match="only causal attention can go step by step"):
        attention("linear").start()


# Positions ----------------------------------------------------------------------------------------------------------


def test_rotary_is_a_turn_of_complex_numbers():
    x, positions = torch.randn(2, 3, 50, 8, generator=seeded(), dtype=torch.float64), torch.arange(7, 57)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    speeds = torch.tensor([1.0, 10000**-0.25, 10000**-0.5, 10000**-0.75], dtype=torch.float64)
    turned = pairs * torch.polar(torch.ones(50, 4, dtype=torch.float64), positions[:, None] * speeds)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(Rotary(8)(x, positions), expected, atol=1e-4, rtol=1e-4)


def test_rotary_products_depend_on_the_distance():
    query, key, rotary = (*inputs()[:2], Rotary(8))
    here, there = torch.arange(37), torch.arange(1000, 1037)
    products = [rotary(query, p) @ rotary(key, p).transpose(-1, -2) for p in (here, there)]
    torch.testing.assert_close(*products, atol=1e-3, rtol=1e-3)
    each = torch.stack([here, there])
    torch.testing.assert_close(rotary(query, each)[0], rotary(query, here)[0])
    torch.testing.assert_close(rotary(query, each)[1], rotary(query, there)[1])


def test_rotary_tells_late_positions_apart_in_half_precision():
    x = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    one, next_one = Rotary(8)(x, torch.tensor([3000, 3001]))[0, 0]
    assert not torch.equal(one, next_one)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_added_positions_go_on_where_decoding_is(kind):
    added, x = Positions(kind, 6, 50), torch.zeros(2, 40, 6)
    full = added(x)
    torch.testing.assert_close(torch.cat([added(x[:, :17], 0), added(x[:, :23], 17)], 1), full)
    if kind == "sinusoidal":
        speeds = [1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3)]
        expected = [[f(t * s) for f in (math.sin, math.cos) for s in speeds] for t in range(40)]
        torch.testing.assert_close(full[1], torch.tensor(expected), atol=1e-5, rtol=0)
    else:
        torch.testing.assert_close(full[1], added.table.weight[:40])
