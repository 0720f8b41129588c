"""`stentor diarize`: who spoke when, in audio files of any length."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import AudioFiles, Channel, Device, SkipExisting, takes_options


@dataclass
class DiarizeOptions:
    model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")]
    audio: AudioFiles
    format: Annotated[str, typer.Option(help="rttm or json; both with a comma, or all, together with --out.")] = "rttm"
    out: Annotated[
        str | None, typer.Option(help="Folder for the files (made when missing). Without: standard output.")
    ] = None
    skip_existing: SkipExisting = False
    speakers: Annotated[int | None, typer.Option(min=1, help="Number of speakers in each file, if known.")] = None
    min_speakers: Annotated[int | None, typer.Option(min=1, help="Least number of speakers in each file.")] = None
    max_speakers: Annotated[int | None, typer.Option(min=1, help="Greatest number of speakers in a file.")] = None
    channel: Channel = None
    device: Device = "auto"
    plugin: Annotated[list[Path], typer.Option(help="A Python file with your own model family or labels.")] = field(
        default_factory=list
    )


@app.command()
@takes_options
def diarize(options: DiarizeOptions) -> None:
    """Say who speaks when in audio files, as RTTM or JSON."""
    from stentor.commands.diarize import diarize_files

    diarize_files(options)
