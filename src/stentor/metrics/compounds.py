"""Compounds: errors where words written apart match the same words written together.

As the Open ASR Leaderboard counts them since June 2026 (normalizer/eval_utils.py at d1e99b2 of 2026-08-21): the
alignment of kaldialign with `merge_compounds`, in which neighbouring words of one side may match one word of the other
at no cost (`white paper`, `whitepaper`). In languages other than English, stretches that differ but have the same
letters are first made one word on both sides.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from stentor.errors import ConfigError

NOTHING = "\u2400"
"""Stands for no word in an alignment."""


def _kaldialign() -> Any:
    try:
        import kaldialign

        kaldialign.batch_error_rate  # noqa: B018 - older releases know no compounds
    except (ImportError, AttributeError):
        raise ConfigError(
            "The scoring open_asr counts errors with the package kaldialign 0.12 or newer: "
            "pip install 'stentor[evaluate]'."
        ) from None
    return kaldialign


def joined_alike(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of both sides; where they differ and have the same letters (`a bc` and `ab c`), as one word each."""
    pair: tuple[list[str], list[str]] = [], []
    for tag, i, j, k, m in SequenceMatcher(None, reference, hypothesis).get_opcodes():
        sides = reference[i:j], hypothesis[k:m]
        alike = tag != "equal" and "".join(sides[0]) == "".join(sides[1])
        for words, side in zip(pair, sides):
            words += ["".join(side)] if alike else side
    return pair


def count_merged(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Substitutions, deletions, insertions and reference length."""
    counts = _kaldialign().edit_distance(reference, hypothesis, merge_compounds=True)
    return counts["sub"], counts["del"], counts["ins"], counts["ref_len"]


def align_merged(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pairs of words (joined by spaces where several match one), None where a side has none."""
    steps = _kaldialign().align(reference, hypothesis, NOTHING, merge_compounds=True)
    return [(None if a == NOTHING else a, None if b == NOTHING else b) for a, b in steps]
