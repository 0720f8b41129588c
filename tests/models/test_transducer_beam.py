"""Beam search of transducers: at least as likely as greedy decoding, and the same in any batch."""

import pytest
import torch
from test_transducer_pretrained import KINDS, build, checkpoints, examples  # noqa: F401  (a fixture)

from stentor.losses.base import Loss
from stentor.models.decoding.transducer import Item, greedy, search
from stentor.tasks.base import Task

torch.set_num_threads(1)


def log_probability(model, states, frames, ids):
    """Of a text over all alignments, by the loss; -inf without a single one (TDT that jumps over the end)."""
    targets, lengths = torch.tensor([list(ids)], dtype=torch.long), torch.tensor([len(ids)])
    arguments = model.joint_arguments(states[None], torch.tensor([frames]), targets, lengths)
    loss = Loss.model_validate(model.term).sum(**arguments)
    return -float(loss) if loss else -torch.inf


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_of_a_beam_is_as_likely_as_the_greedy_text(kind, checkpoints):  # noqa: F811
    bundle = build(kind, checkpoints[kind])
    model = bundle.model
    with torch.no_grad():
        states, frames = model.encode(**bundle.processor.collate(examples(), labels=False).inputs)
        limits = [400] * len(frames)
        first = greedy(model, states, frames, limits)
        gains = []
        for beams in (2, 5):
            best = [answers[0] for answers in search(model, states, frames, limits, beams)]
            for row, n, path, hypothesis in zip(states, frames.tolist(), first, best):
                gains.append(
                    log_probability(model, row[:n], n, hypothesis.ids) - log_probability(model, row[:n], n, path.ids)
                )
                if kind != "parakeet_tdt":  # whose last jump may be over the end, which is no path of the loss
                    assert hypothesis.score <= log_probability(model, row[:n], n, hypothesis.ids) + 1e-3
                assert hypothesis.best <= hypothesis.score + 1e-6
    assert min(gains) > -1e-3 and max(gains) > 1.0, gains


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_a_batch_is_that_of_its_items(kind, checkpoints):  # noqa: F811
    bundle = build(kind, checkpoints[kind])
    task = Task.model_validate({"type": "transcribe", "beams": 3})
    answers = task.predict(bundle, examples())
    for answer, item in zip(answers, examples()):
        (alone,) = task.predict(bundle, [item])
        assert alone["text"] == answer["text"] and alone["log_prob"] == pytest.approx(answer["log_prob"], abs=1e-3)
        times = [(w["word"], w["start"], w["end"]) for w in answer["words"]]
        assert times == [(w["word"], w["start"], w["end"]) for w in alone["words"]]
        assert all(0 <= start <= end for _, start, end in times)
    assert any(
        a["text"] != g["text"] for a, g in zip(answers, Task.model_validate("transcribe").predict(bundle, examples()))
    )


def test_a_limit_ends_a_text(checkpoints):  # noqa: F811
    bundle = build("parakeet_rnnt", checkpoints["parakeet_rnnt"])
    with torch.no_grad():
        states, frames = bundle.model.encode(**bundle.processor.collate(examples(), labels=False).inputs)
    lengths = [len(h.ids) for h, *_ in search(bundle.model, states, frames, [3, 0, 5], 2)]
    assert all(length <= limit for length, limit in zip(lengths, [3, 0, 5])) and lengths[1] == 0 < lengths[2]


def test_ways_to_the_same_text_are_added_up():
    """... and the times are those of the likeliest one."""
    item = Item(frames=4, limit=9, beams=2, bias=None)
    start = item.ahead[0][()]
    for score, first in ((-2.0, 0), (-1.0, 1), (-3.0, 2)):
        h = type(start)(score, score, 0, (7,), (score,), ((first, first + 1),))
        item._add(h, 3)
    (together,) = item.ahead[3].values()
    assert together.score == pytest.approx(torch.tensor([-1.0, -2.0, -3.0]).logsumexp(0).item())
    assert together.best == -1.0 and together.spans == ((1, 2),) and together.log_probs == (-1.0,)
