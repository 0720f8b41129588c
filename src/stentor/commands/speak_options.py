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
    """Synthesise a text, in the model's voice or a cloned one, and write it as audio."""

    model: str = Argument("Run folder, export folder or Hub id.", model=True)
    text: str | None = Argument("Text to speak, of any length; `-` reads it from standard input.", None, neutral=True)
    out: str | None = Option(
        "Output file: .wav, .flac or .ogg; `-` is standard output. With --from: a folder.", output=True, ways=(SPOKEN,)
    )
    stream: bool = Flag("Write the first words early: short pieces first, each as it is made.", ways=(TEXT,))
    save_voice: str | None = Option(
        "Save the voice of the reference (or of --voice) under this name, for --voice.", neutral=True
    )
    raw: bool = Flag("Do not trim, fade or normalise the audio.", ways=(SPOKEN,))
    from_: str | None = Option(
        "JSONL file with `text` and optional `id`, `voice`, `reference`, `instruct` ... in each line.",
        flags="--from",
        neutral=True,
    )
    processes: int | None = Option(
        "With --from: number of processes, each on one GPU (1; with --ray what the cluster offers).",
        min=1,
        ways=(LINES,),
        neutral=True,
    )
    ray: str | None = Option(RAY, ways=(LINES,), neutral=True)
    gpus_per_worker: float | None = Option(
        "With --ray: GPUs of each worker, such as 0.25. Default: 1 with GPUs, 0 without.",
        min=0.0,
        needs="ray",
        neutral=True,
    )
    format: str = Option(
        "With --from: wav, flac or ogg; for standard output: wav, or pcm (raw 16-bit samples).",
        "wav",
        ways=(PIPE, LINES),
        neutral=True,
    )
    force: bool = Flag("Overwrite existing files; with --from: speak them again.", neutral=True)
    device: str = Option(DEVICE, "auto", neutral=True)
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)


@verb("voices", "stentor.commands.voices:list_voices")
@dataclass(kw_only=True)
class VoicesOptions:
    """List the voices of a model or folder: length, language, codec and text."""

    folder: str = Argument("Run folder, export folder or Hub id; or a folder with voices.", ".")
    as_json: bool = Option("Print JSON.", False, flags="--json")
