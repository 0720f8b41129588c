"""Options of transcripts, speakers and speech, as the command line, a call in Python and the server have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.inference.declarations import Flag, Option

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.speak.voice import Voice

FILES, STREAM = "whole files", "--stream"
"""Ways of transcribing: `refuse_unused` names them."""
SPOKEN = "a text"
"""The way of speaking that is not saving a voice alone."""
LANGUAGE = "Language that is spoken, as a code such as en."
VAD = "What finds speech: energy, silero, or a silero_vad.onnx file (needs stentor[vad])."
DECODING: dict[str, Any] = {"panel": "Decoding", "ways": (FILES,)}
PAUSES: dict[str, Any] = {"panel": "Finding speech", "ways": (FILES,)}
CHECKS: dict[str, Any] = {"panel": "Checks of the text", "ways": (FILES,)}


@dataclass(kw_only=True)
class DecodingOptions:
    """Settings of transcription. None: the setting of the model's task."""

    language: str | None = Option(LANGUAGE, panel="Decoding")
    words: bool = Option("Add the time of every word.", False, **DECODING)
    """Needs the task `words`, or a model that times its tokens."""
    translate: bool | None = Option("Translate, with models that can.", flags="--translate", **DECODING)
    context: str | None = Option("Topic of the recordings, for models that read a context.", **DECODING)
    prompt: str | None = Option("Text before each window, whose style Whisper models follow.", **DECODING)
    hotwords: "str | Sequence[str] | None" = Option(
        "Names and terms to favour, separated by commas.", read_as=str | None, **DECODING
    )
    """They become part of the context or of the prompt, where the model reads one, and are favoured token by token
    where not."""
    hotword_strength: float | None = Option("Bonus for each token of a hotword (default 1.5).", **DECODING)
    """Whatever the model reads."""
    language_model: "str | Path | None" = Option(
        "File of texts, one per line, whose n-grams bias decoding.", read_as=Path | None, **DECODING
    )
    language_model_weight: float | None = Option("Weight of the language model (default 0.5).", **DECODING)
    beams: int | None = Option("Hypotheses kept while decoding (default 1: greedy).", min=1, **DECODING)
    temperature: "float | Sequence[float] | None" = Option(
        "Lowest sampling temperature (default 0: the most probable text).", read_as=float | None, min=0.0, **DECODING
    )
    """In the place of the lowest of the task's `checks.temperatures`; several: of all of them."""
    batch_seconds: float = Option("Seconds of audio that are decoded together.", 120.0, min=1.0, **DECODING)
    vad: str = Option(VAD, "energy", panel="Voice activity detection")
    vad_threshold: float | None = Option(
        "dB above the noise floor (energy, default 6) or probability (silero, 0.5).", panel="Voice activity detection"
    )
    min_speech: float = Option("Seconds; shorter speech between silences is dropped.", 0.0, min=0.0, **PAUSES)
    min_silence: float | None = Option(
        "Seconds; longer silence is not given to the model (default 2).", min=0.0, **PAUSES
    )
    """Unless it is given, recordings shorter than a window stay as they are."""
    speech_pad: float | None = Option(
        "Seconds of such silence that stay around speech (default 0.15).", min=0.0, **PAUSES
    )
    no_speech_threshold: float | None = Option(
        "Highest no-speech probability, for Whisper models (default 0.6).", **CHECKS
    )
    """In the place of the task's `checks.no_speech`."""
    log_prob_threshold: float | None = Option("Least mean log-probability of a text (default -1).", **CHECKS)
    """In the place of the task's `checks.mean_log_prob`."""
    compression_ratio_threshold: float | None = Option("Most that a text may repeat itself (default 2.4).", **CHECKS)
    """In the place of the task's `checks.compression_ratio`."""
    keep_failed: bool = Option("Write text that seems made up as well, instead of counting it.", False, **CHECKS)
    """As segments with `failed`; otherwise it is listed under the transcript's `failed` alone."""


@dataclass(kw_only=True)
class SpeakerCount:
    """Known number of speakers, or its bounds, in each recording."""

    speakers: int | None = Option("Number of speakers in each file, if known.", min=1)
    min_speakers: int | None = Option("Least number of speakers in each file.", min=1)
    max_speakers: int | None = Option("Greatest number of speakers in a file.", min=1)


@dataclass(kw_only=True)
class SpeechOptions:
    """Settings of speech synthesis for a text."""

    reference: "str | Path | np.ndarray | None" = Option(
        "Recording of the voice to clone, 3 to 10 s.", read_as=str | None, local=True
    )
    """A file or an array; `Speaker.prepare` makes `voice` of it."""
    reference_text: str | None = Option("What is said in the reference.")
    voice: "Voice | str | Path | None" = Option(
        "A saved voice: its path, or its name in the model's voices; OmniVoice's .pt too.",
        read_as=str | None,
        local=True,
    )
    """None: that of `reference`, what `instruct` says, or the model's choice."""
    instruct: str | None = Option("Description of the voice, as in the model's training.", ways=(SPOKEN,))
    language: str | None = Option("Language of the text, as a code such as en.")
    duration: float | None = Option("Duration in seconds. Default: estimated from the text.", ways=(SPOKEN,))
    speed: float | None = Option("Speed relative to the estimated duration. Default: 1.", ways=(SPOKEN,))
    seed: int | None = Option("Random seed; the same seed gives the same speech.", ways=(SPOKEN,))
    """None: that of the generation settings."""


@dataclass(kw_only=True)
class SpeakerOptions:
    """Settings that all texts of a call share."""

    recognizer: str | None = Option("Recogniser that transcribes the reference if its text is missing.", local=True)
    steps: int | None = Option("Number of passes through the model; fewer are faster.", min=1, ways=(SPOKEN,))
    guidance: float | None = Option("Classifier-free guidance; 0 halves the computation.", min=0.0, ways=(SPOKEN,))
    chunk_duration: float | None = Option("Length in seconds of the pieces of long texts.", min=1.0, ways=(SPOKEN,))
    chunk_threshold: float | None = Option(
        "Longest text that is spoken in one piece, in seconds.", min=0.0, ways=(SPOKEN,)
    )
    normalize: bool = Flag("Read numbers, dates and money as words (needs stentor[speak]).", ways=(SPOKEN,))
    denoise: bool | None = Option(
        "Clean speech from a noisy reference, if the model can.", flags="--denoise/--no-denoise", ways=(SPOKEN,)
    )
    compile: bool = Flag("Use torch.compile: slow at first, then faster.", ways=(SPOKEN,))

    @property
    def generation(self) -> dict[str, Any]:
        """The settings that differ from those of the model, as `Speaker` takes them."""
        settings = {
            "steps": self.steps,
            "guidance": self.guidance,
            "chunk_duration": self.chunk_duration,
            "chunk_threshold": self.chunk_threshold,
            "compile": self.compile or None,
        }
        return {key: value for key, value in settings.items() if value is not None}
