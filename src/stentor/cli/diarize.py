"""`stentor diarize`: who spoke when, in audio files of any length."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def diarize(
        model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")],
        audio: Annotated[list[str], typer.Argument(help="Audio files, of any length.")],
        format: Annotated[str, typer.Option(help="rttm or json; both with a comma, together with --out.")] = "rttm",
        out: Annotated[
            str | None, typer.Option(help="Folder for the files (made when missing). Without: standard output.")
        ] = None,
        speakers: Annotated[int | None, typer.Option(min=1, help="Number of speakers in each file, if known.")] = None,
        min_speakers: Annotated[int | None, typer.Option(min=1, help="Least number of speakers in each file.")] = None,
        max_speakers: Annotated[int | None, typer.Option(min=1, help="Greatest number of speakers in a file.")] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
        plugin: Annotated[
            list[Path] | None, typer.Option(help="A Python file with your own model family or labels.")
        ] = None,
    ) -> None:
        """Say who speaks when in audio files, as RTTM or JSON."""
        from stentor.commands.diarize import Request, diarize_files
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        diarize_files(Request(model, audio, format, out, speakers, min_speakers, max_speakers, device))
