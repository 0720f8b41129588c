"""`stentor align`: when each word of a known text was said."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import (
    CHANNEL,
    DEVICE,
    LAG,
    LANGUAGE,
    MODEL_PLUGINS,
    TRANSCRIPT_FORMATS,
    Argument,
    Option,
    verb,
)


@verb(app, "align", "stentor.commands.align:align_file")
@dataclass
class AlignOptions:
    """Find out when each word of a known text is said in a recording."""

    model: str = Argument("Run folder, export, transducer, CTC or Whisper model (a folder or Hub id).")
    audio: str = Argument("Audio file of any length, an address, or - for standard input.")
    text: str = Argument("What is said in it: the text itself, or a text file.")
    format: str = Option(TRANSCRIPT_FORMATS, "json")
    out: str | None = Option("Folder for the files. Without: standard output.", output=True)
    engine: str | None = Option("aligner, transducer, ctc or whisper. Default: what the model is for.")
    language: str | None = Option(LANGUAGE)
    channel: int | None = Option(CHANNEL, min=0)
    device: str = Option(DEVICE, "auto")
    lag: float | None = Option(LAG)
    plugin: list[Path] = Option(MODEL_PLUGINS, [])
