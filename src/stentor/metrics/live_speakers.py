"""Speakers of words: how many words two ways of telling speakers apart give to different people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stentor.metrics.score import Score


def confused(recordings: Iterable[Sequence[tuple[str | None, str | None]]]) -> Score:
    """Share of words with another speaker than in the reference: of each recording (speaker, speaker in the reference)
    of its words, where the names of one are those of the other that agree most. A word without a speaker in the
    reference is not counted."""
    from scipy.optimize import linear_sum_assignment

    wrong = total = 0
    for pairs in recordings:
        pairs = [pair for pair in pairs if pair[1] is not None]
        if not pairs:
            continue
        sides = [list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1)]
        counts = np.zeros([len(names) for names in sides], int)
        for a, b in pairs:
            counts[sides[0].index(a), sides[1].index(b)] += a is not None
        wrong += len(pairs) - int(counts[linear_sum_assignment(counts, maximize=True)].sum())
        total += len(pairs)
    return Score(wrong / max(total, 1), wrong, total)
