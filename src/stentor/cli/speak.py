"""`stentor speak`: text to speech."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import Device, ModelPlugins, takes_options


@dataclass
class SpeakOptions:
    model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")]
    text: Annotated[
        str | None, typer.Argument(help="What to say, of any length; `-` reads it from standard input.")
    ] = None
    out: Annotated[str | None, typer.Option(help="The file to write: .wav, .flac or .ogg. With --from: a folder.")] = (
        None
    )
    reference: Annotated[str | None, typer.Option(help="A recording of the voice to speak in, 3 to 10 s.")] = None
    reference_text: Annotated[str | None, typer.Option(help="What is said in the reference.")] = None
    recognizer: Annotated[
        str | None, typer.Option(help="A model that writes down what is said in it, where that is not given.")
    ] = None
    voice: Annotated[str | None, typer.Option(help="A voice that --save-voice saved.")] = None
    save_voice: Annotated[
        str | None, typer.Option(help="Save the voice of the reference under this name, for --voice.")
    ] = None
    instruct: Annotated[str | None, typer.Option(help="The voice in words, as the model was trained.")] = None
    language: Annotated[str | None, typer.Option(help="Language of the text, as a code such as en.")] = None
    duration: Annotated[float | None, typer.Option(help="Seconds it shall last. Without: by a rule.")] = None
    speed: Annotated[float | None, typer.Option(help="How many times as fast as the rule says.")] = None
    seed: Annotated[int | None, typer.Option(help="Same seed, same speech.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Passes through the model; fewer are faster.")] = None
    guidance: Annotated[
        float | None, typer.Option(min=0.0, help="How closely text and voice are followed; 0: half the work.")
    ] = None
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Write numbers, dates and money in words (needs stentor[speak]).")
    ] = False
    denoise: Annotated[
        bool | None,
        typer.Option("--denoise/--no-denoise", help="Clean speech from a noisy reference, if the model can."),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Nothing trimmed, faded or made louder.")] = False
    from_: Annotated[
        str | None,
        typer.Option("--from", help="JSONL with a `text` a line; `id`, `voice`, `reference`, `instruct` ... too."),
    ] = None
    format: Annotated[str, typer.Option(help="With --from: wav, flac or ogg.")] = "wav"
    force: Annotated[
        bool, typer.Option("--force", help="Write over what is there already; with --from: speak it again.")
    ] = False
    compile: Annotated[bool, typer.Option("--compile", help="Through torch.compile: slow start, then fast.")] = False
    device: Device = "auto"
    plugin: ModelPlugins = field(default_factory=list)


@app.command()
@takes_options
def speak(options: SpeakOptions) -> None:
    """Say a text, in the model's voice or in another, and write it as audio."""
    from stentor.commands.speak import speak_files

    speak_files(options)
