"""Options of `stentor transcribe`: text for audio files of any length."""

from dataclasses import dataclass

from stentor.commands.shared_options import TRANSCRIPT_FORMATS, AudioFiles
from stentor.inference.options import FILES, STREAM, DecodingOptions
from stentor.section.options import Flag, Option, verb


@verb("transcribe", "stentor.commands.transcribe:transcribe_files")
@dataclass(kw_only=True)
class TranscribeOptions(DecodingOptions, AudioFiles):
    """Write down what is said in audio files, as text, JSON or subtitles."""

    format: str = Option(TRANSCRIPT_FORMATS, "txt")
    stream: bool = Flag("Write words as they are said: of standard input (-), or of a file as if it came just now.")
    delay: float | None = Option(
        "Seconds of audio that --stream waits for at a time; short: early, long: better.", ways=(STREAM,)
    )
    rate: int | None = Option(
        "Hz of bare 16-bit samples on standard input (default: the model's).", min=1, ways=(STREAM,)
    )
    diarizer: str | None = Option("A second model, that says who speaks.")
    cues: str = Option(
        "What a subtitle holds: lines (to be read) or words (one each, needs --words).", "lines", ways=(FILES,)
    )
