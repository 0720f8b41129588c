"""Leaks: what the sets that measure the rounds share with the data that the rounds learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stentor.data.cut import UnusableRecord
from stentor.dataloading.leakage import KINDS, leakage
from stentor.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.config.schema import Config
    from stentor.sources.base import Source

ALWAYS = ("ids", "recordings")
"""What no set may share with the data of the rounds."""


def refuse_leaks(config: Config, human: Sequence[Cut], unlabelled: Sequence[Cut]) -> None:
    """Raise DataError where the test set shares ids, recordings, speakers or texts with the training data, with what is
    to be labelled or with recordings whose voices are spoken in; where another test set, or the set that decides,
    shares ids or recordings with these; and where a test set shares them with the set that decides or with the records
    that calibrate the labels."""
    improve = config.improve
    assert improve is not None
    learned = {"data.train": human, "improve.unlabelled": unlabelled}
    if improve.speech is not None and improve.speech.references is not None:
        learned["improve.speech.references"] = _usable(improve.speech.references)
    test, (decides, apart) = improve.reports(config.data), improve.decides(config.data)
    choose = {} if improve.labels.labelled is None else {"improve.labels.labelled": _usable(improve.labels.labelled)}
    if apart:
        choose[f"data.eval.{decides}"] = _usable(config.data.eval[decides])
    strict = [kind for kind in KINDS if kind not in improve.may_share]
    problems = []
    for name, source in config.data.test.items():
        measured = _usable(source)
        problems += _shared(f"data.test.{name}", measured, learned, strict if name == test else ALWAYS)
        problems += _shared(f"data.test.{name}", measured, choose, ALWAYS)
    if apart:
        name = f"data.eval.{decides}"
        problems += _shared(name, choose[name], learned, ALWAYS)
    if problems:
        may = any(kind in problem for problem in problems for kind in ("speakers", "texts"))
        meant = ", or, where that is meant, say so with `improve.may_share`" if may else ""
        raise DataError(
            f"{'; '.join(problems)}. Its figures would say nothing about new speakers and texts. Take these records "
            f"out (`exclude:` of a source){meant}."
        )


def _usable(source: Source) -> list[Cut]:
    return [cut for cut in source.cuts() if not isinstance(cut, UnusableRecord)]


def _shared(name: str, cuts: Sequence[Cut], learned: Mapping[str, Sequence[Cut]], kinds: Sequence[str]) -> list[str]:
    """A sentence for each of the data that the set shares something of these kinds with."""
    problems = []
    for key, data in learned.items():
        shared = leakage(data, {name: cuts})[name]
        counts = [f"{shared[kind][0]:,} of {shared[kind][1]:,} {kind}" for kind in kinds if shared[kind][0]]
        if counts:
            problems.append(f"`{name}` shares {', '.join(counts)} with `{key}`")
    return problems
