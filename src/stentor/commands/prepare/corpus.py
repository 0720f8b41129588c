"""What `stentor prepare ...` does: manifests of known corpora, and the check of a data set."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = 20
"""Unusable records that an error names."""


def prepare_corpus(
    name: str,
    source: Path | None,
    to: Path,
    split: str | None,
    download: bool,
    utterances: bool,
    options: Sequence[str],
) -> None:
    """Write the manifests of a corpus to the folder `to`. Raises `DataError` when over 1 % of it is unusable."""
    from ruamel.yaml import YAML

    from stentor.data.dataset_report import MAX_BAD
    from stentor.data.manifest import write_corpus
    from stentor.sources.corpus import Corpus

    given: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"--option {option}: write KEY=VALUE, such as --option languages=[en].")
        given[key] = YAML(typ="safe").load(value)
    corpus = Corpus(
        name=name, from_=source, to=to, split=split, download=download, utterances=utterances, options=given
    )
    bad = []
    for part in write_corpus(corpus, to):
        lost = f", {len(part.unusable):,} unusable" if part.unusable else ""
        print(f"{part.path}: {part.records:,} records, {part.hours:.2f} hours{lost}", flush=True)
        if len(part.unusable) > MAX_BAD * (part.records + len(part.unusable)):
            bad.append(part)
    if bad:
        raise DataError(
            "More than 1 % of the corpus cannot be used: "
            + ", ".join(f"{len(p.unusable):,} of {p.records + len(p.unusable):,} in {p.path.stem}" for p in bad)
            + ". "
            + _named([u.message for p in bad for u in p.unusable])
        )


def check_data(specs: Sequence[str], model: str | None, to: Path, jobs: int | None) -> None:
    """Write check.html and check.json to the folder `to`. Raises `DataError` when over 1 % of the records cannot be
    used."""
    from stentor.config.load import parse_source
    from stentor.data.dataset_report import MAX_BAD, check, summary
    from stentor.report.check import render

    sources = {spec: parse_source(spec) for spec in dict.fromkeys(specs)}
    tokenizer = _tokenizer(model) if model else None
    with progress("decoding", "records") as tell:
        report = check(sources, tokenizer, jobs or os.cpu_count() or 1, tell)
    to.mkdir(parents=True, exist_ok=True)
    answer = json.dumps(report.as_dict(), indent=1, ensure_ascii=False)
    (to / "check.json").write_text(answer, encoding="utf-8")
    (to / "check.html").write_text(render(report), encoding="utf-8")
    print("\n".join(summary(report)))
    print(f"written: {to / 'check.html'} and {to / 'check.json'}", flush=True)
    if report.unusable_share > MAX_BAD:
        unusable = next(f for f in report.findings if f.kind == "unusable")
        raise DataError(
            f"{unusable.count:,} of {report.totals['records']:,} records cannot be used ({report.unusable_share:.1%}). "
            + _named([f"{r['id']}: {r['detail']}" for r in unusable.records])
        )


def _tokenizer(model: str) -> Path:
    """The tokenizer.json of a run, an export, any folder that holds one, or a Hub id."""
    from stentor.inference.load import find_export

    beside = Path(model) / "tokenizer.json"
    if beside.is_file():
        return beside
    if Path(model).exists() or "/" not in model:
        return find_export(model) / "tokenizer.json"
    from huggingface_hub import hf_hub_download

    try:  # the tokenizer alone: the weights may have many gigabytes
        return Path(hf_hub_download(model, "tokenizer.json"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"There is no folder {model}, and no tokenizer.json of it on the Hub ({error}).") from error


def _named(messages: Sequence[str]) -> str:
    more = f"\n  ... and {len(messages) - NAMED:,} more" if len(messages) > NAMED else ""
    return "The first are:\n  " + "\n  ".join(messages[:NAMED]) + more


@contextmanager
def progress(what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told (done, of how many): a bar on standard error when that is a terminal, otherwise a line
    for every tenth."""
    if not sys.stderr.isatty():
        told = 0

        def tell(done: int, total: int) -> None:
            nonlocal told
            if done * 10 // max(total, 1) > told:
                told = done * 10 // max(total, 1)
                print(f"{what}: {done:,} of {total:,} {things}", file=sys.stderr, flush=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
