"""Leaks: what the sets that measure the rounds share with the data that the rounds learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stentor.data.cut import UnusableRecord
from stentor.dataloading.leakage import leakage
from stentor.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.config.schema import Config

ALWAYS = ("ids", "recordings")
"""What no set may share with the data of the rounds."""


def refuse_leaks(config: Config, human: Sequence[Cut], unlabelled: Sequence[Cut]) -> None:
    """Raise DataError where the test set shares ids, recordings, speakers or texts with the training data or with what
    is to be labelled, or the set that decides shares ids or recordings with them."""
    improve = config.improve
    assert improve is not None
    test = improve.reports(config)
    refused = {("data.test", test): [*ALWAYS, *(k for k in ("speakers", "texts") if k not in improve.may_share)]}
    decides, apart = improve.decides(config)
    if apart:
        refused["data.eval", decides] = [*ALWAYS]
    problems: list[str] = []
    found: set[str] = set()
    for (section, name), kinds in refused.items():
        sets = config.data.test if section == "data.test" else config.data.eval
        cuts = list(sets[name].cuts())
        for key, data in (("data.train", human), ("improve.unlabelled", unlabelled)):
            shared = leakage(data, {name: (c for c in cuts if not isinstance(c, UnusableRecord))})[name]
            counts = [f"{shared[kind][0]:,} of {shared[kind][1]:,} {kind}" for kind in kinds if shared[kind][0]]
            if counts:
                problems.append(f"`{section}.{name}` shares {', '.join(counts)} with `{key}`")
                found |= {kind for kind in kinds if shared[kind][0]}
    if problems:
        meant = "" if found <= {*ALWAYS} else ", or, where that is meant, say so with `improve.may_share`"
        raise DataError(
            f"{'; '.join(problems)}. Its figures would say nothing about new speakers and texts. Take these records "
            f"out (`exclude:` of a source){meant}."
        )
