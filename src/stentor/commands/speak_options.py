"""Options of `stentor speak` and `stentor voices`: text to speech, and the saved voices of a model or a folder."""

from dataclasses import dataclass
from pathlib import Path

from stentor.inference.declarations import Argument, Flag, Option, verb
from stentor.inference.options import SPOKEN, SpeakerOptions, SpeechOptions
from stentor.pipeline.options import DEVICE, MODEL_PLUGINS, RAY

TEXT, PIPE, LINES, VOICE = "one TEXT", "a pipe (--out -)", "the lines of --from", "--save-voice without a TEXT"
"""Ways of speaking: `refuse_unused` names them."""


@verb("speak", "stentor.commands.speak:speak_files")
@dataclass(kw_only=True)
class SpeakOptions(SpeechOptions, SpeakerOptions):
    """Say a text, in the model's voice or in another, and write it as audio."""

    model: str = Argument("Run folder, export folder or Hub id.")
    text: str | None = Argument("What to say, of any length; `-` reads it from standard input.", None)
    out: str | None = Option(
        "The file to write: .wav, .flac or .ogg; `-` is a pipe. With --from: a folder.", output=True, ways=(SPOKEN,)
    )
    stream: bool = Flag("The first words early: short pieces first, each written as it is made.", ways=(TEXT,))
    save_voice: str | None = Option("Save the voice of the reference (or of --voice) under this name, for --voice.")
    raw: bool = Flag("Nothing trimmed, faded or made louder.", ways=(SPOKEN,))
    from_: str | None = Option(
        "JSONL with a `text` a line; `id`, `voice`, `reference`, `instruct` ... too.", flags="--from"
    )
    processes: int | None = Option(
        "With --from: that share the lines, each on one of the GPUs (1; with --ray what the cluster offers).",
        min=1,
        ways=(LINES,),
    )
    ray: str | None = Option(RAY, ways=(LINES,))
    gpus_per_worker: float | None = Option(
        "With --ray: GPUs of each worker, such as 0.25. Default: 1 with GPUs, 0 without.", min=0.0, needs="ray"
    )
    format: str = Option(
        "With --from: wav, flac or ogg; of a pipe: wav, or pcm for bare 16-bit samples.", "wav", ways=(PIPE, LINES)
    )
    force: bool = Flag("Write over what is there already; with --from: speak it again.")
    device: str = Option(DEVICE, "auto")
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)


@verb("voices", "stentor.commands.voices:list_voices")
@dataclass(kw_only=True)
class VoicesOptions:
    """List the voices that travel with a model, or those in a folder: length, language, codec and text."""

    folder: str = Argument("Run folder, export folder or Hub id; or a folder with voices.", ".")
    as_json: bool = Option("Answer as JSON.", False, flags="--json")
