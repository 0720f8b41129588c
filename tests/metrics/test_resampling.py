"""What intervals draw: speakers where enough are known, else recordings."""

import numpy as np
import pytest

from stentor.callbacks.console import scores_text
from stentor.metrics.score import FEWEST_SPEAKERS, by_unit
from stentor.metrics.wer import bootstrap, relative_change, score

SPEAKERS = [f"s{i // 20}" for i in range(120)]
REFERENCES = ["a b c d e"] * 120
HYPOTHESES = ["x y c d e" if s in ("s1", "s4") else "a b c d e" for s in SPEAKERS]
"""Two of six speakers have all errors."""


def test_speakers_are_drawn_whole():
    result = score(REFERENCES, HYPOTHESES, "none", groups={"speaker": SPEAKERS})
    assert (result.resampled, result.units) == ("speakers", 6)
    sums = np.array([0, 40, 0, 0, 40, 0]), np.full(6, 100)
    assert (result.low, result.high) == bootstrap(*sums)
    recordings = score(REFERENCES, HYPOTHESES, "none")
    assert (recordings.resampled, recordings.units) == ("recordings", 120)
    assert recordings.value == result.value and recordings.high - recordings.low < (result.high - result.low) / 2
    assert {"resampled": "speakers", "units": 6}.items() <= result.as_dict().items()
    assert "by 6 speakers" in scores_text({"wer": result})


@pytest.mark.parametrize(
    "speakers",
    [
        [f"s{i % 2}" for i in range(120)],  # two
        [f"s{i % (FEWEST_SPEAKERS - 1)}" for i in range(120)],  # too few
        [None, *SPEAKERS[1:]],  # one not known
        ["", *SPEAKERS[1:]],
        [None] * 120,
    ],
)
def test_recordings_are_drawn_where_speakers_are_few_or_not_known(speakers):
    result = score(REFERENCES, HYPOTHESES, "none", groups={"speaker": speakers})
    plain = score(REFERENCES, HYPOTHESES, "none")
    assert (result.resampled, result.units, result.low, result.high) == ("recordings", 120, plain.low, plain.high)
    known = len(set(speakers))
    assert (f"by 120 recordings of {known} speakers" in scores_text({"wer": result})) == (known > 1)


def test_without_speakers_the_text_says_nothing_of_them():
    assert "by" not in scores_text({"wer": score(REFERENCES, HYPOTHESES, "none")})


def test_changes_draw_speakers_too():
    after = ["x b c d e" if h != r else h for r, h in zip(REFERENCES, HYPOTHESES)]
    after[0] = "z b c d e"  # one more error for a speaker who had none
    change = relative_change(REFERENCES, HYPOTHESES, after, "none", speakers=SPEAKERS)
    assert (change.resampled, change.units) == ("speakers", 6)
    before = np.array([0, 40, 0, 0, 40, 0])
    assert (change.low, change.high) == bootstrap(np.array([1, -20, 0, 0, -20, 0]), before)
    assert change.details["better"] == pytest.approx(1 - (4 / 6) ** 6, abs=0.03)  # one of two speakers is drawn
    plain = relative_change(REFERENCES, HYPOTHESES, after, "none")
    assert plain.value == change.value and (plain.resampled, plain.units) == ("recordings", 120)


def test_sums_keep_their_kind():
    units, (whole, real) = by_unit(list("abcdea"), np.arange(6), np.full(6, 0.5))
    assert units == {"resampled": "speakers", "units": 5}
    assert (
        whole.tolist() == [5, 1, 2, 3, 4] and whole.dtype == np.arange(6).dtype and real.tolist() == [1.0, *[0.5] * 4]
    )
