"""`stentor align`: the time of every word, of one recording and its text, or of all records of a data source."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from stentor.audio.io import AUDIO_SUFFIXES
from stentor.commands.prepare.words import WordsWorker, batches
from stentor.commands.recording_options import ONE, AlignOptions
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, record_from_cut
from stentor.data.record_table import RecordTable, Selection
from stentor.data.storage import as_path, is_remote, name_of
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.align.base import Aligned, Clip, describe_problem, transcript
from stentor.inference.align.engines import clip_of, engine_of, open_aligner
from stentor.inference.declarations import refuse_unused
from stentor.inference.formats import SUFFIXES, WRITERS, record_names
from stentor.inference.recording import STDIN, label, open_recording
from stentor.pipeline.executor import make_executor
from stentor.pipeline.file_progress import (
    check_failed,
    has_outputs,
    make_folder,
    parse_formats,
    require_folder,
    write_outputs,
)
from stentor.pipeline.runner import Pipeline, Writer, reject, unfinished

if TYPE_CHECKING:
    from lhotse.cut import Cut


def align(options: AlignOptions) -> None:
    """A recording with its text, or without TEXT all records of a data source. Raises as `align_file` and `align_many`
    do."""
    if options.text is None:
        align_many(options)
        return
    refuse_unused(options, ONE)
    align_file(options)


def align_file(options: AlignOptions) -> None:
    """Print word times, or write them to a folder. A text that does not seem to be what is said is aligned with a
    warning on standard error.

    Raises ConfigError for wrong options, AudioError, and DataError for a text that has no times in this audio.
    """
    formats = parse_formats(options.format, WRITERS)
    require_folder(formats, options.out)
    text = read_text(options.text or "")
    folder = None if options.out is None else make_folder(options.out)

    aligner = open_aligner(options.model, options.engine, options.device, options.lag)
    clip = clip_of(open_recording(options.audio, aligner.rate, channel=options.channel), text, options.language)
    (aligned,) = aligner.align([clip])
    if problem := describe_problem(clip, aligned):
        if not aligned.words:
            raise DataError(problem)
        print(f"stentor: warning: {problem}", file=sys.stderr)
    output = transcript(clip, aligned, options.model)
    if folder is None:
        sys.stdout.write(WRITERS[formats[0]](output))
        return
    for format in formats:
        path = folder / f"{Path(label(options.audio)).stem}.{SUFFIXES[format]}"
        path.write_text(WRITERS[format](output), encoding="utf-8")


def read_text(text: str) -> str:
    """The text itself, or what is in the file that it names, as one line. Raises ConfigError when that is empty."""
    source = "The text"
    try:
        is_file = is_remote(text) or Path(text).is_file()
    except OSError:  # longer than a path may be
        is_file = False
    if is_file:
        source = f"The file {name_of(text)}"
        try:
            text = as_path(text).read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{source} is not UTF-8 text (byte {error.start}): give a text file.") from None
    if not text.strip():
        raise ConfigError(f"{source} is empty: give the words that are spoken.")
    return " ".join(text.split())


NAMED = 20
"""Records that could not be aligned that the error at the end names."""


def align_many(options: AlignOptions) -> None:
    """Write the outputs of each record of a data source. Records that cannot be aligned are named on standard error,
    the others are done; texts that do not seem to be what is said are aligned with a warning.

    Raises ConfigError for options that do not go together, `Stopped` at a signal when what was begun is done, and
    DataError at the end when records were left out.
    """
    formats = parse_formats(options.format, WRITERS)
    if options.audio == STDIN or PurePosixPath(options.audio).suffix.lower() in AUDIO_SUFFIXES:
        raise ConfigError(f"What is said in {options.audio}? Give its TEXT, or a folder or a manifest without TEXT.")
    if options.out is None:
        raise ConfigError("The word times of many recordings go into a folder: give one with --out.")
    defaults = {"language": options.language, "channel": options.channel}
    given = {key: value for key, value in defaults.items() if value is not None}
    source = parse_source(options.audio).model_copy(update=given)
    folder = make_folder(options.out)
    _, engine = engine_of(options.model, options.engine)
    cuts = RecordTable(source.cuts())
    suffixes = [SUFFIXES[format] for format in formats]
    writer = OutputsWriter(folder, [cut.id for cut in cuts], suffixes if options.skip_existing else ())
    Pipeline(
        worker=AlignWorker(options, engine, formats),
        writer=writer,
        executor=make_executor(options, (options.device,)),
        title="aligning",
        saved=lambda: f"{writer.written:,} records are in {folder}, and --skip-existing leaves these out",
        finish_groups=True,
    ).run([cuts.select(batch) for batch in batches(cuts)])
    check_failed(writer.failed, len(cuts), "records could not be aligned", NAMED)


class AlignWorker(WordsWorker):
    """Batches of cuts to `{"id", "texts", "warning"}`: the outputs by their suffixes, and what seems wrong."""

    def __init__(self, options: AlignOptions, engine: str, formats: Sequence[str]):
        super().__init__(options.model, engine, options.lag, Path(options.out or ""))
        self.formats = formats

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
        times = {"id": cut.id, **transcript(clip, aligned, str(self.model)), **place}
        times["audio"] = record["audio_path"] or cut.id
        return {
            "id": cut.id,
            "texts": {SUFFIXES[format]: WRITERS[format](times) for format in self.formats},
            "warning": problem,
        }


class OutputsWriter(Writer):
    """Writes the outputs of records into a folder; with `existing`, suffixes, records that have them all are done.
    `failed`: ids of records without outputs."""

    def __init__(self, folder: Path, ids: Sequence[str], existing: Sequence[str] = ()):
        self.folder, self.names, self.existing = folder, dict(zip(ids, record_names(ids))), existing
        self.failed: list[str] = []
        self.written = 0

    def remaining(self, groups: Sequence[Selection[Any]]) -> Sequence[Selection[Any]]:
        if not self.existing:
            return groups
        return unfinished(groups, lambda record: has_outputs(self.folder, self.names[record.id], self.existing))

    def write(self, group: Selection[Any], outputs: list[Mapping[str, Any]], rejects: Iterable[UnusableRecord]) -> None:
        for output in outputs:
            if output["warning"] is not None:
                print(f"stentor: warning: {output['warning']}", file=sys.stderr)
            problem = write_outputs(self.folder, self.names[output["id"]], output["texts"])
            if problem is None:
                self.written += 1
            else:
                self._fail(output["id"], problem)
        for record in rejects:
            self._fail(record.id, f"stentor: {record.message}")

    def _fail(self, name: str, problem: str) -> None:
        print(problem, file=sys.stderr)
        self.failed.append(name)
