"""`stentor transcribe`: transcripts of many files, on standard output or in a folder."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stentor.commands.recording_options import TranscribeOptions
from stentor.commands.transcribe_live import transcribe_live
from stentor.errors import AudioError, ConfigError
from stentor.inference.declarations import refuse_unused
from stentor.inference.formats import NEED_WORDS, SUBTITLES, SUFFIXES, WRITERS, check_subtitles, render
from stentor.inference.options import FILES
from stentor.inference.recording import Recording
from stentor.inference.transcribe import Transcript
from stentor.pipeline.file_progress import FileOutcome, Files, FilesWorker, parse_formats, require_folder, work_on_files


def transcribe_files(options: TranscribeOptions) -> None:
    """Transcribe and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    if options.stream:
        transcribe_live(options)
        return
    refuse_unused(options, FILES)
    formats = _formats(options)
    suffixes = [SUFFIXES[format] for format in formats]
    files = Files("transcribe", options, "transcribing", suffixes)
    if files.outputs is None and len(files.audio) > 1 and formats[0] not in ("txt", "json"):
        raise ConfigError(f"{formats[0]} of several files needs a folder: give one with --out.")
    if not files.audio:
        return
    failed: list[dict[str, Any]] = []
    with files:
        for outcome in work_on_files(files, TranscribeWorker(options, formats, len(files.audio) > 1), options):
            failed += outcome.failed
            files.take(outcome)
    if failed:
        files.print(f"stentor: {_summary(failed)}", error=True)
    files.check("transcribed")


class TranscribeWorker(FilesWorker):
    """Files to transcripts in the formats; `several`: the printed ones name their file."""

    options: TranscribeOptions

    def __init__(self, options: TranscribeOptions, formats: list[str], several: bool):
        self.options, self.formats, self.several = options, formats, several

    def setup(self, device: str) -> None:
        from stentor.inference.load import load

        options = self.options
        model = load(options.model, device)
        diarizer = load(options.diarizer, device) if options.diarizer is not None else None
        self.rate = model.bundle.processor.sample_rate
        self.warnings: list[str] = []
        needed = options.words or options.cues == "words" or options.highlight_words
        self.transcriber = model.transcriber(
            options,
            diarizer,
            on_warning=lambda sentence: self.warnings.append(f"stentor: warning: {sentence}"),
            words=needed or (model.knows_times and not SUBTITLES.keys().isdisjoint(self.formats)),
        )

    def results(
        self, recordings: Iterable[Recording], on_error: Callable[[str, AudioError], None]
    ) -> Iterator[Transcript]:
        return self.transcriber.transcribe(recordings, on_error, self.on_audio)

    def outcome(self, transcript: Transcript, name: str) -> FileOutcome:
        messages, self.warnings = self.warnings, []
        if "warning" in transcript:
            messages.append(f"stentor: {transcript['audio']}: {transcript['warning']}")
        outcome = FileOutcome(messages=messages, seconds=transcript["duration"], failed=list(transcript.failed))
        untimed = {key: value for key, value in transcript.items() if key != "words" or self.options.words}
        versions = {format: transcript if format in SUBTITLES else untimed for format in self.formats}
        if self.options.out is None:
            ((format, version),) = versions.items()
            outcome.printed = self._printed(version, format)
        else:
            outcome.texts = {SUFFIXES[f]: render(version, f, self.options) for f, version in versions.items()}
        return outcome

    def _printed(self, transcript: dict[str, Any], format: str) -> str:
        """For standard output: JSON as one line per file; text with the file's name in front when there are several."""
        if format == "json":
            return json.dumps(transcript, ensure_ascii=False)
        text = render(transcript, format, self.options).rstrip("\n")
        return f"{transcript['audio']}\t{text}" if self.several and format == "txt" else text


def _summary(failed: list[dict[str, Any]]) -> str:
    reasons = Counter(name for segment in failed for name in segment["reason"].split(", "))
    seconds = sum(s["end"] - s["start"] for s in failed)
    return (
        f"{len(failed)} segment{'s' * (len(failed) > 1)} ({seconds:.1f} s) left out, as the text seems made up "
        f"({', '.join(f'{name} {count}' for name, count in reasons.items())}): --keep-failed keeps what is left out, "
        "--format json lists it."
    )


def _formats(options: TranscribeOptions) -> list[str]:
    formats = parse_formats(options.format, WRITERS)
    if options.format.strip().lower() == "all" and not options.words:
        formats = [format for format in formats if format not in NEED_WORDS]
    if (timed := NEED_WORDS & set(formats)) and not options.words:
        raise ConfigError(f"--format {', '.join(sorted(timed))} lists word times: it needs --words.")
    check_subtitles(options, formats)
    require_folder(formats, options.out)
    return formats
