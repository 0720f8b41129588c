"""Sums of the losses against torch's own, and the cases that a batch can hold."""

import pytest
import torch
from torch.nn import functional as F

from stentor.losses.all_paths import CTCLoss
from stentor.losses.base import Loss
from stentor.losses.token import CrossEntropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_chunks_give_the_loss_and_gradients_of_the_whole(monkeypatch, smoothing, bias):
    torch.manual_seed(0)
    hidden, weight = torch.randn(11, 6), torch.randn(9, 6)
    offset = torch.randn(9) if bias else None
    targets = torch.randint(0, 9, (11,))
    targets[4] = -100
    loss = CrossEntropy(label_smoothing=smoothing)

    def run():
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        total = loss.sum(targets=targets, hidden=h, weight=w, bias=offset)
        total.backward()
        return total.detach(), h.grad, w.grad

    unchunked = run()
    monkeypatch.setattr(CrossEntropy, "chunk", 9 * 3)
    for a, b in zip(unchunked, run()):
        torch.testing.assert_close(a, b)
    expected = F.cross_entropy(F.linear(hidden, weight, offset), targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(unchunked[0], expected)
    torch.testing.assert_close(loss.sum(targets=targets, logits=F.linear(hidden, weight, offset)), expected)


def test_bfloat16_is_summed_in_float32():
    torch.manual_seed(0)
    hidden, weight = torch.randn(400, 8), torch.randn(50, 8)
    targets = torch.randint(0, 50, (400,))
    exact = CrossEntropy().sum(targets=targets, hidden=hidden, weight=weight)
    half = CrossEntropy().sum(targets=targets, hidden=hidden.bfloat16(), weight=weight.bfloat16())
    assert half.dtype == torch.float32
    assert abs(half - exact) / exact < 1e-3


def test_ctc_is_the_sum_over_items():
    torch.manual_seed(0)
    log_probs = torch.randn(12, 2, 5).log_softmax(-1)
    lengths, targets, sizes = torch.tensor([12, 7]), torch.tensor([1, 2, 2, 4, 3]), torch.tensor([4, 1])
    both = CTCLoss().sum(log_probs=log_probs, lengths=lengths, targets=targets, target_lengths=sizes)
    first = CTCLoss().sum(
        log_probs=log_probs[:, :1], lengths=lengths[:1], targets=targets[:4], target_lengths=sizes[:1]
    )
    second = CTCLoss().sum(
        log_probs=log_probs[:, 1:], lengths=lengths[1:], targets=targets[4:], target_lengths=sizes[1:]
    )
    assert both > 0
    torch.testing.assert_close(both, first + second)


def test_ctc_without_any_target_is_a_zero_that_reaches_the_head():
    head = torch.nn.Linear(3, 4)
    log_probs = head(torch.randn(6, 0, 3)).log_softmax(-1)
    empty = torch.zeros(0, dtype=torch.long)
    total = CTCLoss().sum(log_probs=log_probs, lengths=empty, targets=empty, target_lengths=empty)
    total.backward()
    assert total == 0
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


def test_a_target_longer_than_its_frames_counts_as_zero():
    log_probs = torch.randn(2, 1, 4).log_softmax(-1)
    total = CTCLoss().sum(
        log_probs=log_probs,
        lengths=torch.tensor([2]),
        targets=torch.tensor([1, 2, 3]),
        target_lengths=torch.tensor([3]),
    )
    assert total == 0


def test_types_are_found_by_name():
    assert isinstance(Loss.model_validate("cross_entropy"), CrossEntropy)
    assert isinstance(Loss.model_validate({"type": "ctc", "weight": 0.5}), CTCLoss)
