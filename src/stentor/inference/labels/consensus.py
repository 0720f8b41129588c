"""Consensus of several hypotheses by ROVER: words aligned into slots, in each of which the hypotheses vote.

Fiscus 1997, "A post-processing system to yield reduced word error rates: recognizer output voting error reduction
(ROVER)". Hypotheses are aligned with the slots of those before them, one after another; a slot holds a word of each
hypothesis, or nothing; a word's score combines its share of the votes and the mean confidence of its voters. With two
hypotheses, where votes are always equal, the first one's words are kept and the second one only measures the agreement,
because the more confident one often relies less on a language model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SUBSTITUTION, GAP, KNOWN_GAP = 4, 3, 2
"""Costs of the alignment, those of NIST's sclite; passing a slot in which a hypothesis has nothing already costs less,
but not so little that two different words would rather stand in two slots."""
VOTES = 0.5
"""Weight of the share of the votes in a score; the rest is that of the confidence."""
NOTHING = 0.7
"""Confidence of a hypothesis that has no word in a slot."""


@dataclass(frozen=True)
class HypothesisWord:
    """A word of a hypothesis."""

    written: str
    """Word as in the text, with its punctuation."""
    key: str
    """Word to compare, without case and punctuation."""
    confidence: float
    """From 0 to 1."""


Slot = tuple[HypothesisWord | None, ...]
"""The word of each hypothesis at one place; None where it has none."""


@dataclass(frozen=True)
class Vote:
    """The word that won a slot."""

    word: HypothesisWord
    """Word of its most confident voter."""
    confidence: float
    """Mean confidence of its voters."""
    share: float
    """Share of the hypotheses that have it."""


def align(hypotheses: Sequence[Sequence[HypothesisWord]]) -> list[Slot]:
    """The hypotheses in slots, in the order of their words. The first one's words are the slots that the others are
    aligned with, so it should be the best one."""
    slots: list[Slot] = []
    for number, words in enumerate(hypotheses):
        slots = _merged(slots, words, number)
    return slots


def vote(slots: Sequence[Slot]) -> tuple[list[Vote], float]:
    """The words that win, in their order, and the mean share of the votes over all slots, those that are won by nothing
    included (1 where there are none). Of equal scores that of the earliest hypothesis wins."""
    words, shares = [], []
    for slot in slots:
        voters: dict[str | None, list[HypothesisWord]] = {}
        for word in slot:
            voters.setdefault(word.key if word else None, []).extend([word] if word else [])
        counts = {key: len(each) or slot.count(None) for key, each in voters.items()}
        sure = {k: sum(w.confidence for w in each) / len(each) if each else NOTHING for k, each in voters.items()}
        scores = {key: VOTES * counts[key] / len(slot) + (1 - VOTES) * sure[key] for key in voters}
        best = next(iter(voters)) if len(slot) == 2 else max(voters, key=scores.__getitem__)
        shares.append(counts[best] / len(slot))
        if best is not None:
            words.append(Vote(max(voters[best], key=lambda word: word.confidence), sure[best], shares[-1]))
    return words, sum(shares) / len(shares) if shares else 1.0


def _merged(slots: Sequence[Slot], words: Sequence[HypothesisWord], number: int) -> list[Slot]:
    """The slots of `number` hypotheses with the words of one more, at the least cost. Where several ways cost the same,
    a pair comes before a word alone, and that before a slot alone."""
    passing = [KNOWN_GAP if None in slot else GAP for slot in slots]
    keys = [{word.key for word in slot if word} for slot in slots]
    costs = [[GAP * j for j in range(len(words) + 1)]]

    def paired(i: int, j: int) -> int:
        return costs[i - 1][j - 1] + (0 if words[j - 1].key in keys[i - 1] else SUBSTITUTION)

    for i, cost in enumerate(passing, 1):
        costs.append([costs[-1][0] + cost])
        for j in range(1, len(words) + 1):
            costs[i].append(min(paired(i, j), costs[i][j - 1] + GAP, costs[i - 1][j] + cost))
    merged: list[Slot] = []
    i, j = len(slots), len(words)
    while i or j:
        if i and j and costs[i][j] == paired(i, j):
            i, j = i - 1, j - 1
            merged.append((*slots[i], words[j]))
        elif j and costs[i][j] == costs[i][j - 1] + GAP:
            j -= 1
            merged.append((*(None,) * number, words[j]))
        else:
            i -= 1
            merged.append((*slots[i], None))
    return merged[::-1]
