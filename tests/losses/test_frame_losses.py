"""Losses of frame labels: torch's own on the entries that count, whatever padding holds, and all permutations tried."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.losses.diarization import (
    ENUMERATED,
    ArrivalBCE,
    PermutationInvariantBCE,
    PowersetLoss,
    assign,
    powerset_table,
)
from stentor.losses.ego import CLASSES as CLASSES_OF_EGO
from stentor.losses.ego import EgoLoss
from stentor.losses.elementwise import BCE, MSE, BCEWithLogits, Huber, SmoothL1
from stentor.losses.focal import Focal
from stentor.losses.hidden import Contrastive, NormRegularisation, WeightRegularisation, anchors
from stentor.losses.token import CrossEntropy

ENTRIES = ("mse", "mae", "smooth_l1", "huber", "bce", "bce_with_logits", "focal", "pit_bce", "ats_bce")
CLASSES = ("cross_entropy", "nll", "kl_div", "focal")


def make(kind, **fields):
    return Loss.choices()[kind](**fields)


def activity(batch=3, frames=40, speakers=3, seed=0):
    """Speakers who talk in stretches: float [B, T, S] of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(batch, frames // 5, speakers, generator=generator) < 0.4
    return steps.repeat_interleave(5, 1).float()


def outputs(shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


def of_entries():
    targets = activity()
    targets[0, 31:] = -100  # padding
    targets[1, :4] = -100  # unknown
    return outputs(targets.shape), targets


def of_classes(classes=5):
    logits = outputs((3, 12, classes))
    targets = torch.randint(0, classes, (3, 12), generator=torch.Generator().manual_seed(2))
    targets[0, 9:] = -100
    targets[2, 3] = -100
    return logits, targets


def cases():
    yield from ((kind, of_entries) for kind in ENTRIES)
    yield from ((kind, of_classes) for kind in CLASSES)
    yield "powerset", lambda: (outputs((3, 40, 7)), of_entries()[1])
    yield "ego", lambda: (outputs((3, 40, 15)), of_entries()[1])


EVERY = [pytest.param(kind, maker, id=f"{kind}-{maker.__name__}") for kind, maker in cases()]


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (MSE(), lambda x, y: F.mse_loss(x.sigmoid(), y, reduction="sum")),
        (MSE(sigmoid=False), lambda x, y: F.mse_loss(x, y, reduction="sum")),
        (make("mae"), lambda x, y: F.l1_loss(x.sigmoid(), y, reduction="sum")),
        (SmoothL1(sigmoid=False, beta=0.5), lambda x, y: F.smooth_l1_loss(x, y, reduction="sum", beta=0.5)),
        (Huber(sigmoid=False, delta=0.5), lambda x, y: F.huber_loss(x, y, reduction="sum", delta=0.5)),
        (BCE(), lambda x, y: F.binary_cross_entropy(x.sigmoid(), y, reduction="sum")),
        (BCEWithLogits(), lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum")),
        (
            BCEWithLogits(pos_weight=3, label_smoothing=0.1),
            lambda x, y: F.binary_cross_entropy_with_logits(
                x, y * 0.9 + 0.05, reduction="sum", pos_weight=torch.tensor(3.0)
            ),
        ),
        (Focal(gamma=0), lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum")),
    ],
)
def test_entries_are_scored_as_by_torch(loss, reference):
    logits, targets = of_entries()
    valid = targets != -100
    torch.testing.assert_close(loss.sum(logits=logits, targets=targets), reference(logits[valid], targets[valid]))


def test_bce_takes_probabilities_up_to_certainty():
    probabilities = torch.tensor([[[0.0], [1.0], [0.0], [1.0], [0.3]]], requires_grad=True)
    targets = torch.tensor([[[0.0], [1.0], [1.0], [0.0], [1.0]]])
    total = BCE(sigmoid=False).sum(logits=probabilities, targets=targets)
    torch.testing.assert_close(total, F.binary_cross_entropy(probabilities, targets, reduction="sum"))
    total.backward()
    assert probabilities.grad.isfinite().all()


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (CrossEntropy(), lambda x, y: F.cross_entropy(x, y, reduction="sum")),
        (CrossEntropy(label_smoothing=0.1), lambda x, y: F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1)),
        (make("nll"), lambda x, y: F.nll_loss(x.log_softmax(-1), y, reduction="sum")),
        (make("kl_div"), lambda x, y: F.kl_div(x.log_softmax(-1), F.one_hot(y, 5).float(), reduction="sum")),
        (Focal(gamma=0), lambda x, y: F.cross_entropy(x, y, reduction="sum")),
    ],
)
def test_classes_are_scored_as_by_torch(loss, reference):
    logits, targets = of_classes()
    valid = targets != -100
    torch.testing.assert_close(loss.sum(logits=logits, targets=targets), reference(logits[valid], targets[valid]))
    # Frames in one row, as tokens are.
    torch.testing.assert_close(
        loss.sum(logits=logits.flatten(0, 1), targets=targets.flatten()), loss.sum(logits=logits, targets=targets)
    )


def test_nll_takes_log_probabilities_too():
    logits, targets = of_classes()
    nll = make("nll")
    torch.testing.assert_close(
        nll.sum(logits=logits.log_softmax(-1), targets=targets), nll.sum(logits=logits, targets=targets)
    )


def test_kl_divergence_of_distributions():
    logits, targets = outputs((2, 6, 4)), outputs((2, 6, 4), seed=3).softmax(-1)
    targets[0, 0] = torch.tensor([1.0, 0, 0, 0])  # 0 log 0 is 0
    targets[1, 4:] = -100
    valid = (targets != -100).all(-1)
    expected = F.kl_div(logits[valid].log_softmax(-1), targets[valid], reduction="sum")
    torch.testing.assert_close(make("kl_div").sum(logits=logits, targets=targets), expected)
    assert make("kl_div").sum(logits=targets[:1].clamp(min=1e-9).log(), targets=targets[:1]).abs() < 1e-5


def test_focal_is_the_formula_of_the_paper():
    logits, targets = of_entries()
    valid = targets != -100
    x, y = logits[valid].double(), targets[valid].double()
    p = torch.where(y == 1, x.sigmoid(), 1 - x.sigmoid())
    expected = (-torch.where(y == 1, 0.25, 0.75) * (1 - p) ** 1.5 * p.log()).sum()
    total = Focal(alpha=0.25, gamma=1.5).sum(logits=logits, targets=targets)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=0)

    logits, targets = of_classes()
    valid = targets != -100
    right = targets[valid]
    p = logits[valid].double().softmax(-1).gather(1, right[:, None])[:, 0]
    expected = (-torch.where(right == 0, 0.75, 0.25) * (1 - p) ** 1.5 * p.log()).sum()
    total = Focal(alpha=0.25, gamma=1.5).sum(logits=logits, targets=targets)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("targets", [torch.ones(1, 2, 1), torch.zeros(1, 2, dtype=torch.long)])
def test_focal_has_finite_gradients_when_the_model_is_certain(targets):
    logits = torch.tensor([[[300.0], [-300.0]]]) if targets.dim() == 3 else torch.tensor([[[300.0, 0], [-300.0, 0]]])
    logits.requires_grad_()
    total = Focal(gamma=0.5).sum(logits=logits, targets=targets)
    total.backward()
    torch.testing.assert_close(total.detach(), torch.tensor(300.0))
    assert logits.grad.isfinite().all()


def brute_force(logits, targets, entry):
    """The least total of any order of targets, item by item."""
    total = 0.0
    for x, y in zip(logits, targets):
        orders = permutations(range(y.shape[-1]))
        total += min(entry(x, y[:, list(order)]) for order in orders)
    return total


@pytest.mark.parametrize("speakers", [1, 2, 3, 4])
@pytest.mark.parametrize("fields", [{}, {"pos_weight": 2.5, "label_smoothing": 0.1}])
def test_pit_is_the_best_of_all_permutations(speakers, fields):
    targets = activity(batch=4, speakers=speakers)
    targets[0, 31:] = -100
    targets[1, :4] = -100
    targets[2, 10:20, 0] = -100  # one speaker's activity is unknown for a while
    logits = outputs(targets.shape)
    plain = BCEWithLogits(**fields)
    expected = brute_force(logits, targets, lambda x, y: plain.sum(logits=x, targets=y).item())
    assert make("pit_bce", **fields).sum(logits=logits, targets=targets).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["pit_bce", "powerset"])
@pytest.mark.parametrize("permutation", ["hard", "loss"])
def test_the_order_of_speakers_does_not_matter(kind, permutation):
    targets = activity(batch=4, speakers=3)
    if kind == "pit_bce":
        logits = outputs(targets.shape)
    else:  # a model that is mostly right: the frames of agreement of two orders are never equally many
        classes = [classes_of(y, powerset_table(3, 3)) for y in targets[..., [2, 0, 1]]]
        logits = 3 * F.one_hot(torch.stack(classes), 8) + outputs((4, 40, 8)) / 2
    loss = make(kind, **({"permutation": permutation} if kind == "powerset" else {}))
    totals = [loss.sum(logits=logits, targets=targets[..., list(o)]) for o in permutations(range(3))]
    torch.testing.assert_close(torch.stack(totals), totals[0].expand(6))


@pytest.mark.parametrize("speakers", [1, 3])
def test_each_target_speaker_is_scored_by_its_classes(speakers):
    targets = activity(batch=4, speakers=speakers)
    targets[0, 31:] = -100
    logits = outputs((*targets.shape[:2], speakers * CLASSES_OF_EGO))

    def entry(x, y):
        """Alone, in overlap, one other, several, nobody: counted by hand."""
        total = 0.0
        for frame, active in zip(x.view(-1, speakers, CLASSES_OF_EGO), y):
            for target in range(speakers) if active[0] >= 0 else ():
                others = int(active.sum() - active[target])
                name = min(others, 1) if active[target] else {0: 4, 1: 2}.get(others, 3)
                total -= frame[target].log_softmax(-1)[name].item()
        return total

    expected = brute_force(logits, targets, entry)
    assert EgoLoss().sum(logits=logits, targets=targets).item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match=f"needs a model with {5 * speakers} outputs, not 4"):
        EgoLoss().sum(logits=logits[..., :4], targets=targets)


def test_enumerating_and_hungarian_agree(monkeypatch):
    for slots in range(1, ENUMERATED + 1):
        cost = torch.rand(8, slots, slots, generator=torch.Generator().manual_seed(slots))
        tried = assign(cost)
        with monkeypatch.context() as patch:
            patch.setattr("stentor.losses.diarization.ENUMERATED", 0)
            assigned = assign(cost)
        torch.testing.assert_close(tried, assigned)  # random costs have no ties
        for item, order in zip(cost, tried):
            least = min(sum(item[i, j] for i, j in enumerate(o)) for o in permutations(range(slots)))
            torch.testing.assert_close(item[torch.arange(slots), order].sum(), least)


def test_pit_of_more_slots_than_are_enumerated_finds_a_planted_order():
    targets = activity(speakers=ENUMERATED + 2, seed=5)
    order = torch.randperm(ENUMERATED + 2, generator=torch.Generator().manual_seed(0))
    logits = (targets[..., order] * 2 - 1) * 3
    total = PermutationInvariantBCE().sum(logits=logits, targets=targets)
    torch.testing.assert_close(total, F.softplus(torch.tensor(-3.0)) * targets.numel())


def test_arrival_order_puts_who_is_heard_first_first():
    targets = torch.zeros(1, 6, 4)
    targets[0, 4:, 0] = 1
    targets[0, 1, 1] = 1
    targets[0, 2:, 3] = 1  # nobody is ever heard in slot 2: it comes last
    logits = outputs(targets.shape)
    expected = F.binary_cross_entropy_with_logits(logits, targets[..., [1, 3, 0, 2]], reduction="sum")
    torch.testing.assert_close(ArrivalBCE().sum(logits=logits, targets=targets), expected)


def test_arrival_order_ignores_what_is_unknown():
    targets = torch.zeros(1, 6, 2)
    targets[0, :3] = -100
    targets[0, 3:, 1] = 1
    targets[0, 4:, 0] = 1
    logits = outputs(targets.shape)
    expected = F.binary_cross_entropy_with_logits(logits[:, 3:], targets[:, 3:, [1, 0]], reduction="sum")
    torch.testing.assert_close(ArrivalBCE().sum(logits=logits, targets=targets), expected)


def classes_of(y, table):
    """The class of each frame's activity [T, S], one frame at a time."""
    rows = [tuple(row) for row in np.asarray(table, dtype=int)]
    return torch.tensor([rows.index(tuple(frame)) for frame in y.long().tolist()])


@pytest.mark.parametrize("permutation", ["hard", "loss"])
@pytest.mark.parametrize(("speakers", "at_once"), [(1, 1), (3, 2), (4, 2), (3, 3)])
def test_powerset_is_the_cross_entropy_of_the_best_order(permutation, speakers, at_once):
    table = powerset_table(speakers, at_once)
    targets = activity(batch=5, speakers=speakers)
    crowd = targets.sum(-1) > at_once
    targets[crowd] = 0
    logits = outputs((5, 40, len(table)))
    sets = torch.as_tensor(np.asarray(table)).float()
    expected = 0.0
    for x, y in zip(logits, targets):
        orders = []
        for order in permutations(range(speakers)):
            moved = y[:, list(order)]
            score = F.cross_entropy(x, classes_of(moved, table), reduction="sum")
            wrong = (sets[x.argmax(-1)] != moved).sum()
            orders.append((wrong.item() if permutation == "hard" else score.item(), score.item()))
        best = min(first for first, _ in orders)
        expected += next(score for first, score in orders if first == best)
    total = PowersetLoss(permutation=permutation).sum(logits=logits, targets=targets)
    assert total.item() == pytest.approx(expected, rel=1e-5)


def test_powerset_keeps_as_many_speakers_as_a_set_can_hold():
    crowd = torch.tensor([[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]])
    pair = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]])
    logits = outputs((1, 2, 7))
    torch.testing.assert_close(
        PowersetLoss().sum(logits=logits, targets=crowd), PowersetLoss().sum(logits=logits, targets=pair)
    )


def test_powerset_of_another_number_of_classes_is_refused():
    with pytest.raises(ConfigError, match=r"4 or 7 or 8 outputs.*not 5"):
        PowersetLoss().sum(logits=outputs((1, 2, 5)), targets=torch.zeros(1, 2, 3))


@pytest.mark.parametrize(("kind", "maker"), EVERY)
def test_padding_changes_nothing(kind, maker):
    """Neither longer padding nor what the model says there, and no gradient comes from it."""
    logits, targets = maker()
    loss = make(kind)
    logits.requires_grad_()
    total = loss.sum(logits=logits, targets=targets)
    total.backward()

    rubbish = torch.full((len(logits), 7, logits.shape[-1]), torch.nan)
    left_out = targets == -100 if targets.dim() == 2 else (targets == -100).all(-1)
    longer = torch.cat([logits.detach().masked_fill(left_out[..., None], torch.inf), rubbish], 1).requires_grad_()
    padding = torch.full((len(logits), 7, *targets.shape[2:]), -100, dtype=targets.dtype)
    same = loss.sum(logits=longer, targets=torch.cat([targets, padding], 1))
    same.backward()
    torch.testing.assert_close(same, total)
    torch.testing.assert_close(longer.grad[:, : logits.shape[1]], logits.grad)
    assert (longer.grad[:, logits.shape[1] :] == 0).all()


@pytest.mark.parametrize(("kind", "maker"), EVERY)
def test_a_batch_is_the_sum_of_its_parts(kind, maker):
    logits, targets = maker()
    loss = make(kind)
    parts = [loss.sum(logits=logits[s], targets=targets[s]) for s in (slice(0, 1), slice(1, None))]
    torch.testing.assert_close(sum(parts), loss.sum(logits=logits, targets=targets))


@pytest.mark.parametrize(("kind", "maker"), EVERY)
def test_without_any_target_the_sum_is_a_zero_that_reaches_the_model(kind, maker):
    logits, targets = maker()
    logits.requires_grad_()
    total = make(kind).sum(logits=logits, targets=torch.full_like(targets, -100))
    assert total.item() == 0
    total.backward()
    assert (logits.grad == 0).all()


@pytest.mark.parametrize(("kind", "maker"), EVERY)
def test_half_precision_is_summed_in_float32(kind, maker):
    logits, targets = maker()
    logits = logits.bfloat16()  # exact in float32: only the arithmetic differs
    with torch.autocast("cpu", torch.bfloat16):
        half = make(kind).sum(logits=logits, targets=targets)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, make(kind).sum(logits=logits.float(), targets=targets))


@pytest.mark.parametrize(("kind", "maker"), EVERY)
def test_gradients_are_finite_and_point_downhill(kind, maker):
    logits, targets = maker()
    logits.requires_grad_()
    before = make(kind).sum(logits=logits, targets=targets)
    before.backward()
    assert logits.grad.isfinite().all()
    assert make(kind).sum(logits=logits.detach() - 0.01 * logits.grad, targets=targets) < before


@pytest.mark.parametrize("kind", ["mse", "bce_with_logits", "pit_bce"])
def test_labels_that_do_not_fit_are_refused_with_the_mend(kind):
    logits, targets = of_classes()
    with pytest.raises(ConfigError, match=f"`{kind}`.*5 outputs.*one class per frame"):
        make(kind).sum(logits=logits, targets=targets)
    with pytest.raises(ConfigError, match="3 numbers per frame"):
        make(kind).sum(logits=logits, targets=torch.zeros(3, 12, 3))


def test_cross_entropy_refuses_several_numbers_per_frame():
    logits, targets = of_entries()
    with pytest.raises(ConfigError, match=r"`cross_entropy` needs one class per frame.*3 numbers"):
        CrossEntropy().sum(logits=logits, targets=targets)


@pytest.mark.parametrize("kind", ["cross_entropy", "bce", "bce_with_logits", "pit_bce", "ats_bce", "powerset", "ego"])
def test_evaluation_measures_without_label_smoothing(kind):
    smooth = make(kind, label_smoothing=0.1, weight=0.5)
    assert smooth.unregularised() == make(kind, weight=0.5)


def test_norm_regularisation_is_over_valid_frames():
    hidden, lengths = outputs((2, 5, 8)), torch.tensor([5, 2])
    hidden[1, 2:] = torch.nan
    hidden.requires_grad_()
    total = NormRegularisation().sum(hidden=hidden, lengths=lengths)
    expected = hidden[0].detach().square().mean(-1).sum() + hidden[1, :2].detach().square().mean(-1).sum()
    torch.testing.assert_close(total.detach(), expected)
    total.backward()
    assert hidden.grad.isfinite().all()


def test_weight_regularisation_divided_by_the_frames_is_the_mean_square_of_all_weights():
    weights = [outputs((3, 4)).requires_grad_(), outputs((5,)).requires_grad_()]
    halves = [WeightRegularisation().sum(weights=weights, lengths=torch.tensor(part)) for part in ([5, 2], [13])]
    numbers = torch.cat([w.detach().flatten() for w in weights])
    torch.testing.assert_close((sum(halves) / 20).detach(), numbers.square().mean())
    (sum(halves) / 20).backward()
    torch.testing.assert_close(weights[1].grad, 2 * weights[1].detach() / 17)


def test_contrastive_is_the_formula_of_the_paper():
    embeddings = F.normalize(outputs((7, 4)), dim=-1)
    labels = torch.tensor([5, 9, 5, -100, 9, 5, 3])  # 3 has no partner: only a negative
    expected = 0.0
    members = [i for i, label in enumerate(labels) if label != -100]
    for i in members:
        positives = [p for p in members if p != i and labels[p] == labels[i]]
        others = torch.stack([embeddings[i] @ embeddings[a] / 0.2 for a in members if a != i])
        for p in positives:
            expected -= (embeddings[i] @ embeddings[p] / 0.2 - others.logsumexp(0)) / len(positives)
    torch.testing.assert_close(Contrastive(temperature=0.2).sum(embeddings=embeddings, labels=labels), expected)
    assert anchors(labels) == 5


def test_contrastive_of_nothing_is_a_zero_that_reaches_the_model():
    for labels in ([-100, -100, -100], [1, 2, 3], [1, 2, -100]):
        embeddings = F.normalize(outputs((3, 4)), dim=-1).requires_grad_()
        total = Contrastive().sum(embeddings=embeddings, labels=torch.tensor(labels))
        total.backward()
        assert total.item() == 0 and (embeddings.grad == 0).all() and anchors(torch.tensor(labels)) == 0


def test_what_a_loss_scores_and_counts():
    kinds = Loss.choices()
    assert {kind for kind, loss in kinds.items() if loss.scores == "hidden"} == {"norm_reg"}
    assert {kind for kind, loss in kinds.items() if loss.scores == "weights"} == {"weight_reg"}
    assert {kind for kind, loss in kinds.items() if loss.scores == "embeddings"} == {"contrastive"}
    per_frame = {"cross_entropy", "nll", "kl_div", "powerset", "norm_reg", "weight_reg"}
    assert {kind for kind, loss in kinds.items() if loss.per_frame} == per_frame
