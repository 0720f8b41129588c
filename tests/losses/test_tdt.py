"""The TDT loss against the sum over all paths and transformers' own."""

import pytest
import torch
from lattices import TOKENS, brute_force, gradients, random_case
from transformers.loss.loss_tdt import tdt_loss

from stentor.losses.all_paths import RNNTLoss, TDTLoss
from stentor.losses.base import Loss

DURATIONS = [(0, 1, 2, 3, 4), (1, 2), (0, 1), (0, 2, 1, 3), (0, 3), (1,), (4, 0, 2)]


def test_loss_and_gradient_are_those_of_the_sum_over_all_paths():
    aligned = 0
    for seed in range(84):
        durations, sigma = DURATIONS[seed % len(DURATIONS)], (0.0, 0.05)[seed % 2]
        case = random_case(seed, len(durations))
        ours = TDTLoss(rows=1 + seed % 11, sigma=sigma).sum(**case, durations=durations)
        all_paths = brute_force(case, durations, sigma)
        torch.testing.assert_close(ours, all_paths, rtol=1e-12, atol=1e-12)
        expected = gradients(all_paths, case) if all_paths.requires_grad else [torch.zeros(())] * 4
        for a, b in zip(gradients(ours, case), expected):
            torch.testing.assert_close(a, b.expand_as(a).to(a), rtol=1e-10, atol=1e-12)
        aligned += all_paths.requires_grad
    assert aligned > 60


def test_gradient_is_that_of_finite_differences():
    case = random_case(3, 3)
    for name in ("encoder", "predictor"):
        case[name] = case[name].detach().nan_to_num().requires_grad_()

    def loss(encoder, predictor, *_):
        moved = {**case, "encoder": encoder, "predictor": predictor}
        return TDTLoss(rows=5, sigma=0.1, omega=0.3).sum(**moved, durations=(0, 1, 2))

    assert torch.autograd.gradcheck(
        loss, (case["encoder"], case["predictor"], *case["joint"].parameters()), fast_mode=True
    )


@pytest.mark.parametrize("sigma", [0.0, 0.05])
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_loss_and_gradient_are_those_of_transformers(seed, sigma):
    durations = [0, 1, 2, 3, 4]
    case = random_case(seed, len(durations), frames=40, tokens=15)
    for name in ("encoder", "predictor"):
        case[name] = (
            case[name].detach().nan_to_num().float()[:, : int(case["lengths"].max() if name == "encoder" else 99)]
        )
        case[name].requires_grad_()
    case["joint"].float()
    ours = TDTLoss(rows=64, sigma=sigma).sum(**case, durations=durations)
    logits = case["joint"](case["encoder"][:, :, None], case["predictor"][:, None])
    theirs = tdt_loss(
        logits[..., :TOKENS],
        logits[..., TOKENS:],
        case["targets"].clamp(min=0),
        case["lengths"],
        case["target_lengths"],
        case["blank"],
        durations,
        sigma,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for a, b in zip(gradients(ours, case), gradients(theirs, case)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_omega_is_the_share_of_the_rnnt_loss_of_the_tokens_alone():
    case = random_case(4, 3)
    both = TDTLoss(omega=0.25).sum(**case, durations=(0, 1, 2))
    tokens = RNNTLoss().sum(**{**case, "joint": lambda *states: case["joint"](*states)[..., :TOKENS]})
    torch.testing.assert_close(both, 0.75 * TDTLoss().sum(**case, durations=(0, 1, 2)) + 0.25 * tokens)


def test_evaluation_measures_the_probability_itself():
    loss = TDTLoss(sigma=0.02, omega=0.1, rows=5, weight=2.0).unregularised()
    assert (loss.sigma, loss.omega, loss.rows, loss.weight) == (0, 0, 5, 2)


def test_rows_and_padding_change_nothing():
    durations = (0, 1, 2, 4)
    case = random_case(4, len(durations), frames=30, tokens=12)
    batch = TDTLoss(rows=13, omega=0.2).sum(**case, durations=durations)
    single = 0
    for i, (frames, size) in enumerate(zip(case["lengths"].tolist(), case["target_lengths"].tolist())):
        item = {
            **case,
            "encoder": case["encoder"][i, None, :frames],
            "predictor": case["predictor"][i, None, : size + 1],
        }
        item |= {k: case[k][i, None] for k in ("lengths", "targets", "target_lengths")}
        item["targets"] = item["targets"][:, :size]
        single = single + TDTLoss(omega=0.2).sum(**item, durations=durations)
    torch.testing.assert_close(batch, single, rtol=1e-12, atol=0)
    for a, b in zip(gradients(batch, case), gradients(single, case)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_targets_longer_than_their_frames_count_as_zero_where_each_token_takes_a_frame():
    case = random_case(4, 1)
    case |= {"lengths": case["target_lengths"].clamp(min=1), "targets": case["targets"].clamp(min=0)}
    total = TDTLoss().sum(**case, durations=(1,))  # one frame for each token leaves none for the blank at the end
    none_out = brute_force({**case}, (1,))
    assert total == none_out
    assert all(g.isfinite().all() for g in gradients(total, case))


def test_the_type_is_known_by_name():
    assert isinstance(Loss.model_validate({"type": "tdt", "sigma": 0.02}), TDTLoss)
