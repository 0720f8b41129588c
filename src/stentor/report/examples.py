"""Example predictions and error statistics of each evaluation set, for the report."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from stentor.metrics.format import figure
from stentor.report.run_folder import RunFolder
from stentor.report.sounds import SoundBudget
from stentor.text.normalize import DEFAULT

SETS = 6
"""Evaluation sets that get examples; more would make the page too heavy."""
UNSURE = 0.5
"""Words with less confidence are marked."""


@dataclass
class Cell:
    """One step of the alignment: a reference word above an output word."""

    kind: str
    """equal, substitute, delete or insert."""
    reference: str | None
    output: str | None
    confidence: float | None = None


@dataclass
class ReportExample:
    """One prediction as the report shows it."""

    id: str
    seconds: float
    speaker: str | None
    language: str | None
    errors: int
    total: int
    cells: list[Cell] = field(default_factory=list)
    reference: str = ""
    output: str = ""
    """Set instead of `cells` when the answer is not a text: shortened JSON."""
    ctc: str | None = None
    """Output of the CTC head alone."""
    context: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    sound: str = ""
    """A data: URL."""


@dataclass
class ExampleSet:
    """Examples and error statistics of one evaluation set."""

    name: str
    items: int
    clean: int | None
    """Items without any error; None when unknown."""
    worst: list[ReportExample]
    typical: list[ReportExample]
    counts: list[tuple[str, int]] = field(default_factory=list)
    frequent: list[tuple[str, list[tuple[list[str], int, float]]]] = field(default_factory=list)
    """Kind, and per error its words, its count and its bar's length in percent."""
    groups: list[tuple[str, list[tuple[str, str, str, float]], int]] = field(default_factory=list)
    """Field of the groups; label, rate, made of, bar in percent; and how many more groups there are."""


def example_sets(
    run: RunFolder, budget: SoundBudget, timed: Collection[str] = (), drawn: Collection[str] = ()
) -> list[ExampleSet]:
    """Examples of each evaluation set: those with predictions first in the order of the results. Sets whose
    word times are shown (`timed`) get fewer, sets with timelines (`drawn`) none."""
    scores = run.results.get("eval") or {}
    names = [n for n in (*scores, *(n for n in run.predictions if n not in scores)) if n not in drawn]
    sets: list[ExampleSet] = []
    share = budget.left // max(1, min(SETS, len(run.predictions)))
    for name in names:
        metric = main_text_metric(scores.get(name, {}))
        details = scores[name][metric].get("details") or {} if metric else {}
        rows = run.predictions.get(name, []) if len(sets) < SETS else []
        breakdown = (run.results.get("by") or {}).get(name, {})  # in a table with intervals
        typical_items = 2 if name in timed else 6  # their drawings show more
        normalizer = details.get("normalizer", DEFAULT)
        worst, typical = choose(rows, normalizer, typical=typical_items) if rows else ([], [])
        part = budget.share(share)
        for example in (e for pair in zip_longest(worst, typical) for e in pair if e is not None):
            example.sound = part.player(example.record, example.seconds)
        example_set = ExampleSet(
            name=name,
            items=details.get("items") or len(rows),
            worst=worst,
            typical=typical,
            clean=details["items"] - details["items_with_errors"] if "items_with_errors" in details else None,
            counts=[(k, details[k]) for k in ("substitutions", "deletions", "insertions") if k in details],
            frequent=_frequent(details.get("frequent") or {}),
            groups=[
                _group(k.removeprefix("by_"), v, metric)
                for k, v in details.items()
                if k.startswith("by_")
                and k.removeprefix("by_") not in breakdown
                and any(row["value"] for row in v.values())
            ],
        )
        if rows or example_set.frequent or example_set.groups:
            sets.append(example_set)
    return sets


def main_text_metric(scores: Mapping[str, Any]) -> str:
    """The first metric that compares texts, or the first of all; empty without scores."""
    return next((m for m in scores if m in ("wer", "cer")), next(iter(scores), ""))


def _frequent(counts: Mapping[str, Sequence[Sequence[Any]]], top: int = 10) -> list[tuple[str, list[Any]]]:
    """Errors that were made more than once: single ones are in the examples."""
    most = max((entry[-1] for entries in counts.values() for entry in entries), default=1)
    rows = []
    for kind, entries in counts.items():
        repeated = [(list(map(str, words)), n, 100 * n / most) for *words, n in entries[:top] if n > 1]
        if repeated:
            rows.append((kind, repeated))
    return rows


def _group(
    name: str, labels: Mapping[str, Mapping[str, Any]], metric: str, top: int = 12
) -> tuple[str, list[Any], int]:
    """Groups from the worst to the best; of many, only the worst."""
    rows = sorted(labels.items(), key=lambda item: -item[1]["value"])
    most = max((row["value"] for _, row in rows), default=0) or 1
    shown = [
        (label, figure(metric, row["value"]), f"{row['errors']:,} / {row['total']:,}", 100 * row["value"] / most)
        for label, row in rows[:top]
    ]
    return name, shown, max(0, len(rows) - top)


def choose(
    rows: Sequence[Mapping[str, Any]], normalizer: str, worst: int = 6, typical: int = 6
) -> tuple[list[ReportExample], list[ReportExample]]:
    """The examples with the most errors (worst first), and others drawn at random by a hash of their ids."""
    from stentor.metrics.wer import REFERENCE

    counts = _errors(rows, normalizer)
    errors, totals = counts[:, :REFERENCE].sum(1), counts[:, REFERENCE]
    order = sorted(range(len(rows)), key=lambda i: (-errors[i], totals[i], str(rows[i]["id"])))
    bad = [i for i in order if errors[i] > 0][:worst]
    rest = sorted(set(range(len(rows))) - set(bad), key=lambda i: hashlib.blake2b(str(rows[i]["id"]).encode()).digest())

    def example(i: int) -> ReportExample:
        shown = example_of(rows[i], normalizer)
        shown.errors, shown.total = int(errors[i]), int(totals[i])  # of the texts as a whole, as they are scored
        return shown

    return [example(i) for i in bad], [example(i) for i in rest[:typical]]


def compare(
    reference: str, output: str, normalizer: str, language: str | None, words: Sequence[Mapping[str, Any]] = ()
) -> list[Cell]:
    """The two texts as written, aligned word by word on their normalised forms. Words that the normaliser leaves
    nothing of (lone punctuation) are left out. `words` carry `confidence`."""
    from stentor.metrics.wer import align

    reference_units, output_units = (_units(text, normalizer, language, reference) for text in (reference, output))
    shown = output.split()
    sure = [w.get("confidence") for w in words] if len(words) == len(shown) else [None] * len(shown)
    cells = []
    i = j = 0
    for kind, _, _ in align([key for key, _, _ in reference_units], [key for key, _, _ in output_units]):
        ref = out = place = None
        if kind != "insert":
            _, ref, _ = reference_units[i]
            i += 1
        if kind != "delete":
            _, out, place = output_units[j]
            j += 1
        cells.append(Cell(kind, ref, out, sure[place] if place is not None else None))
    return cells


def _units(text: str, normalizer: str, language: str | None, like: str) -> list[tuple[str, str, int]]:
    """(normalised form, as written, index of the word that it comes from) of each unit that is scored."""
    from stentor.text.normalize import normalize, words

    units = []
    for place, word in enumerate(text.split()):
        form = normalize(word, normalizer, language)
        parts = words(form, language, like)
        if len(parts) == 1 or (parts and " " in form):
            units.append((form, word, place))
        else:  # languages written without spaces: every character is a unit
            units += [(part, part, place) for part in parts]
    return units


def _texts(row: Mapping[str, Any]) -> tuple[str, str] | None:
    reference, output = ((row.get(side) or {}).get("text") for side in ("reference", "output"))
    return (reference, output) if isinstance(reference, str) and isinstance(output, str) else None


def _language(row: Mapping[str, Any]) -> str | None:
    return (row.get("reference") or {}).get("language") or (row.get("record") or {}).get("language")


def _errors(rows: Sequence[Mapping[str, Any]], normalizer: str) -> Any:
    """Word errors of each row as in `stentor.metrics.wer.count_errors`; zeros where there is no text."""
    from stentor.metrics.wer import count_errors, normalized_pairs

    references, outputs = zip(*(_texts(row) or ("", "") for row in rows)) if rows else ((), ())
    return count_errors(normalized_pairs(references, outputs, normalizer, [*map(_language, rows)], "word", None))


def example_of(row: Mapping[str, Any], normalizer: str) -> ReportExample:
    """A prediction as it is shown, without its sound; its errors are those between its two texts."""
    record, texts = row.get("record") or {}, _texts(row)
    example = ReportExample(
        id=str(row.get("id")),
        seconds=float(row.get("seconds") or 0.0),
        speaker=record.get("speaker"),
        language=_language(row),
        errors=0,
        total=0,
        record=record,
        context=record.get("context"),
    )
    if texts is None:
        example.reference, example.output = _short(row.get("reference")), _short(row.get("output"))
        return example
    output = row["output"]
    example.cells = compare(*texts, normalizer, example.language, output.get("words") or ())
    example.errors = sum(cell.kind != "equal" for cell in example.cells)
    example.total = sum(cell.reference is not None for cell in example.cells)
    ctc = output.get("ctc")
    example.ctc = ctc.get("text") if isinstance(ctc, dict) else ctc
    return example


def _short(value: Mapping[str, Any] | None, longest: int = 400) -> str:
    """A value that is not text, as JSON without its audio; empty where there is nothing."""
    shown = {key: part for key, part in (value or {}).items() if key != "audio"}
    text = json.dumps(shown, ensure_ascii=False) if shown else ""
    return text if len(text) <= longest else text[:longest] + " …"
