"""`stentor transcribe`: text for audio files of any length."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import AudioFiles, Channel, Device, Language, ModelPlugins, SkipExisting, takes_options


@dataclass
class TranscribeOptions:
    model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")]
    audio: AudioFiles
    format: Annotated[
        str,
        typer.Option(help="json, txt, srt, vtt, ctm or textgrid; several with commas, or all, together with --out."),
    ] = "txt"
    out: Annotated[
        str | None, typer.Option(help="Folder for the files (made when missing). Without: standard output.")
    ] = None
    skip_existing: SkipExisting = False
    words: Annotated[bool, typer.Option("--words", help="With the time of every word.")] = False
    diarizer: Annotated[str | None, typer.Option(help="A second model, that says who speaks.")] = None
    language: Language = None
    context: Annotated[
        str | None, typer.Option(help="What the recordings are about, for models that read a context.")
    ] = None
    prompt: Annotated[
        str | None, typer.Option(help="Text that is said to come before, for Whisper models: its style is taken up.")
    ] = None
    hotwords: Annotated[
        str | None, typer.Option(help="Names and terms that may be heard, with commas (Whisper and speech LLMs).")
    ] = None
    beams: Annotated[int | None, typer.Option(min=1, help="Hypotheses kept while decoding (default 1: greedy).")] = None
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Lowest sampling temperature (default 0: the most probable text).")
    ] = None
    channel: Channel = None
    device: Device = "auto"
    batch_seconds: Annotated[float, typer.Option(min=1.0, help="Seconds of audio that are decoded together.")] = 120.0
    vad: Annotated[
        str, typer.Option(help="What finds speech: energy, silero, or a silero_vad.onnx file (needs stentor[vad]).")
    ] = "energy"
    vad_threshold: Annotated[
        float | None, typer.Option(help="dB above the noise floor (energy, default 6) or probability (silero, 0.5).")
    ] = None
    min_speech: Annotated[
        float, typer.Option(min=0.0, help="Seconds; shorter speech between silences is left out.")
    ] = 0.0
    min_silence: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds; longer silence is not given to the model (default 2).")
    ] = None
    speech_pad: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds of such silence that stay around speech (default 0.15).")
    ] = None
    no_speech_threshold: Annotated[
        float | None, typer.Option(help="Highest probability that nobody speaks, of Whisper models (default 0.6).")
    ] = None
    log_prob_threshold: Annotated[
        float | None, typer.Option(help="Least mean log-probability of a text (default -1).")
    ] = None
    compression_ratio_threshold: Annotated[
        float | None, typer.Option(help="Most that a text may repeat itself (default 2.4).")
    ] = None
    keep_failed: Annotated[
        bool, typer.Option("--keep-failed", help="Write text that seems made up as well, instead of counting it.")
    ] = False
    cues: Annotated[
        str, typer.Option(help="What a subtitle holds: lines (to be read) or words (one each, needs --words).")
    ] = "lines"
    plugin: ModelPlugins = field(default_factory=list)


@app.command()
@takes_options
def transcribe(options: TranscribeOptions) -> None:
    """Write down what is said in audio files, as text, JSON or subtitles."""
    from stentor.commands.transcribe import transcribe_files

    transcribe_files(options)
