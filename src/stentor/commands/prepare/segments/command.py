"""`stentor prepare segments`: training records from long recordings, with a page of what was kept and why.

TO holds `manifest.jsonl` (the records), `rejects.jsonl` (every stretch that was dropped: stage, reason, value,
threshold and place), `summary.json` and `corpus.html`. Stages that look at all recordings together (`duplicates`)
divide the others into passes. A pass keeps a journal, `pass-1.jsonl.part`, so that the same command resumes after a
kill."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from stentor.commands.prepare.segments.worker import SegmentsWorker, Work, seconds
from stentor.commands.prepare_options import SegmentsOptions
from stentor.config.load import parse_section, parse_source
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import Cut, UnusableRecord, audio_path, custom_of, language_of, speaker_of, text_of
from stentor.data.fields import channel_of
from stentor.data.record_table import RecordTable, Selection
from stentor.data.storage import is_remote
from stentor.dataloading.mixing import within_hours
from stentor.errors import DataError
from stentor.inference.segments.base import Segment, SetStage, Stage
from stentor.pipeline.executor import device_names, make_executor
from stentor.pipeline.journal import Fingerprint, Journal, made_before, write_json, write_jsonl
from stentor.pipeline.runner import RecordsInJournal, format_table, refuse_rejects
from stentor.report.corpus import render
from stentor.sources.base import source_notes

FOR_STAGES = ("id", "digest", "fingerprint", "signs")
"""Measures that stages hand on to others, which no record has."""
NamedStage = tuple[str, Stage]
DEFAULT = ("vad", "quality", "duplicates")
"""Stages without `--stage`: those that need no model."""
TOGETHER, MOST = 240.0, 64
"""Seconds of recordings that a process takes at a time where that helps, and how many at most."""


def prepare_segments(options: SegmentsOptions) -> None:
    """Write the records and the page, or resume where a killed command stopped. Raises ConfigError for stages that do
    not fit and for a folder that holds other segments, `Stopped` at a signal, and DataError when nothing could be kept
    or over 1 % of the recordings cannot be used (what could be made is written all the same)."""
    stages = named([parse_section(spec, Stage, "--stage") for spec in options.stage or DEFAULT])
    work, records = recordings(options.data)
    sections = [stage.model_dump(mode="json", by_alias=True) for _, stage in stages]
    settings = {"stages": sections, "audio": options.audio, "records": records}
    summary = made_before(options.to, settings, "segments") or make_corpus(options, stages, work, settings)
    refuse_unusable(summary)
    if not summary["segments"]:
        raise DataError(f"No segment was kept; {options.to / 'corpus.html'} says why.")


def recordings(data: str) -> tuple[RecordTable[Work], str]:
    """The recordings of a source that no stage has seen, and their fingerprint."""
    source, digest = parse_source(data), Fingerprint(_description)
    cuts = digest.through(within_hours(source, source.cuts()))
    table = RecordTable(Work(index, cut) for index, cut in enumerate(cuts))
    for note in source_notes(source, "data"):
        print(note, file=sys.stderr, flush=True)
    return table, str(digest)


def refuse_unusable(summary: dict[str, Any]) -> None:
    """Raise DataError when over 1 % of the recordings of a corpus, made now or before, cannot be used."""
    refuse_rejects([each["message"] for each in summary["unusable"]], summary["recordings"])


def make_corpus(
    options: Any,
    stages: Sequence[NamedStage],
    work: RecordTable[Work],
    settings: dict[str, Any],
    more: Callable[[], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Take recordings through stages and write all files; the summary, to which `more` adds after the last stage.
    Raises `Stopped`."""
    corpus = Corpus(options.to)
    passes = _passes(stages, options.audio)
    for number, in_pass in enumerate(passes, 1):
        audio_folder = options.to / "audio" if options.audio and number == len(passes) else None
        worker = SegmentsWorker(in_pass, audio_folder, in_files=not options.audio)
        journal = run_pass(worker, work, options, {**settings, "pass": number}, f"pass {number} of {len(passes)}")
        work = corpus.add(work, journal, in_pass)
    records = RecordTable(record for each in work for record in corpus.records(each))
    write_jsonl(options.to / "manifest.jsonl", records)
    write_jsonl(options.to / "rejects.jsonl", corpus.rejects)
    summary = {**summarize_corpus(stages, corpus.counts, records, corpus.rejects), **more()}
    page = options.to / "corpus.html"
    with atomic_path(page) as part:
        part.write_text(render(options.to, summary, [stage for _, stage in stages], records, corpus.rejects), "utf-8")
    write_json(options.to / "summary.json", {**summary, "settings": settings})
    _remove_journals(options.to)
    print_summary(summary)
    print(f"written: {options.to / 'manifest.jsonl'} and {page}", flush=True)
    return summary


def _description(cut: Cut | UnusableRecord) -> list[Any]:
    """Settings that the segments of a recording, or the use of a labelled record, depend on."""
    if isinstance(cut, UnusableRecord):
        return [cut.id]
    place = [cut.id, cut.start, cut.duration, audio_path(cut), channel_of(custom_of(cut))]
    return [*place, language_of(cut), speaker_of(cut), text_of(cut)]


def _remove_journals(folder: Path) -> None:
    for path in folder.glob("pass-*.jsonl.part"):
        path.unlink()


def named(stages: Sequence[Stage]) -> list[NamedStage]:
    """Stages by their type, with a number from the second one of a type on."""
    seen: Counter[str] = Counter()
    named = []
    for stage in stages:
        seen[stage.type] += 1
        named.append((stage.type if seen[stage.type] == 1 else f"{stage.type}-{seen[stage.type]}", stage))
    return named


def _passes(stages: Sequence[NamedStage], audio: bool) -> list[list[NamedStage]]:
    """The stages in runs over the recordings: one ends with a stage that then looks at all of them. Audio is written in
    the last one, which therefore ends with none."""
    passes: list[list[NamedStage]] = [[]]
    for name, stage in stages:
        passes[-1].append((name, stage))
        if isinstance(stage, SetStage):
            passes.append([])
    return passes if passes[-1] or audio else passes[:-1]


def run_pass(
    worker: SegmentsWorker, work: RecordTable[Work], options: Any, settings: dict[str, Any], title: str
) -> Journal:
    """The journal of a pass over all recordings, which is named by `settings["pass"]`."""
    jobs = options.jobs or (None if options.ray else 1)
    executor = make_executor(options, device_names(options.device), jobs=jobs)
    groups = _groups(work, any(stage.batched for _, stage in worker.stages))
    work_of_pass = RecordsInJournal(options.to / f"pass-{settings['pass']}.jsonl", settings, title, "recordings")
    return work_of_pass.run(worker, executor, groups)


def _groups(work: RecordTable[Work], batched: bool) -> list[Selection[Work]]:
    """The recordings one by one or, for stages that take several at a time, up to `TOGETHER` seconds of them."""
    groups: list[list[int]] = []
    total = math.inf
    for index, each in enumerate(work):
        total += 0.0 if isinstance(each.cut, UnusableRecord) else each.cut.duration
        if not batched or total > TOGETHER or len(groups[-1]) == MOST:
            groups.append([])
            total = 0.0 if isinstance(each.cut, UnusableRecord) else each.cut.duration
        groups[-1].append(index)
    return [work.select(group) for group in groups]


@dataclass
class Corpus:
    """Results of the passes so far."""

    folder: Path
    rejects: RecordTable[dict[str, Any]] = field(default_factory=RecordTable)
    """As they are written, in the order of stages and data."""
    counts: list[list[float]] = field(default_factory=list)
    """Segments and seconds that each stage received and kept."""

    def add(self, work: Sequence[Work], journal: Journal, stages: Sequence[NamedStage]) -> RecordTable[Work]:
        """The recordings with the segments that a pass has kept, without those that have none."""
        counts = [[0.0] * 4 for _ in stages]
        remaining_work: RecordTable[Work] = RecordTable()
        for each, line in zip(work, journal.lines(each.id for each in work)):
            if "dropped" in line:
                place = {"id": each.id, "recording": each.id, "stage": "read", "reason": line["dropped"]}
                self.rejects.append({**place, "message": line["message"]})
                continue
            result = line["record"]
            counts = [[a + b for a, b in zip(*pair)] for pair in zip(counts, result["counts"])]
            for reject in result["rejects"]:
                segment = Segment(**reject.pop("segment"))
                self.rejects.append({**self.record(each, segment), **reject})
            remaining_work.append(Work(each.index, each.cut, [Segment(**s) for s in result["segments"]]))
        name, last = stages[-1] if stages else ("", None)
        if isinstance(last, SetStage):
            remaining_work = RecordTable(self._selected(name, last, remaining_work))
            remaining = [s for each in remaining_work for s in each.segments or ()]
            counts[-1][2:] = [len(remaining), seconds(remaining)]
        self.counts += [[round(n, 3) for n in count] for count in counts]
        return RecordTable(each for each in remaining_work if each.segments)

    def _selected(self, name: str, stage: SetStage, work: Sequence[Work]) -> Iterator[Work]:
        everything = [s.measured(id=_id(each, s)) for each in work for s in each.segments or ()]
        results = iter(stage.select(everything))
        for each in work:
            segments = []
            for _ in each.segments or ():
                result = next(results)
                if isinstance(result, Segment):
                    segments.append(result)
                else:
                    reject = {k: v for k, v in asdict(result).items() if k != "segment"}
                    self.rejects.append({**self.record(each, result.segment), "stage": name, **reject})
            yield Work(each.index, each.cut, segments)

    def records(self, work: Work) -> Iterator[dict[str, Any]]:
        """The manifest records of a recording."""
        return (self.record(work, segment) for segment in work.segments or ())

    def record(self, work: Work, segment: Segment) -> dict[str, Any]:
        """A segment as a record: its place and its measures. Paths in the folder are relative to it."""
        assert not isinstance(work.cut, UnusableRecord)
        path = _path(work, self.folder)
        place = {"audio_path": path, "start": round(work.cut.start + segment.start, 6)} if path else {}
        if "audio_path" in segment.measures:  # a file of its own
            place = {}
        channel = (work.cut.custom or {}).get("channel")
        seconds = {"duration": round(segment.seconds, 3)}
        origin = {"recording": work.id, "offset": segment.start}
        return {
            "id": _id(work, segment),
            **place,
            **seconds,
            **origin,
            **({"channel": channel} if channel is not None and place else {}),
            **{k: v for k, v in segment.measures.items() if k not in FOR_STAGES},
        }


def _id(work: Work, segment: Segment) -> str:
    return f"{work.id}@{segment.start:.3f}"


def _path(work: Work, folder: Path) -> str | None:
    """The audio file of a recording, None where it is no file of its own."""
    assert not isinstance(work.cut, UnusableRecord)
    written = audio_path(work.cut)
    if written is None or is_remote(written):
        return written
    path, home = Path(written).absolute(), folder.absolute()
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def summarize_corpus(
    stages: Sequence[tuple[str, Stage]],
    counts: Sequence[Sequence[float]],
    records: Sequence[dict[str, Any]],
    rejects: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """`recordings`, `segments`, `hours`, `speakers`, `languages` (hours), and of each stage what it was given and kept,
    and its reasons with count, hours and meaning. `counts`: see `Corpus`."""
    languages: dict[str, float] = {}
    for record in records:
        name = record.get("language") or record.get("text_language") or "unknown"
        languages[name] = languages.get(name, 0.0) + record["duration"] / 3600
    unread = [r for r in rejects if r["stage"] == "read"]
    return {
        "recordings": len({r["recording"] for r in chain(records, rejects)}),
        "unusable_recordings": len(unread),
        "recorded_hours": round(counts[0][1] / 3600, 6) if counts else 0.0,
        "segments": len(records),
        "hours": round(sum(r["duration"] for r in records) / 3600, 6),
        "speakers": len({r["speaker"] for r in records if "speaker" in r}),
        "languages": {name: round(hours, 6) for name, hours in sorted(languages.items(), key=lambda x: -x[1])},
        "stages": [
            {
                "name": name,
                "given": int(count[0]),
                "given_hours": round(count[1] / 3600, 6),
                "kept": int(count[2]),
                "kept_hours": round(count[3] / 3600, 6),
                "dropped": _reasons(stage, (r for r in rejects if r["stage"] == name)),
            }
            for (name, stage), count in zip(stages, counts, strict=False)
        ],
        "unusable": [{"recording": r["recording"], "reason": r["reason"], "message": r["message"]} for r in unread],
    }


def _reasons(stage: Stage, rejects: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each reason, that of most hours first: count, hours, meaning."""
    seconds: dict[str, list[float]] = {}
    for r in rejects:
        seconds.setdefault(r["reason"], []).append(r["duration"])
    rows = sorted(seconds.items(), key=lambda row: -sum(row[1]))
    return {
        reason: {"count": len(each), "hours": round(sum(each) / 3600, 6), "meaning": stage.reasons.get(reason, "")}
        for reason, each in rows
    }


def print_summary(summary: dict[str, Any]) -> None:
    """A table for the console."""
    rows = [("recordings", summary["recordings"], f"{summary['recorded_hours']:.2f} hours")]
    for stage in summary["stages"]:
        dropped = ", ".join(f"{d['count']:,} {reason}" for reason, d in stage["dropped"].items())
        note = f"{stage['kept_hours']:.2f} hours" + (f"; dropped: {dropped}" if dropped else "")
        rows.append((f"after {stage['name']}", stage["kept"], note))
    print(format_table(rows))
    if summary["unusable"]:
        print(f"unusable recordings: {len(summary['unusable']):,}, listed in rejects.jsonl")
