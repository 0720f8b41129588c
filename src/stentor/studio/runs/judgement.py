"""Whether a training made its model worse, from what the run wrote.

A finished run got worse if

* the main metric of an evaluation set is worse than before training, beyond chance: the whole interval of the paired
  change is above zero, or, where there is none, the interval after lies above the interval before; or
* its loss exploded: at its end it is many times that of the first step (event `exploded` of `engine/nonfinite.py`).

A run without figures from before training (a model from scratch) is judged by its loss alone.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stentor.metrics.format import MINOR, deciding_first
from stentor.report.changes import Change, change_of
from stentor.studio.files import mapping, read_json, stamp
from stentor.studio.runs.progress import JsonlTail
from stentor.studio.texts import say


def results_of(folder: Path) -> dict[str, Any]:
    """The results of a run, read again only when they have changed; empty without any."""
    path = folder / "results.json"
    return _read(path, changed) if (changed := stamp(path)) else {}


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: tuple[int, int]) -> dict[str, Any]:
    return read_json(path)


def main_changes(results: Mapping[str, Any]) -> list[Change]:
    """The metric that a person looks at first, of each evaluation set."""
    first = {
        name: [m for m in deciding_first(scores) if m not in MINOR]
        for name, scores in (results.get("eval") or {}).items()
    }
    return [change_of(results, name, metrics[0]) for name, metrics in first.items() if metrics]


def got_worse(folder: Path) -> str:
    """Sentence on what got worse in the finished run of a folder, with what to do; empty if nothing did. Judged again
    when its results changed."""
    written = stamp(folder / "results.json")
    return _judged(folder, written) if written else ""


@functools.lru_cache(maxsize=512)
def _judged(folder: Path, written: tuple[int, int]) -> str:
    worse = [change for change in main_changes(results_of(folder)) if change.worse]
    figures = [say("worse_figure", metric=c.metric, set=c.set, before=c.before, after=c.after) for c in worse]
    what = [say("worse_figures", figures="; ".join(figures))] if figures else []
    ends = [e for e in JsonlTail(folder / "events.jsonl").poll() if e.get("event") in ("started", "exploded")]
    if ends and ends[-1]["event"] == "exploded":
        what.append(say("worse_loss", first=f"{ends[-1]['first']:,.4g}", last=f"{ends[-1]['last']:,.4g}"))
    if not what:
        return ""
    rate = (resolved(folder).get("optim") or {}).get("lr")
    if isinstance(rate, (int, float)) and rate:
        return " ".join([*what, say("worse_advice_rate", now=f"{rate:g}", lower=f"{rate / 3:.2g}")])
    return " ".join([*what, say("worse_advice")])


def resolved(folder: Path) -> dict[str, Any]:
    """The whole configuration of a run; empty where it is not there or cannot be read."""
    path = folder / "resolved.yaml"
    return mapping(path.read_text(encoding="utf-8")) or {} if path.is_file() else {}
