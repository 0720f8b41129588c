"""`stentor align`: one recording, its text, the time of every word. Many recordings: see `align_many`."""

import re
import sys
from pathlib import Path, PurePath

from stentor.commands.recording_options import ONE, AlignOptions
from stentor.data.layouts.transcripts import ENDINGS, text_lines
from stentor.data.storage import as_path, full_path, is_remote, name_of, read_whole
from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import describe_problem, transcript, warnings_of
from stentor.inference.align.engines import clip_of, open_aligner
from stentor.inference.align.written import align_written
from stentor.inference.declarations import refuse_unused
from stentor.inference.formats import SUFFIXES, WRITERS, check_subtitles, render
from stentor.inference.options import FILES
from stentor.inference.recording import label, open_recording
from stentor.pipeline.file_progress import parse_formats, require_folder
from stentor.pipeline.outputs import Outputs, digest, identity
from stentor.pipeline.progress import Progress
from stentor.text.languages import checked_language


def align(options: AlignOptions) -> None:
    """Print the word times of a recording with its text, or write them to a folder; without TEXT those of all records
    of a data source. A text that does not seem to be what is said is aligned with a warning on standard error.

    Raises ConfigError for wrong options, AudioError, and DataError for a text that has no times in this audio.
    """
    if options.text is None:
        from stentor.commands.align_many import align_many

        return align_many(options)
    refuse_unused(options, FILES, ONE)
    formats, rules = parse_formats(options.format, WRITERS), options.rules
    check_subtitles(rules, formats)
    require_folder(formats, options.out)
    lines, language = read_lines(options.text), checked_language(options.language)
    outputs, name = None, Path(label(options.audio)).stem
    if options.out is not None:
        facts = {"source": full_path(label(options.audio)), "file": identity(options.audio)}
        facts["text"] = digest("\n".join(lines))
        outputs = Outputs(options.out, "align", options, {name: facts})
        outputs.plan([SUFFIXES[format] for format in formats], skip=False)

    aligner = open_aligner(options.model, options.engine, options.device, options.lag)
    recording = open_recording(options.audio, aligner.rate, selection=options.selection)
    clip = clip_of(recording, " ".join(lines), language)
    with Progress("aligning", "min of audio") as progress:
        clip.on_share = lambda share: progress.report(share * clip.seconds / 60, clip.seconds / 60)
        (aligned,) = align_written(aligner, [clip], options.normalize, options.read_brackets)
    if (problem := describe_problem(clip, aligned)) and not aligned.words:
        raise DataError(problem)
    output = transcript(clip, aligned, options.model, lines)
    for warning in warnings_of(problem, output):
        print(f"stentor: warning: {warning}", file=sys.stderr)
    if outputs is None:
        sys.stdout.write(render(output, formats[0], rules))
    elif failed := outputs.write(name, {SUFFIXES[format]: render(output, format, rules) for format in formats}):
        raise DataError(failed.removeprefix("stentor: "))


def read_lines(text: str) -> list[str]:
    """The lines of the text itself, or of the file that it names. Raises ConfigError when there are none or there is
    no such file, and DataError for a file that cannot be read."""
    source, named = "The text", PurePath(text).suffix[1:].lower() in ("md", "docx", *ENDINGS)
    try:
        is_file = is_remote(text) or Path(text).is_file()
    except OSError:  # longer than a path may be
        is_file = False
    if is_file:
        source = f"The file {name_of(text)}"
        lines = text_lines(name_of(text), read_whole(as_path(text)))
    elif named or re.fullmatch(r"\S*[\w.:~][/\\]+\w\S*", text):
        raise ConfigError(f"There is no file {text}. If these are the words that are spoken, put them in a text file.")
    else:
        lines = text_lines("", text.encode(errors="replace"))
    if not lines:
        raise ConfigError(f"{source} is empty: give the words that are spoken.")
    return lines
