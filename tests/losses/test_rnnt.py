"""The RNN-T loss against the sum over all paths, finite differences, and what a batch and memory must not change."""

import pytest
import torch
from lattices import Joint, brute_force, gradients, random_case

from stentor.losses.all_paths import RNNTLoss
from stentor.losses.base import Loss


def one_item(case, item):
    """The arguments of a loss with one item of a batch alone, without padding."""
    frames, size = int(case["lengths"][item]), int(case["target_lengths"][item])
    return {
        **case,
        "encoder": case["encoder"][item : item + 1, :frames],
        "predictor": case["predictor"][item : item + 1, : size + 1],
        "lengths": case["lengths"][item : item + 1],
        "targets": case["targets"][item : item + 1, :size],
        "target_lengths": case["target_lengths"][item : item + 1],
    }


def test_loss_and_gradient_are_those_of_the_sum_over_all_paths():
    for seed in range(84):
        case = random_case(seed)
        ours, all_paths = RNNTLoss(rows=1 + seed % 11).sum(**case), brute_force(case)
        torch.testing.assert_close(ours, all_paths, rtol=1e-12, atol=1e-12)
        for a, b in zip(gradients(ours, case), gradients(all_paths, case)):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradient_is_that_of_finite_differences():
    case = random_case(3)
    for name in ("encoder", "predictor"):
        case[name] = case[name].detach().nan_to_num().requires_grad_()
    parameters = list(case["joint"].parameters())

    def loss(encoder, predictor, *_):
        return RNNTLoss(rows=5).sum(**{**case, "encoder": encoder, "predictor": predictor})

    assert torch.autograd.gradcheck(loss, (case["encoder"], case["predictor"], *parameters), fast_mode=True)


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_a_batch_is_its_items_one_by_one_whatever_is_in_memory(rows):
    torch.manual_seed(0)
    case = random_case(4, frames=30, tokens=12)
    assert len(case["lengths"]) > 1 and len(set(case["lengths"].tolist())) > 1
    batch = RNNTLoss(rows=rows).sum(**case)
    single = sum(RNNTLoss().sum(**one_item(case, i)) for i in range(len(case["lengths"])))
    torch.testing.assert_close(batch, single, rtol=1e-12, atol=0)
    for a, b in zip(gradients(batch, case), gradients(single, case)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def to(case, dtype):
    moved = {k: v.detach().nan_to_num().to(dtype) if k in ("encoder", "predictor") else v for k, v in case.items()}
    joint = Joint(case["joint"].head.out_features)
    joint.load_state_dict(case["joint"].state_dict())
    return {**moved, "joint": joint.to(dtype)}


def test_bfloat16_is_summed_in_float32():
    case = random_case(4, frames=60, tokens=20)
    half = to(case, torch.bfloat16)
    exact = to(to(half, torch.float32), torch.float64)  # the same numbers
    half["encoder"].requires_grad_()
    loss = RNNTLoss(rows=50).sum(**half)
    loss.backward()
    assert loss.dtype == torch.float32
    assert half["encoder"].grad.dtype == torch.bfloat16
    expected = RNNTLoss().sum(**exact)
    assert abs(loss.detach() - expected.detach()) / expected.detach() < 2e-3


def test_autocast_reaches_the_backward_pass():
    case = to(random_case(4, frames=30, tokens=12), torch.float32)
    results = []
    for rows in (20, 10_000):
        case["joint"].zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = RNNTLoss(rows=rows).sum(**case)
        loss.backward()
        results.append((loss.detach(), case["joint"].head.weight.grad))
    assert results[0][0].dtype == torch.float32
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=2e-2, atol=2e-2)


def test_dropout_in_the_joint_is_the_same_when_it_is_computed_again():
    case = random_case(4, frames=30, tokens=12)
    case["joint"].head = torch.nn.Sequential(torch.nn.Dropout(0.3), case["joint"].head)
    torch.manual_seed(5)
    total = RNNTLoss(rows=50).sum(**case)
    torch.rand(7)  # what else is drawn between forward and backward
    computed_again = gradients(total, case)
    torch.manual_seed(5)
    masks = []
    hook = case["joint"].head[0].register_forward_hook(lambda _, x, y: masks.append((y != 0).double() / 0.7))
    RNNTLoss(rows=50).sum(**case)
    hook.remove()
    case["joint"].head[0] = _Masked(torch.cat(masks))
    for a, b in zip(computed_again, gradients(RNNTLoss().sum(**case), case)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


class _Masked(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return x * self.mask


def test_frozen_joint_with_a_trained_part_gets_gradients_of_that_part_alone():
    case = random_case(4)
    case["joint"].head.requires_grad_(False)
    case["joint"].head.bias.requires_grad_(True)
    RNNTLoss(rows=4).sum(**case).backward()
    assert case["joint"].head.weight.grad is None
    assert case["joint"].head.bias.grad.abs().sum() > 0


def test_items_that_cannot_be_aligned_count_as_zero():
    case = random_case(4)
    alone = RNNTLoss().sum(**case)
    pad = {k: torch.cat([case[k], case[k][:1]]) for k in ("encoder", "predictor", "targets")}
    lengths = torch.cat([case["lengths"], torch.tensor([0])])
    sizes = torch.cat([case["target_lengths"], torch.tensor([1])])
    more = {**case, **pad, "lengths": lengths, "target_lengths": sizes}
    total = RNNTLoss().sum(**more)
    torch.testing.assert_close(total, alone)
    for a, b in zip(gradients(total, case), gradients(alone, case)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_to_align_is_a_zero_that_reaches_every_parameter(batch):
    case = random_case(0)
    case |= {
        "encoder": torch.randn(batch, 0, 5, dtype=torch.float64, requires_grad=True),
        "predictor": torch.randn(batch, 1, 5, dtype=torch.float64, requires_grad=True),
        "lengths": torch.zeros(batch, dtype=torch.long),
        "targets": torch.zeros(batch, 0, dtype=torch.long),
        "target_lengths": torch.zeros(batch, dtype=torch.long),
    }
    total = RNNTLoss().sum(**case)
    assert total == 0
    assert all(not g.any() for g in gradients(total, case))


def test_targets_without_tokens_are_the_blanks_alone():
    case = random_case(4)
    case |= {"targets": case["targets"][:, :0], "target_lengths": torch.zeros_like(case["target_lengths"])}
    logits = case["joint"](case["encoder"], case["predictor"][:, :1])
    blanks = logits.log_softmax(-1)[..., case["blank"]]
    expected = -sum(blanks[i, :n].sum() for i, n in enumerate(case["lengths"]))
    torch.testing.assert_close(RNNTLoss().sum(**case), expected)


def test_fastemit_favours_tokens_in_the_gradient_alone():
    case = random_case(4)
    plain, early = RNNTLoss().sum(**case), RNNTLoss(fastemit=0.5).sum(**case)
    assert plain == early
    blank = case["blank"]
    plain, early = (gradients(total, case)[-1] for total in (plain, early))
    assert early[blank] > plain[blank]  # going downhill there is less blank
    torch.testing.assert_close(early.sum(), torch.zeros((), dtype=torch.float64))


def test_without_gradients_the_loss_is_the_same():
    case = random_case(4, frames=30, tokens=12)
    with torch.no_grad():
        assert RNNTLoss(rows=9).sum(**case) == pytest.approx(float(RNNTLoss().sum(**case).detach()), rel=1e-12)


def test_the_type_is_known_by_name():
    assert isinstance(Loss.model_validate({"type": "rnnt", "rows": 100}), RNNTLoss)
