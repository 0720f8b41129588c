"""`stentor prepare words`: word times for a transcribed corpus, as a manifest with `words`.

Outcomes are appended to MANIFEST.part as they come, so that the same command goes on after a kill; at the end they are
put in the order of the data and renamed to the manifest. Beside it MANIFEST.summary.json says what was kept and what
was dropped and why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.commands.prepare.words.journal import NAMED, REASONS, Journal, replace
from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str
    to: Path
    engine: str | None = None
    model: str | None = None
    jobs: int = 1
    max_wer: float | None = None
    device: str = "auto"
    plugins: tuple[Path, ...] = ()
    lag: float | None = None


def prepare_words(request: Request) -> None:
    """Write the manifest, or go on where a killed command stopped.

    Raises ConfigError for options that do not go together, `Stopped` at a signal, and DataError when nothing could be
    kept or over 1 % of the audio cannot be used (the manifest is written all the same).
    """
    from stentor.commands.prepare.words.worker import solve_all
    from stentor.config.load import parse_source
    from stentor.data.dataset_report import MAX_BAD

    engine = _engine(request)
    cuts = list(parse_source(request.data).cuts())
    settings = {
        "data": request.data,
        "engine": engine,
        "model": request.model,
        "max_wer": request.max_wer,
        "lag": request.lag,
        "records": _fingerprint(cuts),
    }
    summary_file = request.to.with_suffix(".summary.json")
    if request.to.is_file() and summary_file.is_file():
        before = json.loads(summary_file.read_text("utf-8"))
        if before.get("settings") == settings:
            print(f"{request.to} is complete; delete it to make it anew.", flush=True)
            return
    request.to.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(request.to.with_name(request.to.name + ".part"), settings)
    todo = [cut for cut in cuts if cut.id not in journal.places]
    if len(todo) < len(cuts):
        print(f"Going on: {len(cuts) - len(todo):,} of {len(cuts):,} records were done before.", flush=True)
    with journal:
        solve_all(todo, len(cuts), engine, request, journal)
    summary = journal.write([cut.id for cut in cuts], request.to)
    facts = {"manifest": request.to.name, **summary.as_dict(), "settings": settings}
    replace(summary_file, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    journal.path.unlink()
    print(summary.table())
    print(f"written: {request.to} and {summary_file}", flush=True)
    unusable = {r: n for r, n in summary.dropped.items() if r not in REASONS}
    if sum(unusable.values()) > MAX_BAD * summary.records:
        first = [message for reason in unusable for message in summary.named[reason]][:NAMED]
        raise DataError(
            f"{sum(unusable.values()):,} of {summary.records:,} records have audio that cannot be used. The first are:"
            "\n  " + "\n  ".join(first)
        )
    if not summary.kept:
        raise DataError(f"No record got word times; {summary_file} says why.")


def _engine(request: Request) -> str:
    if request.to.suffix != ".jsonl":
        raise ConfigError(f"--to {request.to}: the manifest's name must end in .jsonl.")
    if request.engine == "voice":
        if request.model is not None:
            raise ConfigError("--engine voice asks the built-in voice itself: leave out --model.")
        if request.max_wer is not None:
            raise ConfigError("--engine voice knows what was said: leave out --max-wer.")
        return "voice"
    if request.model is None:
        raise ConfigError(
            "Word times need --model: a CTC or Whisper model (a folder or Hub id), or a run or export of ours with a "
            "CTC head or for the task words. Speech of the built-in voice needs --engine voice alone."
        )
    from stentor.inference.align import engine_of

    return engine_of(request.model, request.engine)[1]


def _fingerprint(cuts: Sequence[Cut | UnusableRecord]) -> str:
    """Changes when a record is added, taken away, or says something else."""
    from stentor.data.cut import UnusableRecord, audio_path, text_of

    digest = hashlib.sha256()
    for cut in cuts:
        facts = (
            [cut.id]
            if isinstance(cut, UnusableRecord)
            else [cut.id, cut.start, cut.duration, audio_path(cut), text_of(cut)]
        )
        digest.update(json.dumps(facts).encode())
    return f"{len(cuts)}:{digest.hexdigest()[:16]}"
