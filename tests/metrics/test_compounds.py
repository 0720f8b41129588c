"""Errors as the Open ASR Leaderboard counts them: words written apart match the same written together."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from stentor.data.batch import Prediction
from stentor.errors import ConfigError
from stentor.metrics.wer import align, align_merged, count_errors, count_merged, joined_alike, score
from stentor.tasks.transcribe import Transcribe

kaldialign = pytest.importorskip("kaldialign", minversion="0.12")

texts = st.lists(st.sampled_from(["a", "b", "c", "ab", "ba", "abc", "d"]), max_size=8)


@given(texts, texts)
@settings(max_examples=150, deadline=None)
def test_counts_are_those_of_kaldialign_and_of_the_alignment(reference, hypothesis):
    plain = kaldialign.edit_distance(reference, hypothesis)["total"]
    assert plain == Levenshtein.distance(reference, hypothesis) == count_errors([(reference, hypothesis)])[0, :3].sum()
    merged = count_errors([(reference, hypothesis)], "compound")[0]
    assert merged[:3].sum() == kaldialign.edit_distance(reference, hypothesis, merge_compounds=True)["total"] <= plain
    assert merged[3] == len(reference)
    assert sum(step != "equal" for step, *_ in align(reference, hypothesis, "compound")) == merged[:3].sum()
    if len({*reference, *hypothesis}) <= 1:  # nothing can be written together
        assert merged[:3].sum() == plain


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors", "total"),
    [
        ("white paper", "whitepaper", 0, 2),
        ("whitepaper", "white paper", 0, 1),
        ("the white paper here", "the whitepaper there", 1, 4),
        ("white paper", "whitepapers", 2, 2),
        ("no body", "nobody", 0, 2),
        ("a bc", "ab c", 2, 2),  # of several words on both sides none are merged
        ("", "white paper", 2, 0),
    ],
)
def test_compounds(reference, hypothesis, errors, total):
    counts = count_merged(reference.split(), hypothesis.split())
    assert (sum(counts[:3]), counts[3]) == (errors, total)


def test_stretches_with_the_same_letters_are_joined_in_other_languages():
    assert joined_alike(["x", "a", "bc", "y"], ["x", "ab", "c", "y"]) == (["x", "abc", "y"], ["x", "abc", "y"])
    assert joined_alike(["x", "a", "bc"], ["y", "ab", "c"]) == (["x", "a", "bc"], ["y", "ab", "c"])
    pair = [["haus boot an", "e mail"], ["hausb oot an", "email"]]
    assert score(*pair, "none", ["de", "de"], "compound").errors == 0
    assert score(*pair, "none", ["de", "de"], "compound").total == 3  # what is joined is one word
    assert score(*pair, "none", ["en", "en"], "compound").errors == 2


def test_the_alignment_shows_what_was_merged():
    assert align_merged(["white", "paper", "x"], ["whitepaper", "y", "z"]) == [
        ("white paper", "whitepaper"),
        ("x", "y"),
        (None, "z"),
    ]
    frequent = score(["white paper x"], ["whitepaper y z"], "none", unit="compound").details["frequent"]
    assert frequent == {"substitutions": [["x", "y", 1]], "deletions": [], "insertions": [["z", 1]]}


def test_the_task_scores_so():
    predictions = [Prediction("1", {"text": "The white paper's colour"}, {"text": "the whitepapers color"})]
    board = Transcribe(normalizer="open_asr", scoring="open_asr").score(predictions)["wer"]
    assert (board.errors, board.total, board.details["compounds"]) == (0, 5, "merged")  # white paper s, whitepapers
    assert Transcribe(normalizer="open_asr").score(predictions)["wer"].errors == 3
    change = Transcribe(scoring="open_asr").change(predictions, [Prediction("1", {"text": "a"}, {"text": "a"})])
    assert set(change) <= {"wer", "cer"}


def test_without_kaldialign_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldialign", None)
    with pytest.raises(ConfigError, match=r"needs kaldialign, .*: pip install 'stentor\[evaluate\]'"):
        score(["a"], ["b"], unit="compound")
