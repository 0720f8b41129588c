"""`stentor transcribe`: text for audio files of any length."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import (
    AUDIO_FILES,
    CHANNEL,
    DEVICE,
    GPUS_PER_WORKER,
    LANGUAGE,
    MODEL_PLUGINS,
    RAY,
    TRANSCRIPT_FORMATS,
    WORKERS,
    Argument,
    Flag,
    Option,
    verb,
)
from stentor.data.storage import StoragePath


@verb(app, "transcribe", "stentor.commands.transcribe:transcribe_files")
@dataclass
class TranscribeOptions:
    """Write down what is said in audio files, as text, JSON or subtitles."""

    model: str = Argument("Run folder, export folder or Hub id.")
    audio: list[str] = Argument(AUDIO_FILES)
    format: str = Option(TRANSCRIPT_FORMATS, "txt")
    out: str | None = Option("Folder for the files (made when missing). Without: standard output.", output=True)
    stream: bool = Flag("Write words as they are said: of standard input (-), or of a file as if it came just now.")
    delay: float | None = Option("Seconds of audio that --stream waits for at a time; short: early, long: better.")
    rate: int | None = Option("Hz of bare 16-bit samples on standard input (default: the model's).", min=1)
    skip_existing: bool = Flag("Leave out files whose outputs are in the folder --out already.")
    words: bool = Flag("With the time of every word.")
    diarizer: str | None = Option("A second model, that says who speaks.")
    language: str | None = Option(LANGUAGE)
    translate: bool | None = Option("Write a translation, with models that can.", None, "--translate")
    context: str | None = Option("What the recordings are about, for models that read a context.")
    prompt: str | None = Option("Text that is said to come before, for Whisper models: its style is taken up.")
    hotwords: str | None = Option("Names and terms that may be heard, with commas.")
    hotword_strength: float | None = Option("Favour them token by token, this much each (default 1.5).")
    language_model: StoragePath | None = Option("File of texts, one a line, whose n-grams have a say while decoding.")
    language_model_weight: float | None = Option("How much the language model counts (default 0.5).")
    beams: int | None = Option("Hypotheses kept while decoding (default 1: greedy).", min=1)
    temperature: float | None = Option("Lowest sampling temperature (default 0: the most probable text).", min=0.0)
    channel: int | None = Option(CHANNEL, min=0)
    device: str = Option(DEVICE, "auto")
    ray: str | None = Option(RAY)
    jobs: int | None = Option(WORKERS, min=1)
    gpus_per_worker: float | None = Option(GPUS_PER_WORKER, min=0.0)
    batch_seconds: float = Option("Seconds of audio that are decoded together.", 120.0, min=1.0)
    vad: str = Option("What finds speech: energy, silero, or a silero_vad.onnx file (needs stentor[vad]).", "energy")
    vad_threshold: float | None = Option("dB above the noise floor (energy, default 6) or probability (silero, 0.5).")
    min_speech: float = Option("Seconds; shorter speech between silences is left out.", 0.0, min=0.0)
    min_silence: float | None = Option("Seconds; longer silence is not given to the model (default 2).", min=0.0)
    speech_pad: float | None = Option("Seconds of such silence that stay around speech (default 0.15).", min=0.0)
    no_speech_threshold: float | None = Option(
        "Highest probability that nobody speaks, of Whisper models (default 0.6)."
    )
    log_prob_threshold: float | None = Option("Least mean log-probability of a text (default -1).")
    compression_ratio_threshold: float | None = Option("Most that a text may repeat itself (default 2.4).")
    keep_failed: bool = Flag("Write text that seems made up as well, instead of counting it.")
    cues: str = Option("What a subtitle holds: lines (to be read) or words (one each, needs --words).", "lines")
    plugin: list[Path] = Option(MODEL_PLUGINS, [])
