import copy
import json
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from stentor.engine.muon import Muon, orthogonalised
from stentor.engine.optim import Plateau, build, factor, load_optimizer_state, optimizer_state
from stentor.engine.section import Optim, ParameterGroup, Schedule
from stentor.engine.sharding import own_shards
from stentor.engine.steering import Watched
from stentor.engine.tensor_files import StoredTensors, save_shards
from stentor.errors import ConfigError

TYPES = ["adam", "adamw", "sgd", "adagrad", "rmsprop", "adamax", "muon"]


class Small(nn.Module):
    """An embedding tied to the head, two hidden layers, a norm, a frozen layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(7, 6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 6))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.ctc_head = nn.Linear(6, 5)

    def forward(self, ids):
        hidden = self.frozen(self.body(self.embed(ids)))
        return self.head(hidden).square().mean() + self.ctc_head(hidden).square().mean()


def step(model, optimizers, number):
    torch.manual_seed(number)
    model(torch.randint(7, (4, 5))).backward()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] / (1 + number)
        optimizer.step()
        optimizer.zero_grad()


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def through_files(tensors, plain, folder):
    """The state as a checkpoint holds it."""
    path = save_shards(folder, "optimizer", own_shards(tensors))
    return StoredTensors([path]), json.loads(json.dumps(plain))


@pytest.mark.parametrize(
    "config",
    [Optim(type=t) for t in TYPES]
    + [
        Optim(type="sgd", momentum=0.0),
        Optim(type="sgd", nesterov=True),
        Optim(type="adamw", amsgrad=True),
        Optim(type="rmsprop", momentum=0.0),
    ],
    ids=[*TYPES, "sgd without momentum", "sgd nesterov", "adamw amsgrad", "rmsprop without momentum"],
)
def test_every_optimizer_trains_and_goes_on_bit_exactly(config, tmp_path):
    model = Small()
    start = weights(model)
    optimizers = build(config, model)
    for number in range(3):
        step(model, optimizers, number)
    moved = weights(model)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all()
        assert moved[name].equal(start[name]) == (not parameter.requires_grad), name

    saved = through_files(*optimizer_state(optimizers, model), tmp_path)
    other = copy.deepcopy(model)
    others = build(config, other)
    load_optimizer_state(others, other, *saved)
    for number in (3, 4):
        step(model, optimizers, number)
        step(other, others, number)
    straight, resumed = weights(model), weights(other)
    assert all(straight[name].equal(resumed[name]) for name in straight)
    assert not straight["body.0.weight"].equal(moved["body.0.weight"])

    fresh = copy.deepcopy(other)  # the state does matter: without it the next step is another one
    step(fresh, build(config, fresh), 5)
    step(other, others, 5)
    stateless = config.type == "sgd" and config.momentum == 0
    assert weights(fresh)["body.0.weight"].equal(weights(other)["body.0.weight"]) == stateless


def test_a_step_is_the_textbooks():
    """AdamW's first step moves by lr x sign(gradient), after the weights have decayed by lr x weight_decay."""
    model = nn.Linear(3, 2, bias=False)
    before = model.weight.detach().clone()
    (optimizer,) = build(Optim(lr=0.1, weight_decay=0.5, eps=1e-12), model)
    gradient = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
    model.weight.grad = gradient.clone()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before * (1 - 0.1 * 0.5) - 0.1 * gradient.sign())


def test_eight_bit_without_bitsandbytes_says_what_to_install():
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match=r"pip install 'stentor\[quantize\]', or take adamw"):
            build(Optim(type="adamw8bit"), Small())
    else:
        (optimizer,) = build(Optim(type="adamw8bit"), Small())
        assert type(optimizer).__name__ == "AdamW8bit"


# Groups ------------------------------------------------------------------------------------------------------------


def settings_of(model, optimizers) -> dict[str, tuple[float, float]]:
    """(peak learning rate, weight decay) of each parameter by name."""
    names = {id(p): n for n, p in model.named_parameters()}
    return {
        names[id(p)]: (g["peak"], g["weight_decay"]) for o in optimizers for g in o.param_groups for p in g["params"]
    }


def test_vectors_do_not_decay_and_frozen_parameters_are_left_out():
    model = Small()
    assert settings_of(model, build(Optim(lr=0.1, weight_decay=0.2), model)) == {
        "embed.weight": (0.1, 0.2),
        "body.0.weight": (0.1, 0.2),
        "body.0.bias": (0.1, 0.0),
        "body.1.weight": (0.1, 0.0),
        "body.1.bias": (0.1, 0.0),
        "body.3.weight": (0.1, 0.2),
        "body.3.bias": (0.1, 0.0),
        "ctc_head.weight": (0.1, 0.2),
        "ctc_head.bias": (0.1, 0.0),
    }


def test_groups_by_glob_the_first_that_matches_wins():
    model = Small()
    groups = [
        ParameterGroup(params=["body.0.*"], lr=0.01),
        ParameterGroup(params=["body.*", "embed.*"], weight_decay=0.0),
        ParameterGroup(params=["*.bias"], lr=0.0),
    ]
    got = settings_of(model, build(Optim(lr=0.1, weight_decay=0.2, groups=groups), model))
    assert got["body.0.weight"] == (0.01, 0.2) and got["body.0.bias"] == (0.01, 0.0)
    assert got["body.3.weight"] == got["embed.weight"] == (0.1, 0.0)
    assert got["ctc_head.weight"] == (0.1, 0.2) and got["ctc_head.bias"] == (0.0, 0.0)
    assert len(got) == 9, "each parameter is in one group"


@pytest.mark.parametrize("glob", ["encoder.*", "frozen.*", "Body.*"])
def test_a_group_that_matches_nothing_trainable_is_an_error(glob):
    with pytest.raises(ConfigError, match=r"optim.groups.1: no trainable .* start with: body, ctc_head, embed"):
        build(Optim(groups=[ParameterGroup(params=["body.*"]), ParameterGroup(params=[glob])]), Small())


def test_nothing_to_train_is_an_error():
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        build(Optim(), Small().requires_grad_(False))


def test_muon_takes_the_hidden_matrices():
    model = Small()
    adamw, muon = build(Optim(type="muon", lr=0.1, muon_lr=0.3, weight_decay=0.2), model)
    assert isinstance(adamw, torch.optim.AdamW) and isinstance(muon, torch.optim.Muon)
    assert settings_of(model, [muon]) == {"body.0.weight": (0.3, 0.2), "body.3.weight": (0.3, 0.2)}
    assert set(settings_of(model, [adamw])) == {
        "embed.weight",
        "body.0.bias",
        "body.1.weight",
        "body.1.bias",
        "body.3.bias",
        "ctc_head.weight",
        "ctc_head.bias",
    }


def test_muon_with_groups_and_with_nothing_but_matrices():
    model = Small()
    adamw, muon = build(
        Optim(type="muon", groups=[ParameterGroup(params=["body.0.*"], lr=0.5, weight_decay=0.0)]), model
    )
    assert settings_of(model, [muon])["body.0.weight"] == (0.5, 0.0)
    assert settings_of(model, [adamw])["body.0.bias"] == (0.5, 0.0)
    (only,) = build(Optim(type="muon"), nn.Linear(3, 3, bias=False))
    assert isinstance(only, torch.optim.Muon)


# Schedules ---------------------------------------------------------------------------------------------------------

KINDS = [
    "cosine",
    "cosine_restarts",
    "linear",
    "exponential",
    "step",
    "plateau",
    "constant",
    "inverse_sqrt",
    "warmup_stable_decay",
]


def curve(total=100, **fields) -> list[float]:
    return [factor(Schedule(**fields), step, total) for step in range(total)]


@pytest.mark.parametrize("kind", KINDS)
def test_warmup_rises_evenly_to_the_peak(kind):
    for warmup in ({"warmup_steps": 20}, {"warmup_ratio": 0.2}):
        got = curve(type=kind, **warmup, step_size=1000)
        assert got[:20] == pytest.approx([(i + 1) / 20 for i in range(20)])
        assert got[20] == pytest.approx(1.0, abs=0.03)
    assert curve(type=kind)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]), "5 % unless told otherwise"
    assert curve(type=kind, warmup_steps=0)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_warmup_it_never_rises_again(kind):
    got = curve(type=kind, warmup_steps=10, min_ratio=0.1, step_size=15, gamma=0.5)
    if kind != "cosine_restarts":
        assert all(a >= b for a, b in pairwise(got[9:]))
    assert max(got) == pytest.approx(1.0) and min(got[10:]) >= 0.1


@pytest.mark.parametrize(
    ("fields", "points"),
    [
        ({"type": "cosine"}, {0: 1, 25: 0.853553, 50: 0.5, 75: 0.146447, 99: 0.000247, 100: 0, 120: 0}),
        ({"type": "cosine", "min_ratio": 0.2}, {0: 1, 50: 0.6, 100: 0.2}),
        ({"type": "cosine_restarts", "cycles": 2}, {0: 1, 25: 0.5, 49: 0.000987, 50: 1, 75: 0.5, 99: 0.000987, 100: 0}),
        ({"type": "linear"}, {0: 1, 25: 0.75, 50: 0.5, 99: 0.01, 100: 0}),
        ({"type": "linear", "min_ratio": 0.5}, {0: 1, 50: 0.75, 100: 0.5}),
        ({"type": "exponential", "step_size": 10, "gamma": 0.5}, {0: 1, 5: 0.707107, 10: 0.5, 30: 0.125}),
        ({"type": "exponential", "step_size": 10, "gamma": 0.5, "min_ratio": 0.2}, {10: 0.5, 30: 0.2}),
        ({"type": "step", "step_size": 30, "gamma": 0.1}, {0: 1, 29: 1, 30: 0.1, 59: 0.1, 60: 0.01, 99: 0.001}),
        ({"type": "constant"}, {0: 1, 99: 1}),
        ({"type": "plateau"}, {0: 1, 99: 1}),
        ({"type": "inverse_sqrt"}, {0: 1, 3: 0.5, 99: 0.1}),
        ({"type": "warmup_stable_decay", "decay_ratio": 0.2}, {0: 1, 80: 1, 90: 0.5, 99: 0.05, 100: 0}),
        ({"type": "warmup_stable_decay", "decay_ratio": 0.2, "min_ratio": 0.4}, {79: 1, 90: 0.7, 100: 0.4}),
    ],
    ids=lambda value: value.get("type", ""),
)
def test_points_by_hand(fields, points):
    config = Schedule(**fields, warmup_steps=0)
    assert {s: factor(config, s, 100) for s in points} == pytest.approx(points, abs=1e-6)


def test_the_shape_starts_where_the_warmup_ends():
    assert factor(Schedule(type="linear", warmup_steps=20), 60, 100) == pytest.approx(0.5)
    assert factor(Schedule(type="step", warmup_steps=20, step_size=10), 29, 100) == 1
    assert factor(Schedule(type="step", warmup_steps=20, step_size=10), 30, 100) == pytest.approx(0.1)
    assert factor(Schedule(type="inverse_sqrt", warmup_steps=25), 99, 200) == pytest.approx(math.sqrt(25 / 100))


def test_a_warmup_as_long_as_the_run():
    assert curve(10, type="cosine", warmup_steps=10) == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert curve(5, type="cosine", warmup_steps=10)[-1] == 0.5
    assert curve(1, type="cosine") == [1.0]


def test_both_warmups_at_once_are_refused():
    with pytest.raises(ValueError, match="not both"):
        Schedule(warmup_steps=3, warmup_ratio=0.1)


def test_plateau_lets_some_evaluations_pass():
    plateau = Plateau(Schedule(type="plateau", patience=2, gamma=0.5, min_ratio=0.2))
    factors = []
    for value in (0.9, 0.8, 0.85, 0.8, 0.81, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7):
        plateau.see(value, Watched("dev", "wer", "min").improves(value, plateau.best))
        factors.append(plateau.factor)
    assert factors == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]


def test_plateau_where_higher_is_better_and_past_a_metric_that_is_not_a_number():
    plateau = Plateau(Schedule(type="plateau", patience=1, gamma=0.5))
    for value in (math.nan, 0.5, 0.6, 0.7):
        plateau.see(value, Watched("dev", "f1", "max").improves(value, plateau.best))
    assert (plateau.best, plateau.bad, plateau.factor) == (0.7, 0, 1.0)


def test_muon_is_the_one_of_torch(monkeypatch):
    monkeypatch.setattr("stentor.engine.muon.multiplies_bf16", lambda: True)
    torch.manual_seed(0)
    shapes = [(6, 6), (12, 6), (6, 12), (6, 6), (12, 6), (3, 3)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    start = [p.detach().clone() for p in ours]
    for step in range(5):
        for p, q in zip(ours, theirs):
            # One parameter has no gradient in the second step: its state must wait, as torch's does.
            p.grad = None if step == 1 and p is ours[3] else torch.randn(p.shape)
            q.grad = None if p.grad is None else p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q, before in zip(ours, theirs, start):
        assert (p - before).norm() > 0.3
        # bfloat16 keeps 8 bits; the order of sums differs between one product and a batch of them.
        torch.testing.assert_close(p, q, rtol=0, atol=0.02 * (q - before).abs().max().item())
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for number in states[0]:
        torch.testing.assert_close(states[0][number]["momentum_buffer"], states[1][number]["momentum_buffer"])


@pytest.mark.parametrize("shape", [(6, 6), (12, 6), (6, 12)])
def test_muon_in_float32_is_its_formula(shape, monkeypatch):
    """On a processor that is slow in bfloat16: the quintic iteration, here in float64."""
    monkeypatch.setattr("stentor.engine.muon.multiplies_bf16", lambda: False)
    a, b, c = coefficients = (3.4445, -4.7750, 2.0315)
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    expected = []
    for x in matrices.double():
        x = x / x.norm()
        for _ in range(5):
            x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
        expected.append(x)
    torch.testing.assert_close(
        orthogonalised(matrices, coefficients, 5, 1e-7).double(), torch.stack(expected), rtol=0, atol=1e-4
    )
