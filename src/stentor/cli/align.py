"""`stentor align`: when each word of a known text was said."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import Channel, Device, Lag, Language, ModelPlugins, takes_options


@dataclass
class AlignOptions:
    model: Annotated[str, typer.Argument(help="Run folder, export, CTC or Whisper model (a folder or Hub id).")]
    audio: Annotated[str, typer.Argument(help="Audio file of any length, an http(s) address, or - for standard input.")]
    text: Annotated[str, typer.Argument(help="What is said in it: the text itself, or a text file.")]
    format: Annotated[
        str,
        typer.Option(help="json, txt, srt, vtt, ctm or textgrid; several with commas, or all, together with --out."),
    ] = "json"
    out: Annotated[str | None, typer.Option(help="Folder for the files. Without: standard output.")] = None
    engine: Annotated[str | None, typer.Option(help="aligner, ctc or whisper. Default: what the model is for.")] = None
    language: Language = None
    channel: Channel = None
    device: Device = "auto"
    lag: Lag = None
    plugin: ModelPlugins = field(default_factory=list)


@app.command()
@takes_options
def align(options: AlignOptions) -> None:
    """Find out when each word of a known text is said in a recording."""
    from stentor.commands.align import align_file

    align_file(options)
