"""`stentor align` of data: word times of many records, in a folder, by processes of this machine or a cluster."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.commands.prepare.words import WordsWorker, batches
from stentor.commands.recording_options import AlignOptions
from stentor.config.load import parse_source
from stentor.data.cut import Cut, UnusableRecord, record_from_cut
from stentor.data.record_table import RecordTable, Selection
from stentor.data.storage import full_path
from stentor.errors import AudioError, ConfigError
from stentor.inference.align.base import Aligned, Clip, describe_problem, transcript, warnings_of
from stentor.inference.align.engines import engine_of
from stentor.inference.formats import SUFFIXES, WRITERS, check_subtitles, record_names, render
from stentor.inference.recording import STDIN
from stentor.pipeline.executor import make_executor
from stentor.pipeline.file_progress import check_failed, parse_formats
from stentor.pipeline.outputs import Outputs, digest, identity, make_folder
from stentor.pipeline.runner import Pipeline, Writer, reject, unfinished
from stentor.sources.audio_folder import AudioFolder
from stentor.sources.base import source_notes
from stentor.text.languages import checked_language

NAMED = 20
"""Records that could not be aligned that the error at the end names."""


def align_many(options: AlignOptions) -> None:
    """Write the outputs of each record of a data source. Records that cannot be aligned are named on standard error,
    the others are done; texts that do not seem to be what is said are aligned with a warning.

    Raises ConfigError for options that do not go together, `Stopped` at a signal when what was begun is done, and
    DataError at the end when records were left out.
    """
    formats = parse_formats(options.format, WRITERS)
    check_subtitles(options.rules, formats)
    if options.audio == STDIN or PurePosixPath(options.audio).suffix.lower() in AUDIO_SUFFIXES:
        raise ConfigError(f"What is said in {options.audio}? Give its TEXT, or a folder or a manifest without TEXT.")
    if options.out is None:
        raise ConfigError("The word times of many recordings go into a folder: give one with --out.")
    defaults = {"language": checked_language(options.language), "channel": options.channel}
    given: dict[str, Any] = {key: value for key, value in defaults.items() if value is not None}
    source = parse_source(options.audio)
    if isinstance(source, AudioFolder) and "text_suffixes" not in source.model_fields_set:
        given["text_suffixes"] = [*source.text_suffixes, ".TextGrid"]
    source = source.model_copy(update=given)
    make_folder(options.out)
    _, engine = engine_of(options.model, options.engine)
    cuts = RecordTable(source.cuts())
    for note in source_notes(source, "data"):
        print(note, file=sys.stderr)
    names = record_names([cut.id for cut in cuts])
    outputs = Outputs(options.out, "align", options, dict(zip(names, map(_facts, cuts))))
    todo = outputs.plan([SUFFIXES[format] for format in formats], options.skip_existing, "records")
    writer = OutputsWriter(outputs, {cut.id: name for cut, name in zip(cuts, names) if name in todo})
    Pipeline(
        worker=AlignWorker(options, engine, formats),
        writer=writer,
        executor=make_executor(options, (options.device,)),
        title="aligning",
        saved=lambda: f"{writer.written:,} records are in {options.out}, and --skip-existing leaves these out",
        finish_groups=True,
    ).run([cuts.select(batch) for batch in batches(cuts)])
    check_failed(writer.failed, len(cuts), "records could not be aligned", NAMED)


class AlignWorker(WordsWorker):
    """Batches of cuts to `{"id", "texts", "warnings"}`: the outputs by their suffixes, and what seems wrong."""

    def __init__(self, options: AlignOptions, engine: str, formats: Sequence[str]):
        super().__init__(options.model, engine, options.lag, Path(options.out or ""))
        self.formats, self.rules = formats, options.rules
        self.reading = options.normalize, options.read_brackets

    def _aligned_record(self, cut: Cut, clip: Clip, aligned: Aligned | AudioError) -> dict[str, Any] | UnusableRecord:
        if isinstance(aligned, AudioError):
            return reject(cut, aligned)
        problem = describe_problem(clip, aligned)
        if problem is not None and not problem.startswith(clip.id):
            problem = f"{clip.id}: {problem}"
        if problem is not None and not aligned.words:
            return UnusableRecord(cut.id, str(aligned.reason), problem)
        record = record_from_cut(cut)
        place = {key: value for key, value in record.items() if key in ("start", "channel")}
        lines = record.get("text_lines") or clip.text.split("\n")
        times = {"id": cut.id, **transcript(clip, aligned, str(self.model), lines), **place}
        times["audio"] = record["audio_path"] or cut.id
        return {
            "id": cut.id,
            "texts": {SUFFIXES[format]: render(times, format, self.rules) for format in self.formats},
            "warnings": warnings_of(problem, times),
        }


def _facts(cut: Cut | UnusableRecord) -> dict[str, Any]:
    record = {} if isinstance(cut, UnusableRecord) else record_from_cut(cut)
    path = str(record.get("audio_path") or cut.id)
    return {"source": f"{full_path(path)} {cut.id}", "file": identity(path), "record": digest(record)}


class OutputsWriter(Writer):
    """Writes the outputs of records, `todo` by id, under their names. `failed`: ids of records without outputs."""

    def __init__(self, outputs: Outputs, todo: Mapping[str, str]):
        self.outputs, self.todo = outputs, todo
        self.failed: list[str] = []
        self.written = 0

    def remaining(self, groups: Sequence[Selection[Any]]) -> Sequence[Selection[Any]]:
        return unfinished(groups, lambda record: record.id not in self.todo)

    def write(self, group: Selection[Any], outputs: list[Mapping[str, Any]], rejects: Iterable[UnusableRecord]) -> None:
        for output in outputs:
            for warning in output["warnings"]:
                print(f"stentor: warning: {warning}", file=sys.stderr)
            problem = self.outputs.write(self.todo[output["id"]], output["texts"])
            if problem is None:
                self.written += 1
            else:
                self._fail(output["id"], problem)
        for record in rejects:
            self._fail(record.id, f"stentor: {record.message}")

    def _fail(self, name: str, problem: str) -> None:
        print(problem, file=sys.stderr)
        self.failed.append(name)
