"""`stentor prepare words`: word times for a transcribed corpus, as a manifest with `words`.

Outcomes are appended to MANIFEST.part as they come, so that the same command goes on after a kill; at the end they are
put in the order of the data and renamed to the manifest. Beside it MANIFEST.summary.json says what was kept and what
was dropped and why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.words.worker import WordsWorker, batches
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, audio_path, text_of
from stentor.data.record_table import RecordTable
from stentor.dataloading.dataset_report import MAX_BAD
from stentor.errors import ConfigError, DataError
from stentor.inference.align.engines import engine_of
from stentor.pipeline.executor import make_executor
from stentor.pipeline.journal import Fingerprint, Journal, remove_journal, write_json, write_jsonl
from stentor.pipeline.runner import first_of, format_table, run_journaled, summarize

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.commands.prepare_options import WordsOptions

REASONS = {
    "empty_text": "no text",
    "no_words": "nothing in the text is spoken",
    "too_long_text": "more text than the audio can hold",
    "mismatch": "the text is not what is said",
    "wer": "free transcription differs more than --max-wer",
    "not_voice": "not spoken by the built-in voice",
}
"""Meanings of reasons; other reasons are about audio files."""


def prepare_words(options: WordsOptions) -> None:
    """Write the manifest, or go on where a killed command stopped. Raises ConfigError for options that do not go
    together, `Stopped` at a signal, and DataError when nothing could be kept or over 1 % of the audio cannot be used
    (the manifest is written all the same)."""
    engine = _engine(options)
    digest = Fingerprint(_description)
    cuts = RecordTable(digest.through(parse_source(options.data).cuts()))
    settings = {key: getattr(options, key) for key in ("data", "engine", "model", "max_wer", "lag")}
    settings |= {"engine": engine, "records": str(digest)}
    summary_path = options.to.with_suffix(".summary.json")
    complete = options.to.is_file() and summary_path.is_file()
    if complete and json.loads(summary_path.read_text("utf-8")).get("settings") == settings:
        print(f"{options.to} is complete; delete it to make it anew.", flush=True)
        return
    options.to.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.to.with_name(options.to.name + ".part"), settings)
    worker = WordsWorker(options.model, engine, options.lag, options.to, options.max_wer)
    groups = [cuts.select(batch) for batch in batches(cuts)]
    run_journaled(journal, worker, make_executor(options, (options.device,)), groups, title="aligning")
    summary = WordsSummary()
    write_jsonl(options.to, summary.counted(journal.lines(cut.id for cut in cuts)))
    write_json(summary_path, {"manifest": options.to.name, **summary.as_dict(), "settings": settings})
    remove_journal(journal.path)
    print(summary.table())
    print(f"written: {options.to} and {summary_path}", flush=True)
    summary.check(summary_path)


def _engine(options: WordsOptions) -> str:
    if options.to.suffix != ".jsonl":
        raise ConfigError(f"--to {options.to}: the manifest's name must end in .jsonl.")
    if options.engine == "voice":
        if options.model is not None:
            raise ConfigError("--engine voice asks the built-in voice itself: leave out --model.")
        if options.max_wer is not None:
            raise ConfigError("--engine voice knows what was said: leave out --max-wer.")
        return "voice"
    if options.model is None:
        raise ConfigError(
            "Word times need --model: a transducer, CTC or Whisper model (a folder or Hub id), or a run or export "
            "of ours with a CTC head or for the task words. Speech of the built-in voice needs --engine voice alone."
        )
    return engine_of(options.model, options.engine)[1]


def _description(cut: Cut | UnusableRecord) -> list[Any]:
    """What the word times of a record depend on."""
    if isinstance(cut, UnusableRecord):
        return [cut.id]
    return [cut.id, cut.start, cut.duration, audio_path(cut), text_of(cut)]


class WordsSummary:
    """Counts of what became of the records."""

    def __init__(self) -> None:
        self.num_timed = self.words = 0
        self.seconds = 0.0
        self.rejects: list[UnusableRecord] = []

    def counted(self, outcomes: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The records among lines of the journal; all lines are counted."""
        for outcome in outcomes:
            if "record" not in outcome:
                self.rejects.append(UnusableRecord(outcome["id"], outcome["dropped"], outcome["message"]))
                continue
            record = outcome["record"]
            self.num_timed += 1
            self.words += len(record["words"])
            self.seconds += record["duration"]
            yield record

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self.num_timed + len(self.rejects),
            "kept": self.num_timed,
            "words": self.words,
            "hours": round(self.seconds / 3600, 4),
            "dropped": {
                reason: {**group, "meaning": REASONS.get(reason, "audio that cannot be used")}
                for reason, group in summarize(self.rejects).items()
            },
        }

    def table(self) -> str:
        """For the console."""
        rows = [("kept", self.num_timed, f"{self.words:,} words, {self.seconds / 3600:.2f} hours")]
        dropped = self.as_dict()["dropped"]
        return format_table([*rows, *((f"dropped: {r}", d["count"], d["meaning"]) for r, d in dropped.items())])

    def check(self, summary_path: Path) -> None:
        """Raise DataError when over 1 % of the audio cannot be used, or nothing was kept."""
        unusable = [reject.message for reject in self.rejects if reject.reason not in REASONS]
        records = self.num_timed + len(self.rejects)
        if len(unusable) > MAX_BAD * records:
            count = f"{len(unusable):,} of {records:,} records have audio that cannot be used"
            raise DataError(f"{count}. {first_of(unusable)}")
        if not self.num_timed:
            raise DataError(f"No record got word times; {summary_path} says why.")
