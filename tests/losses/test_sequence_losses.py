"""Sequence losses against expected errors over all texts of a tiny language, and over all draws of a group."""

import itertools

import pytest
import torch
from pydantic import ValidationError

from stentor.losses.sequence import MWER, PolicyGradient

LETTERS, LONGEST = 2, 3
END = LETTERS


class Language:
    """Texts of two letters, three long at most, of two clips: `logits` [2, prefixes, 3] of the next letter or the end
    after each prefix. A text of the greatest length needs no end."""

    def __init__(self, seed: int = 0):
        prefixes = [p for n in range(LONGEST) for p in itertools.product(range(LETTERS), repeat=n)]
        self.row = {prefix: i for i, prefix in enumerate(prefixes)}
        self.texts = [*prefixes, *itertools.product(range(LETTERS), repeat=LONGEST)]
        torch.manual_seed(seed)
        self.logits = torch.randn(2, len(prefixes), LETTERS + 1, dtype=torch.float64, requires_grad=True)
        self.errors = torch.randint(0, 4, (2, len(self.texts)), dtype=torch.float64)

    def log_probs(self, temperature: float = 1.0) -> torch.Tensor:
        """[2, texts]."""
        log_probs = (self.logits / temperature).log_softmax(-1)
        rows = []
        for text in self.texts:
            steps = [(text[:n], letter) for n, letter in enumerate(text)]
            if len(text) < LONGEST:
                steps.append((text, END))
            rows.append(sum(log_probs[:, self.row[prefix], letter] for prefix, letter in steps))
        return torch.stack(rows, 1)

    def gradient(self, value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, self.logits, retain_graph=True)[0]


def flat(language: Language, log_probs: torch.Tensor, **more) -> dict:
    """Arguments of `sum` where the hypotheses of both clips are all texts."""
    clips = torch.arange(2).repeat_interleave(len(language.texts))
    return {"log_probs": log_probs.flatten(), "errors": language.errors.flatten(), "clips": clips, **more}


def test_mwer_of_all_texts_is_the_gradient_of_the_expected_errors():
    language = Language()
    log_probs = language.log_probs()
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(2, dtype=torch.float64))
    expected = (log_probs.exp() * language.errors).sum()
    loss = MWER().sum(**flat(language, log_probs))
    torch.testing.assert_close(language.gradient(loss), language.gradient(expected), rtol=1e-4, atol=1e-6)
    baseline = language.errors.mean(1).sum()
    torch.testing.assert_close(loss, (expected - baseline).to(loss.dtype), rtol=1e-5, atol=1e-5)


def test_mwer_of_some_texts_makes_their_probabilities_add_up_to_one():
    language = Language(1)
    log_probs = language.log_probs()
    first, second = [0, 2, 5], [7, 3]
    values = torch.cat([log_probs[0, first], log_probs[1, second]])
    errors = torch.cat([language.errors[0, first], language.errors[1, second]])
    clips = torch.tensor([0, 0, 0, 1, 1])
    loss = MWER(temperature=2.0).sum(log_probs=values, errors=errors, clips=clips)
    expected = torch.zeros((), dtype=torch.float64)
    for clip, chosen in ((0, first), (1, second)):
        probs = log_probs[clip, chosen].exp().sqrt()
        wrong = language.errors[clip, chosen]
        expected = expected + (probs / probs.sum() * (wrong - wrong.mean())).sum()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(language.gradient(loss), language.gradient(expected), rtol=1e-4, atol=1e-6)


def group(loss: PolicyGradient, language: Language, draws, **more) -> torch.Tensor:
    """The loss of a group of samples, texts by their numbers, for the first clip, with the units of a reference of
    two."""
    counts = {text: draws.count(text) for text in draws}
    chosen = list(counts)
    return loss.sum(
        log_probs=language.log_probs(loss.temperature)[0, chosen],
        errors=language.errors[0, chosen],
        clips=torch.zeros(len(chosen), dtype=torch.long),
        copies=torch.tensor(list(counts.values())),
        units=torch.full((len(chosen),), 2.0),
        **more,
    )


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_policy_gradient_over_all_groups_is_the_gradient_of_the_expected_reward(temperature):
    """The mean of a group has the sample itself in it, which makes the gradient (G - 1) / G of that of the reward."""
    language = Language(2)
    loss = PolicyGradient(hypotheses=2, normalize=False, temperature=temperature)
    probs = language.log_probs(temperature)[0].exp()
    mean = torch.zeros_like(language.logits)
    for draws in itertools.product(range(len(language.texts)), repeat=2):
        mean += probs[list(draws)].prod().detach() * language.gradient(group(loss, language, draws))
    expected = (probs * language.errors[0] / 2).sum()
    torch.testing.assert_close(mean, 0.5 * language.gradient(expected), rtol=1e-4, atol=1e-6)


def test_advantages_are_those_of_grpo():
    language = Language(3)
    draws = (1, 4, 4, 9)
    rewards = -language.errors[0, list(draws)] / 2
    advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
    expected = -(advantages * language.log_probs()[0, list(draws)]).mean()
    loss = group(PolicyGradient(hypotheses=4), language, draws)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(language.gradient(loss), language.gradient(expected), rtol=1e-4, atol=1e-6)


def test_a_group_of_equal_rewards_teaches_nothing():
    language = Language(4)
    loss = group(PolicyGradient(hypotheses=4), language, (6, 6, 6, 6))
    assert not language.gradient(loss).any()


def test_kl_draws_the_model_back():
    """Where all texts have the same errors, the expected gradient is that of the divergence from the start."""
    language = Language(5)
    language.errors[:] = 1
    start = language.log_probs()[0].detach()[torch.randperm(len(language.texts))]
    loss = PolicyGradient(hypotheses=2, normalize=False, kl=0.3)
    log_probs = language.log_probs()[0]
    probs = log_probs.exp()
    mean = torch.zeros_like(language.logits)
    for draws in itertools.product(range(len(language.texts)), repeat=2):
        chosen = list(dict.fromkeys(draws))
        value = group(loss, language, draws, start_log_probs=start[chosen])
        mean += probs[list(draws)].prod().detach() * language.gradient(value)
    divergence = (probs * (log_probs - start)).sum()
    torch.testing.assert_close(mean, 0.5 * 0.3 * language.gradient(divergence), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("keys", [{"hypotheses": 1}, {"temperature": 0.0}, {"units": "phones"}])
def test_settings_that_mean_nothing_are_refused(keys):
    for loss in (MWER, PolicyGradient):
        with pytest.raises(ValidationError):
            loss(**keys)
