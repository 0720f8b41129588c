"""`stentor align`: when each word of a known text was said."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `stentor align`."""

    @app.command()
    def align(
        model: Annotated[str, typer.Argument(help="Run folder, export, CTC or Whisper model (a folder or Hub id).")],
        audio: Annotated[str, typer.Argument(help="Audio file, of any length.")],
        text: Annotated[str, typer.Argument(help="What is said in it: the text itself, or a text file.")],
        format: Annotated[
            str, typer.Option(help="json, txt, srt, vtt, ctm or textgrid; several with commas, together with --out.")
        ] = "json",
        out: Annotated[str | None, typer.Option(help="Folder for the files. Without: standard output.")] = None,
        engine: Annotated[
            str | None, typer.Option(help="aligner, ctc or whisper. Default: what the model is for.")
        ] = None,
        language: Annotated[str | None, typer.Option(help="Language that is spoken, as a code such as en.")] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
        lag: Annotated[
            float | None, typer.Option(help="Seconds that a Whisper model's attention is late, taken off its times.")
        ] = None,
        plugin: Annotated[list[Path] | None, typer.Option(help="A Python file with your own model family.")] = None,
    ) -> None:
        """Find out when each word of a known text is said in a recording."""
        from stentor.commands.align import Request, align_file
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        align_file(Request(model, audio, text, format, out, engine, language, device, lag))
