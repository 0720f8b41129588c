"""`stentor align`: one recording, its text, the time of every word. Many recordings: see `align_many`."""

import sys
from pathlib import Path

from stentor.commands.recording_options import ONE, AlignOptions
from stentor.data.storage import as_path, is_remote, name_of
from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import describe_problem, transcript
from stentor.inference.align.engines import clip_of, open_aligner
from stentor.inference.declarations import refuse_unused
from stentor.inference.formats import SUFFIXES, WRITERS
from stentor.inference.recording import label, open_recording
from stentor.pipeline.file_progress import make_folder, parse_formats, require_folder


def align(options: AlignOptions) -> None:
    """A recording with its text, or without TEXT all records of a data source. Raises as `align_file` and
    `stentor.commands.align_many.align_many` do."""
    if options.text is None:
        from stentor.commands.align_many import align_many

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
