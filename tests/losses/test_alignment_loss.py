"""The alignment loss: least at the truth, a sum over words, and what it does with times that are not known."""

import pytest
import torch

from stentor.losses.alignment import doubtful
from stentor.losses.base import Loss

STEP = 0.01


def prediction(times, points=60, sharp=8.0, batch=1):
    """Scores that say exactly these times: [W, 2] in seconds."""
    times = torch.tensor(times).expand(batch, -1, -1)
    grid = torch.arange(points) * STEP
    start, end = (-sharp * 50 * (grid - times[..., i : i + 1]).abs() for i in (0, 1))
    share = (grid + STEP / 2).minimum(times[..., 1:]) - (grid - STEP / 2).maximum(times[..., :1])
    share = share.clamp(min=0) / STEP
    inside = torch.cat([share, 1 - share.sum(1, keepdim=True)], 1).clamp(min=1e-3).log()
    return {
        "start": start.log_softmax(-1),
        "end": end.log_softmax(-1),
        "inside": inside,
        "words": torch.ones(times.shape[:2], dtype=torch.bool),
        "points": torch.full((batch,), points),
        "step": STEP,
    }


TRUE = [[0.05, 0.15], [0.2, 0.31], [0.4, 0.55]]


@pytest.mark.parametrize("term", ["boundaries", "attention"])
def test_least_at_the_truth(term):
    loss = Loss.model_validate({"type": "alignment", "boundaries": 0, "attention": 0, "monotonicity": 0, term: 1})
    at = {
        shift: loss.sum(**prediction([[a + shift, b + shift] for a, b in TRUE]), times=torch.tensor([TRUE]))
        for shift in (-0.03, -0.01, 0.0, 0.01, 0.03)
    }
    assert min(at, key=at.get) == 0.0 and at[-0.03] > at[-0.01] and at[0.03] > at[0.01]


def test_times_between_points_pull_to_both():
    loss = Loss.model_validate({"type": "alignment", "attention": 0, "blur": 0.0})
    start = torch.zeros(1, 1, 10).log_softmax(-1).requires_grad_()
    outputs = {"start": start, "end": start.detach(), "words": torch.ones(1, 1, dtype=torch.bool)}
    loss.sum(**outputs, points=torch.tensor([10]), step=STEP, times=torch.tensor([[[0.0425, 0.07]]])).backward()
    pulled = -start.grad[0, 0]
    assert pulled[4].item() == pytest.approx(0.75, abs=1e-4) and pulled[5].item() == pytest.approx(0.25, abs=1e-4)
    assert pulled.sum().item() == pytest.approx(1.0, abs=1e-4)


def test_words_out_of_order_cost_their_seconds():
    loss = Loss.model_validate({"type": "alignment", "boundaries": 0, "attention": 0, "monotonicity": 1})
    swapped = prediction([TRUE[1], TRUE[0], TRUE[2]], sharp=40)
    back = (sum(TRUE[1]) - sum(TRUE[0])) / 2
    assert loss.sum(**swapped, times=torch.tensor([TRUE])).item() == pytest.approx(back, abs=1e-3)
    assert loss.sum(**prediction(TRUE, sharp=40), times=torch.tensor([TRUE])).item() == pytest.approx(0, abs=1e-6)


def test_padding_adds_nothing():
    loss = Loss.model_validate("alignment")
    unpadded = prediction(TRUE)
    alone = loss.sum(**unpadded, times=torch.tensor([TRUE]))
    wide = {k: torch.full((1, n, 80), -1e4) for k, n in (("start", 5), ("end", 5), ("inside", 6))}
    for key in ("start", "end"):
        wide[key][:, :3, :60] = unpadded[key]
    wide["inside"][:, :3, :60], wide["inside"][:, -1:, :60] = unpadded["inside"][:, :3], unpadded["inside"][:, 3:]
    words = torch.tensor([[True] * 3 + [False] * 2])
    padded = loss.sum(
        **wide,
        words=words,
        points=torch.tensor([60]),
        step=STEP,
        times=torch.cat([torch.tensor([TRUE]), torch.zeros(1, 2, 2)], 1),
    )
    assert padded.item() == pytest.approx(alone.item(), rel=1e-5)


def test_a_word_without_times_teaches_nothing_about_times():
    loss = Loss.model_validate({"type": "alignment", "monotonicity": 0})
    times = torch.tensor([TRUE])
    times[0, 1] = torch.nan
    wrong, right = prediction([TRUE[0], [0.16, 0.18], TRUE[2]]), prediction(TRUE)
    values = []
    for outputs in (wrong, right):
        outputs["start"].requires_grad_()
        value = loss.sum(**outputs, times=times)
        value.backward()
        assert outputs["start"].grad.isfinite().all() and outputs["start"].grad[0, 1].abs().sum() == 0
        values.append(value.item())
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_where_a_word_without_times_may_lie():
    at = torch.tensor([[[2.0, 4.0], [0.0, 0.0], [8.0, 9.0], [0.0, 0.0]]])
    words = torch.tensor([[True] * 4])
    known = torch.tensor([[True, False, True, False]])
    assert doubtful(at, words, known, 12)[0].nonzero().flatten().tolist() == [5, 6, 7, 10, 11]
    padding = torch.tensor([[True] * 3 + [False]])
    assert doubtful(at, padding, known, 12)[0].nonzero().flatten().tolist() == [5, 6, 7]
