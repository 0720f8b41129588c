"""`stentor diarize`: who speaks when in audio files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stentor.commands.file_progress import Files, parse_formats, require_folder
from stentor.inference.diarize import diarize, with_speakers

if TYPE_CHECKING:
    from stentor.cli.diarize import DiarizeOptions

FORMATS = ("rttm", "json")


def diarize_files(options: DiarizeOptions) -> None:
    """Diarize and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    formats = parse_formats(options.format, FORMATS)
    require_folder(formats, options.out)
    files = Files(options.audio, options.out, "diarizing", formats if options.skip_existing else ())
    if not files.audio:
        return
    from stentor.inference.load import load

    model = load(options.model, options.device)
    task = with_speakers(model.for_diarization(), options.speakers, options.min_speakers, options.max_speakers)
    recordings = files.recordings(model.bundle.processor.sample_rate, options.channel)
    with files:
        for diarization in diarize(model.bundle, task, recordings, options.model, files.leave_out, files.add_seconds):
            rttm = diarization.rttm(files.name)
            if diarization.warning:
                files.print(diarization.warning, error=True)
            if files.folder is None:
                if text := rttm if formats[0] == "rttm" else json.dumps(diarization, ensure_ascii=False):
                    files.print(text.rstrip("\n"))
                files.add_file()
            else:
                texts = {"rttm": rttm, "json": json.dumps(diarization, ensure_ascii=False, indent=2)}
                files.write({format: texts[format] for format in formats})
    files.check("diarized")
