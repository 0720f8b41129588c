"""`stentor speak`: text to speech."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def speak(
        model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")],
        text: Annotated[
            str | None, typer.Argument(help="What to say, of any length; `-` reads it from standard input.")
        ] = None,
        out: Annotated[
            str | None, typer.Option(help="The file to write: .wav, .flac or .ogg. With --from: a folder.")
        ] = None,
        reference: Annotated[str | None, typer.Option(help="A recording of the voice to speak in, 3 to 10 s.")] = None,
        reference_text: Annotated[str | None, typer.Option(help="What is said in the reference.")] = None,
        recognizer: Annotated[
            str | None, typer.Option(help="A model that writes down what is said in it, where that is not given.")
        ] = None,
        voice: Annotated[str | None, typer.Option(help="A voice that --save-voice saved.")] = None,
        save_voice: Annotated[
            str | None, typer.Option(help="Save the voice of the reference under this name, for --voice.")
        ] = None,
        instruct: Annotated[str | None, typer.Option(help="The voice in words, as the model was trained.")] = None,
        language: Annotated[str | None, typer.Option(help="Language of the text, as a code such as en.")] = None,
        duration: Annotated[float | None, typer.Option(help="Seconds it shall last. Without: by a rule.")] = None,
        speed: Annotated[float | None, typer.Option(help="How many times as fast as the rule says.")] = None,
        seed: Annotated[int | None, typer.Option(help="Same seed, same speech.")] = None,
        steps: Annotated[int | None, typer.Option(min=1, help="Passes through the model; fewer are faster.")] = None,
        guidance: Annotated[
            float | None, typer.Option(min=0.0, help="How closely text and voice are followed; 0: half the work.")
        ] = None,
        normalize: Annotated[
            bool, typer.Option("--normalize", help="Write numbers, dates and money in words (needs stentor[speak]).")
        ] = False,
        denoise: Annotated[
            bool | None,
            typer.Option("--denoise/--no-denoise", help="Clean speech from a noisy reference, if the model can."),
        ] = None,
        raw: Annotated[bool, typer.Option("--raw", help="Nothing trimmed, faded or made louder.")] = False,
        from_: Annotated[
            str | None,
            typer.Option("--from", help="JSONL with a `text` a line; `id`, `voice`, `reference`, `instruct` ... too."),
        ] = None,
        format: Annotated[str, typer.Option(help="With --from: wav, flac or ogg.")] = "wav",
        force: Annotated[bool, typer.Option("--force", help="With --from: speak again what is there already.")] = False,
        compile: Annotated[
            bool, typer.Option("--compile", help="Through torch.compile: slow start, then fast.")
        ] = False,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
        plugin: Annotated[list[Path] | None, typer.Option(help="A Python file with your own model family.")] = None,
    ) -> None:
        """Say a text, in the model's voice or in another, and write it as audio."""
        from stentor.commands.speak import Request, speak_files
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        settings = {"steps": steps, "guidance": guidance, "compile": compile or None}
        speak_files(
            Request(
                model=model,
                text=text,
                out=out,
                reference=reference,
                reference_text=reference_text,
                recognizer=recognizer,
                voice=voice,
                save_voice=save_voice,
                instruct=instruct,
                language=language,
                duration=duration,
                speed=speed,
                seed=seed,
                normalize=normalize,
                denoise=denoise,
                finish=not raw,
                texts=from_,
                format=format,
                force=force,
                device=device,
                generation={key: value for key, value in settings.items() if value is not None},
            )
        )
