"""`stentor transcribe`: text for audio files of any length."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import Device, Language, ModelPlugins, takes_options


@dataclass
class TranscribeOptions:
    model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")]
    audio: Annotated[list[str], typer.Argument(help="Audio files, of any length.")]
    format: Annotated[
        str, typer.Option(help="json, txt, srt, vtt, ctm or textgrid; several with commas, together with --out.")
    ] = "txt"
    out: Annotated[
        str | None, typer.Option(help="Folder for the files (made when missing). Without: standard output.")
    ] = None
    words: Annotated[bool, typer.Option("--words", help="With the time of every word.")] = False
    diarizer: Annotated[str | None, typer.Option(help="A second model, that says who speaks.")] = None
    language: Language = None
    context: Annotated[str | None, typer.Option(help="Names and terms that may be heard.")] = None
    device: Device = "auto"
    batch_seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of audio that are decoded together.")] = 120.0
    vad: Annotated[
        str | None, typer.Option(help="A silero_vad.onnx file, to find pauses with (needs stentor[vad]).")
    ] = None
    cues: Annotated[
        str, typer.Option(help="What a subtitle holds: lines (to be read) or words (one each, needs --words).")
    ] = "lines"
    plugin: ModelPlugins = field(default_factory=list)


@app.command()
@takes_options
def transcribe(options: TranscribeOptions) -> None:
    """Write down what is said in audio files, as text, JSON or subtitles."""
    from stentor.commands.transcribe import transcribe_files

    transcribe_files(options)
