"""Resampling units: what the interval of an error rate draws with replacement, speakers or recordings.

Recordings of one speaker go well or badly together, so an interval over recordings says how sure a figure is for these
speakers, not for others. Where enough speakers are known, they are drawn whole (cluster bootstrap; Liu and Peng 2020,
arXiv:1912.09508). Simulated with 20 to 60 recordings a speaker whose error rates differ by 30 to 50 %, a "95 %"
interval over speakers holds the true rate in 78 to 84 % of cases with 5 speakers, in 85 to 90 % with 8 and in 89 to
93 % from 15 on, one over recordings in 31 to 75 %. Two speakers, drawn whole, say nothing (45 to 49 %).
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

FEWEST_SPEAKERS = 5
"""With fewer known speakers, or where one is not known, recordings are drawn."""


def units_of(speakers: Sequence[str | None] | None, count: int) -> tuple[Literal["speakers", "recordings"], np.ndarray]:
    """(what is drawn, the number of its unit for each of `count` items, int64 [items]). `speakers` has one label an
    item, None where it is not known."""
    known = set(speakers or [None])
    if known & {None, ""} or len(known) < FEWEST_SPEAKERS:
        return "recordings", np.arange(count)
    return "speakers", np.unique(list(map(str, speakers or [])), return_inverse=True)[1]


def by_unit(speakers: Sequence[str | None] | None, *columns: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]]:
    """(`resampled` and `units` of a Score, the columns summed over each unit). `columns` are [items], a sum or count of
    each; `speakers` as for `units_of`."""
    kind, index = units_of(speakers, len(columns[0]))
    units = int(index.max(initial=-1)) + 1
    sums = [np.zeros(units, column.dtype) for column in columns]
    for total, column in zip(sums, columns):
        np.add.at(total, index, column)
    return {"resampled": kind, "units": units}, sums
