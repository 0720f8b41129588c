"""Options of verbs that work on recordings: `stentor transcribe`, `stentor diarize` and `stentor align`."""

from dataclasses import dataclass, replace
from pathlib import Path

from stentor.commands.shared_options import LAG
from stentor.errors import ConfigError
from stentor.inference.declarations import Argument, Flag, Option, verb
from stentor.inference.options import LANGUAGE, STREAM, DecodingOptions, SpeakerCount, SubtitleOptions
from stentor.pipeline.options import FORCE, JOBS, MODEL_PLUGINS, PARTIAL, RAY, TRACK, AudioFiles, Reading, Workers

TRANSCRIPT_FORMATS = (
    "json, txt, srt, vtt, ctm, textgrid, rttm, stm, seglst, ass, lrc or tsv; several with commas, or all, together "
    "with --out."
)
ONE, MANY = "one recording with its TEXT", "many recordings"
"""Ways of aligning: `refuse_unused` names them."""


@verb("transcribe", "stentor.commands.transcribe:transcribe_files")
@dataclass(kw_only=True)
class TranscribeOptions(DecodingOptions, SubtitleOptions, AudioFiles):
    """Transcribe audio files to text, JSON or subtitles."""

    format: str = Option(TRANSCRIPT_FORMATS, "txt", neutral=True)
    stream: bool = Flag("Write words as they are said: of standard input (-), or of a file as if it came just now.")
    delay: float | None = Option(
        "Delay of --stream in seconds: shorter is earlier, longer is more accurate.", ways=(STREAM,)
    )
    silence: float = Option("Seconds of silence that end an utterance of --stream.", 0.8, ways=(STREAM,))
    rate: int | None = Option(
        "Sampling rate in Hz of raw 16-bit samples on standard input (default: the model's).", min=1, ways=(STREAM,)
    )
    diarizer: str | None = Option("Model for speaker diarization.", model=True)


@verb("diarize", "stentor.commands.diarize:diarize_files")
@dataclass(kw_only=True)
class DiarizeOptions(SpeakerCount, AudioFiles):
    """Find who speaks when in audio files (speaker diarization), as RTTM or JSON."""

    format: str = Option("rttm or json; both with a comma, or all, together with --out.", "rttm", neutral=True)
    plugin: list[Path] = Option("A Python file with your own model family or labels.", [], local=True)


@verb("align", "stentor.commands.align:align")
@dataclass(kw_only=True)
class AlignOptions(SubtitleOptions, Reading, Workers):
    """Align known texts with audio: a recording, or without TEXT each record of a data set."""

    model: str = Argument("Run folder, export, transducer, CTC or Whisper model (a folder or Hub id).", model=True)
    audio: str = Argument(
        "Audio file of any length, an address, or - for standard input. Without TEXT: a folder of recordings with a "
        ".lab or .txt next to each, a manifest, or type=...,key=value of one data source.",
        neutral=True,
    )
    text: str | None = Argument(
        "Its transcript: the text itself, or a file (text, TextGrid, srt or vtt).", None, neutral=True
    )
    format: str = Option(TRANSCRIPT_FORMATS, "json", neutral=True)
    out: str | None = Option("Folder for the files. Without: standard output.", output=True)
    skip_existing: bool = Flag(
        "Without TEXT: skip records that have their outputs of the same options in --out.", ways=(MANY,), neutral=True
    )
    force: bool = Flag(FORCE, neutral=True)
    engine: str | None = Option("aligner, transducer, ctc or whisper. Default: by the model.")
    language: str | None = Option(LANGUAGE)
    track: int | None = Option(TRACK, min=0, ways=(ONE,))
    partial: bool = Flag(PARTIAL, ways=(ONE,))
    lag: float | None = Option(LAG)
    normalize: bool = Flag("Read numbers and signs aloud, such as 6, $5 and &. The output has them as written.")
    read_brackets: bool = Flag("Align [noise], (laughs), <cough>, *sighs* and the like too. Default: leave them out.")
    cues: str = Option("Content of a subtitle: auto, lines (of the text, also for segments of JSON) or words.", "auto")
    jobs: int | None = Option(JOBS, min=1, ways=(MANY,), neutral=True)
    ray: str | None = Option(RAY, ways=(MANY,), neutral=True)
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)

    @property
    def rules(self) -> SubtitleOptions:
        """The rules of subtitles with `cues` as they know it. Raises ConfigError."""
        known = {"auto": "lines", "lines": "segments", "words": "words"}
        if self.cues not in known:
            raise ConfigError(f"Unknown --cues {self.cues}; known: {', '.join(known)}.")
        return replace(self, cues=known[self.cues])
