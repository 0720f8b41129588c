"""`stentor transcribe`: text for audio files of any length."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def transcribe(
        model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")],
        audio: Annotated[list[str], typer.Argument(help="Audio files, of any length.")],
        format: Annotated[
            str, typer.Option(help="json, txt, srt, vtt, ctm or textgrid; several with commas, together with --out.")
        ] = "txt",
        out: Annotated[
            str | None, typer.Option(help="Folder for the files (made when missing). Without: standard output.")
        ] = None,
        words: Annotated[bool, typer.Option("--words", help="With the time of every word.")] = False,
        diarizer: Annotated[str | None, typer.Option(help="A second model, that says who speaks.")] = None,
        language: Annotated[str | None, typer.Option(help="Language that is spoken, as a code such as en.")] = None,
        context: Annotated[str | None, typer.Option(help="Names and terms that may be heard.")] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
        batch_seconds: Annotated[
            float, typer.Option(min=1.0, help="Seconds of audio that are decoded together.")
        ] = 120.0,
        vad: Annotated[
            str | None, typer.Option(help="A silero_vad.onnx file, to find pauses with (needs stentor[vad]).")
        ] = None,
        cues: Annotated[
            str, typer.Option(help="What a subtitle holds: lines (to be read) or words (one each, needs --words).")
        ] = "lines",
        plugin: Annotated[list[Path] | None, typer.Option(help="A Python file with your own model family.")] = None,
    ) -> None:
        """Write down what is said in audio files, as text, JSON or subtitles."""
        from stentor.commands.transcribe import Request, transcribe_files
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        transcribe_files(
            Request(model, audio, format, out, words, diarizer, language, context, device, batch_seconds, vad, cues)
        )
