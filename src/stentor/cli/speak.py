"""`stentor speak`: text to speech."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import DEVICE, GPUS_PER_WORKER, MODEL_PLUGINS, RAY, Argument, Flag, Option, verb


@verb(app, "speak", "stentor.commands.speak:speak_files")
@dataclass
class SpeakOptions:
    """Say a text, in the model's voice or in another, and write it as audio."""

    model: str = Argument("Run folder, export folder or Hub id.")
    text: str | None = Argument("What to say, of any length; `-` reads it from standard input.", None)
    out: str | None = Option(
        "The file to write: .wav, .flac or .ogg; `-` is a pipe. With --from: a folder.", output=True
    )
    stream: bool = Flag("The first words early: short pieces first, each written as it is made.")
    reference: str | None = Option("A recording of the voice to speak in, 3 to 10 s.")
    reference_text: str | None = Option("What is said in the reference.")
    recognizer: str | None = Option("A model that writes down what is said in it, where that is not given.")
    voice: str | None = Option("A saved voice: its path, or its name in the model's voices; OmniVoice's .pt too.")
    save_voice: str | None = Option("Save the voice of the reference (or of --voice) under this name, for --voice.")
    instruct: str | None = Option("The voice in words, as the model was trained.")
    language: str | None = Option("Language of the text, as a code such as en.")
    duration: float | None = Option("Seconds it shall last. Without: by a rule.")
    speed: float | None = Option("How many times as fast as the rule says.")
    seed: int | None = Option("Same seed, same speech.")
    steps: int | None = Option("Passes through the model; fewer are faster.", min=1)
    guidance: float | None = Option("How closely text and voice are followed; 0: half the work.", min=0.0)
    chunk_duration: float | None = Option("Seconds of the pieces that long texts are spoken in.", min=1.0)
    chunk_threshold: float | None = Option("Seconds that are still spoken in one piece.", min=0.0)
    normalize: bool = Flag("Write numbers, dates and money in words (needs stentor[speak]).")
    denoise: bool | None = Option(
        "Clean speech from a noisy reference, if the model can.", None, "--denoise/--no-denoise"
    )
    raw: bool = Flag("Nothing trimmed, faded or made louder.")
    from_: str | None = Option(
        "JSONL with a `text` a line; `id`, `voice`, `reference`, `instruct` ... too.", None, "--from"
    )
    processes: int | None = Option(
        "With --from: that share the lines, each on one of the GPUs (1; with --ray what the cluster offers).", min=1
    )
    ray: str | None = Option(RAY)
    gpus_per_worker: float | None = Option(GPUS_PER_WORKER, min=0.0)
    format: str = Option("With --from: wav, flac or ogg; of a pipe: wav, or pcm for bare 16-bit samples.", "wav")
    force: bool = Flag("Write over what is there already; with --from: speak it again.")
    compile: bool = Flag("Through torch.compile: slow start, then fast.")
    device: str = Option(DEVICE, "auto")
    plugin: list[Path] = Option(MODEL_PLUGINS, [])
