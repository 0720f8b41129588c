"""Options of transcription, diarization and speech synthesis, shared by the command line, Python and the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.inference.declarations import Flag, Option

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.speak.voice import Voice

FILES, STREAM = "whole files", "--stream"
"""Modes of transcribing, as `refuse_unused` names them in messages."""
SPOKEN = "a text"
"""Mode of speaking a text, as opposed to only saving a voice."""
LANGUAGE = "Code of the spoken language, such as en (default: as trained, or detected)."
VAD = "Speech detector: energy, silero, or a silero_vad.onnx file (needs stentor[vad])."
DECODING: dict[str, Any] = {"panel": "Decoding", "ways": (FILES,)}
PAUSES: dict[str, Any] = {"panel": "Finding speech", "ways": (FILES,)}
CHECKS: dict[str, Any] = {"panel": "Checks of the text", "ways": (FILES,)}
SUBTITLES: dict[str, Any] = {"panel": "Subtitles", "ways": (FILES,)}
CUES = ("lines", "words", "segments")
"""Contents of a subtitle."""


@dataclass(kw_only=True)
class DecodingOptions:
    """Options of transcription. If an option is None, the setting of the model's task applies."""

    language: str | None = Option(LANGUAGE, panel="Decoding")
    words: bool = Option("Add the start and end time of every word.", False, **DECODING)
    """Needs a model trained for the task `words`, or one with token times, such as a transducer."""
    translate: bool | None = Option("Translate, if the model supports it.", flags="--translate", **DECODING)
    context: str | None = Option("Topic of the recordings, for models that take a context.", **DECODING)
    prompt: str | None = Option(
        "Text before the recording, for Whisper models: they continue in its style.", **DECODING
    )
    hotwords: "str | Sequence[str] | None" = Option(
        "Names and terms to recognise, separated by commas; or @FILE with one per line.", read_as=str | None, **DECODING
    )
    """They are added to the context or the prompt if the model takes one; otherwise their tokens get a bonus. A line of
    a file may end in a tab or a colon and the bonus of its tokens; lines that begin with # are comments."""
    hotword_strength: float | None = Option(
        "Bonus added to the log-probability of each hotword token (default 1.5).", **DECODING
    )
    """If given, hotwords get this bonus even if the model takes a context or a prompt."""
    language_model: "str | Path | None" = Option(
        "Text file, one sentence per line, to build an n-gram language model from.", read_as=Path | None, **DECODING
    )
    language_model_weight: float | None = Option("Weight of the language model (default 0.5).", **DECODING)
    beams: int | None = Option("Beam size (default 1: greedy search).", min=1, **DECODING)
    temperature: "float | Sequence[float] | None" = Option(
        "Lowest sampling temperature (default 0: the most probable text).", read_as=float | None, min=0.0, **DECODING
    )
    """Replaces the lowest of the task's `checks.temperatures`; a list replaces all of them."""
    batch_seconds: float = Option("Seconds of audio per batch.", 120.0, min=1.0, **DECODING, neutral=True)
    vad: str = Option(VAD, "energy", panel="Finding speech")
    vad_threshold: float | None = Option(
        "Threshold: dB above the noise floor (energy, default 6) or a probability (silero, default 0.5).",
        panel="Finding speech",
    )
    min_speech: float = Option("Skip speech between silences shorter than this, in seconds.", 0.0, min=0.0, **PAUSES)
    min_silence: float | None = Option("Skip silence longer than this, in seconds (default 2).", min=0.0, **PAUSES)
    """If None, the longest pause of the training clips, where the model's folder has it."""
    speech_pad: float | None = Option(
        "Seconds of skipped silence kept around speech (default 0.15).", min=0.0, **PAUSES
    )
    no_speech_threshold: float | None = Option(
        "Maximum no-speech probability, for Whisper models (default 0.6).", **CHECKS
    )
    """Replaces the task's `checks.no_speech`."""
    log_prob_threshold: float | None = Option("Minimum mean log-probability of a text (default -1).", **CHECKS)
    """Replaces the task's `checks.mean_log_prob`."""
    compression_ratio_threshold: float | None = Option(
        "Maximum compression ratio of a text, a measure of repetition (default 2.4).", **CHECKS
    )
    """Replaces the task's `checks.compression_ratio`."""
    keep_failed: bool = Option("Keep text that failed the hallucination checks.", False, **CHECKS)
    """Keeps it as segments with the key `failed`. By default it is only listed in `failed` of the transcript."""


@dataclass(kw_only=True)
class SubtitleOptions:
    """Rules of subtitles."""

    cues: str = Option("Content of a subtitle: lines, words (one each) or segments.", "lines", **SUBTITLES)
    """`words` needs word times. `segments` makes one subtitle of each segment, however long it is."""
    highlight_words: bool = Option("Highlight each word when it is spoken (vtt, ass, lrc).", False, **SUBTITLES)
    max_line_width: int = Option("Columns per line; wide characters take two.", 42, min=1, **SUBTITLES)
    max_line_count: int = Option("Lines per subtitle.", 2, min=1, **SUBTITLES)
    min_cue_duration: float = Option("Seconds that a subtitle stays at least, in silence.", 1.0, min=0.0, **SUBTITLES)
    max_cue_duration: float = Option("Seconds that a subtitle stays at most.", 7.0, min=0.1, **SUBTITLES)
    cue_gap: float = Option("Seconds between two subtitles (default: two frames).", 0.083, min=0.0, **SUBTITLES)
    reading_speed: float = Option(
        "Columns per second: long subtitles stay longer, in silence.", 17.0, min=1.0, **SUBTITLES
    )


@dataclass(kw_only=True)
class SpeakerCount:
    """Number of speakers in each recording, or bounds, as far as they are known."""

    speakers: int | None = Option("Number of speakers in each file, if known (default: estimated).", min=1)
    min_speakers: int | None = Option("Minimum number of speakers in each file.", min=1)
    max_speakers: int | None = Option("Maximum number of speakers in each file.", min=1)


@dataclass(kw_only=True)
class SpeechOptions:
    """Options of one text to speak."""

    reference: "str | Path | np.ndarray | None" = Option(
        "Recording of the voice to clone, 3 to 10 s.", read_as=str | None, local=True
    )
    """A file or an array; `Speaker.prepare` creates `voice` from it."""
    reference_text: str | None = Option("Transcript of the reference.")
    voice: "Voice | str | Path | None" = Option(
        "Saved voice: a path, or a name from the model's voices; .pt files of OmniVoice work too.",
        read_as=str | None,
        local=True,
    )
    """If None: the voice of `reference`, the one that `instruct` describes, or one that the model chooses."""
    instruct: str | None = Option(
        "Description of the voice in words, if the model was trained with them.", ways=(SPOKEN,)
    )
    language: str | None = Option("Code of the language of the text, such as en.")
    duration: float | None = Option("Duration of the speech in seconds (default: estimated).", ways=(SPOKEN,))
    speed: float | None = Option("Speed, from 0.25 to 4 (default 1, the estimated duration).", ways=(SPOKEN,))
    seed: int | None = Option("Random seed: the same seed gives the same speech.", ways=(SPOKEN,))
    """If None: the seed of the generation settings."""


@dataclass(kw_only=True)
class SpeakerOptions:
    """Options that apply to all texts that a model speaks."""

    recognizer: str | None = Option(
        "Model that transcribes the reference if no transcript is given.", local=True, model=True
    )
    steps: int | None = Option("Number of unmasking steps; fewer are faster.", min=1, ways=(SPOKEN,))
    guidance: float | None = Option(
        "Guidance scale: higher follows text and voice more closely; 0 halves the work.", min=0.0, ways=(SPOKEN,)
    )
    chunk_duration: float | None = Option(
        "Target duration in seconds of the pieces of a long text.", min=1.0, ways=(SPOKEN,)
    )
    chunk_threshold: float | None = Option(
        "Split texts that take longer than this, in seconds.", min=0.0, ways=(SPOKEN,)
    )
    normalize: bool = Flag("Convert numbers, dates and amounts to words (needs stentor[speak]).", ways=(SPOKEN,))
    denoise: bool | None = Option(
        "Get clean speech from a noisy reference, if the model supports it.",
        flags="--denoise/--no-denoise",
        ways=(SPOKEN,),
    )
    compile: bool = Flag("Use torch.compile: a slower start, then faster.", ways=(SPOKEN,))

    @property
    def generation(self) -> dict[str, Any]:
        """The settings that override those of the model, for `Speaker`."""
        settings = {
            "steps": self.steps,
            "guidance": self.guidance,
            "chunk_duration": self.chunk_duration,
            "chunk_threshold": self.chunk_threshold,
            "compile": self.compile or None,
        }
        return {key: value for key, value in settings.items() if value is not None}
