"""ROVER: hypotheses in slots and the words that win, on cases made by hand."""

import random

import pytest

from stentor.inference.labels.consensus import HypothesisWord, align, vote


def hypothesis(text: str, confidence: float = 0.8) -> list[HypothesisWord]:
    """Words of a text; `word:0.3` has a confidence of its own."""
    parts = [part.partition(":") for part in text.split()]
    return [HypothesisWord(word, word.lower().strip(".,"), float(sure or confidence)) for word, _, sure in parts]


def consensus(*texts: str) -> str:
    return " ".join(v.word.written for v in vote(align([hypothesis(text) for text in texts]))[0])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["the cat sat"], "the cat sat"),
        (["the cat sat"] * 3, "the cat sat"),
        (["the hat sat", "the cat sat", "the cat sat"], "the cat sat"),  # the majority wins
        (["the cat", "the cat sat", "the cat sat"], "the cat sat"),  # a word that the first one lacks
        (["the big cat sat", "the cat sat", "the cat sat"], "the cat sat"),  # a word that it has too many
        (["cat sat", "the cat sat on", "a cat sat on"], "the cat sat on"),
        (["the cat", "", ""], ""),  # most hear nothing
        (["", "the cat", "the cat"], "the cat"),
        (["", ""], ""),
        (["a b:0.3", "a c:0.9"], "a b"),  # neither of two outvotes the other
        (["x:0.4 b", "b"], "x b"),
        (["b", "x:0.9 b"], "b"),
        (["a b:0.9", "a c:0.3", "a d:0.3"], "a b"),  # of three that differ the surest one
        (["a b:0.3", "a c:0.9", "a d:0.3"], "a c"),
        (["The cat, sat.", "the cat sat", "the hat sat"], "The cat, sat."),  # written as the first of equals writes it
        (["one two three four", "two three four five", "one two three four five"], "one two three four five"),
    ],
)
def test_cases(texts, expected):
    assert consensus(*texts) == expected


def test_slots_hold_each_hypothesis_in_its_order():
    """Fiscus 1997, section 2: what is aligned may be read out again."""
    random.seed(0)
    for _ in range(50):
        texts = [[random.choice("abcd") for _ in range(random.randrange(7))] for _ in range(4)]
        hypotheses = [hypothesis(" ".join(text)) for text in texts]
        slots = align(hypotheses)
        assert all(len(slot) == 4 and any(slot) for slot in slots)
        for number, words in enumerate(hypotheses):
            assert [slot[number] for slot in slots if slot[number]] == words


def test_two_hypotheses_are_aligned_as_the_error_rate_counts():
    """Substitutions, deletions and insertions at the costs 4, 3 and 3."""
    slots = align([hypothesis("a b c d e"), hypothesis("a x c e f")])
    assert [tuple(w.key if w else "-" for w in slot) for slot in slots] == [
        ("a", "a"),
        ("b", "x"),
        ("c", "c"),
        ("d", "-"),
        ("e", "e"),
        ("-", "f"),
    ]


def test_agreement_and_confidence():
    votes, agreement = vote(align([hypothesis(t) for t in ("a:0.9 b:0.6", "a:0.5 b:0.8", "a:0.7 c:0.5")]))
    assert [(v.word.key, round(v.confidence, 3), round(v.share, 3)) for v in votes] == [
        ("a", 0.7, 1),
        ("b", 0.7, 0.667),
    ]
    assert agreement == pytest.approx(5 / 6)
    assert vote([]) == ([], 1.0)
    assert vote(align([hypothesis("a"), []]))[1] == 0.5
