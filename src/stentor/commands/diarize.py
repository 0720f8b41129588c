"""`stentor diarize`: who speaks when in audio files."""

import json
from collections.abc import Callable, Iterable, Iterator

from stentor.commands.recording_options import DiarizeOptions
from stentor.errors import AudioError
from stentor.inference.diarize import Diarization, diarize, with_speakers
from stentor.inference.recording import Recording
from stentor.pipeline.file_progress import FileOutcome, Files, FilesWorker, parse_formats, require_folder, work_on_files

FORMATS = ("rttm", "json")


def diarize_files(options: DiarizeOptions) -> None:
    """Diarize and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    formats = parse_formats(options.format, FORMATS)
    require_folder(formats, options.out)
    files = Files("diarize", options, "diarizing", formats)
    if not files.audio:
        return
    with files:
        for outcome in work_on_files(files, DiarizeWorker(options, formats), options):
            files.take(outcome)
    files.check("diarized")


class DiarizeWorker(FilesWorker):
    """Files to who speaks when in them, in the formats."""

    options: DiarizeOptions

    def __init__(self, options: DiarizeOptions, formats: list[str]):
        self.options, self.formats = options, formats

    def setup(self, device: str) -> None:
        from stentor.inference.load import load

        options = self.options
        self.model = load(options.model, device)
        self.task = with_speakers(self.model.for_diarization(), options)
        self.rate = self.model.bundle.processor.sample_rate

    def results(
        self, recordings: Iterable[Recording], on_error: Callable[[str, AudioError], None]
    ) -> Iterator[Diarization]:
        return diarize(self.model.bundle, self.task, recordings, self.options.model, on_error, self.on_audio)

    def outcome(self, diarization: Diarization, name: str) -> FileOutcome:
        outcome = FileOutcome(seconds=diarization["duration"])
        if diarization.warning:
            outcome.messages.append(diarization.warning)
        rttm = diarization.rttm(name)
        if self.options.out is None:
            text = rttm if self.formats[0] == "rttm" else json.dumps(diarization, ensure_ascii=False)
            outcome.printed = text.rstrip("\n") or None
        else:
            texts = {"rttm": rttm, "json": json.dumps(diarization, ensure_ascii=False, indent=2)}
            outcome.texts = {format: texts[format] for format in self.formats}
        return outcome
