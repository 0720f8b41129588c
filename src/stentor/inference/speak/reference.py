"""Reference recordings of voices: read, trimmed, transcribed and encoded as codec tokens."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stentor.audio.io import SILENCE, probe, read
from stentor.data.activity import join_spans, loud_spans
from stentor.data.embedded_audio import audio_file
from stentor.errors import AudioError, ConfigError
from stentor.inference.recording import ArrayRecording
from stentor.inference.speak.voice import Voice
from stentor.models.codecs.base import AudioCodec
from stentor.tasks.speak.evaluator import evaluate_clips, evaluator_for

SHORTEST = 0.5
"""Minimum seconds of speech in a reference."""
LONGEST = 20.0
"""Maximum seconds of a reference that are used if its transcript is not given."""
LONGEST_WITH_TEXT = 30.0
"""Maximum seconds of a reference with a transcript, which cannot be cut because the transcript would not fit."""
LONGEST_FILE = 60.0
"""Maximum seconds of a reference file."""
ADVICE = "3 to 10 s of one voice are best"
LEVEL = 0.1
"""Root mean square to which quieter references are raised."""
PEAK = 0.99
PAUSE, MARGIN = 0.5, 0.1
"""Seconds: pauses longer than `PAUSE` are shortened to twice `MARGIN`, and both ends keep `MARGIN`."""

CLOSED = frozenset(";:,.!?…)]}\"'“”‘’；：，。！？、）】")
"""Characters that end the transcript of a reference."""

Remark = Callable[[str], None]
Transcriber = Callable[["np.ndarray", int, "str | None"], str]
"""Function from float32 [samples], their rate in Hz and their language, if known, to the transcript."""


def make_voice(
    audio: str | Path | np.ndarray,
    codec: AudioCodec,
    text: str | None = None,
    language: str | None = None,
    rate: int | None = None,
    transcribe: Transcriber | None = None,
    remark: Remark | None = None,
) -> Voice:
    """Return the voice of a recording: a file, or an array [samples] or [channels, samples] at `rate` Hz.

    The audio is mixed to mono and resampled, silence at the ends is removed, long pauses are shortened, and the level
    is raised to an RMS of 0.1. Without its transcript `text`, it is cut at a pause before 20 s and transcribed with
    `transcribe`. `remark` is called with messages for the user. Raises AudioError (`too_short`, `too_long`, `silent`,
    `no_speech`, ...), and ConfigError without `text` and `transcribe`.
    """
    if text is not None and not text.strip():
        raise ConfigError(
            "The transcript of the reference is empty: give it, or leave it out and give a recogniser (--recognizer)."
        )
    if text is None and transcribe is None:
        raise ConfigError(
            "The transcript of the reference is missing: give --reference-text, or --recognizer with a model that "
            "transcribes it."
        )
    name = str(audio) if isinstance(audio, (str, Path)) else "The reference"
    tell = remark or (lambda sentence: None)
    samples = trimmed(_read(audio, rate, codec.sample_rate, name), codec.sample_rate, name)
    seconds = len(samples) / codec.sample_rate
    if seconds < SHORTEST:
        raise AudioError(
            f"{name} has {seconds:.2f} s of speech; a reference needs at least {SHORTEST:g} s, and {ADVICE}.",
            "too_short",
        )
    if text is not None and seconds > LONGEST_WITH_TEXT:
        raise AudioError(
            f"{name} has {seconds:.1f} s of speech; a reference with a transcript has at most {LONGEST_WITH_TEXT:g} s, "
            f"and {ADVICE}. Shorten both, or leave out the transcript and give --recognizer.",
            "too_long",
        )
    if text is None and seconds > LONGEST:
        samples = _cut(samples, codec.sample_rate)
        tell(
            f"{name} has {seconds:.1f} s of speech: the first {len(samples) / codec.sample_rate:.1f} s are used; "
            f"{ADVICE}."
        )
    elif seconds > LONGEST:
        tell(f"{name} has {seconds:.1f} s of speech, which is slower and rarely sounds better: {ADVICE}.")
    rms = root_mean_square(samples)
    samples = levelled(samples)
    if text is None:
        assert transcribe is not None
        text = transcribe(samples, codec.sample_rate, language).strip()
        if not text:
            raise AudioError(f"The recogniser found no words in {name}: give its transcript.", "no_speech")
        tell(f"Transcript of {name}: {text}")
    source = name if isinstance(audio, (str, Path)) else None
    return Voice(codec.encode([samples])[0], text.strip(), language, source, rms)


def closed(text: str) -> str:
    """Return the transcript of a reference with a full stop if it ends without punctuation, as OmniVoice does, so that
    the spoken text does not continue its sentence."""
    text = text.strip()
    if not text or text[-1] in CLOSED:
        return text
    return text + ("。" if re.search(r"[\u4e00-\u9fff]", text) else ".")


def trimmed(audio: np.ndarray, rate: int, name: str = "The audio") -> np.ndarray:
    """Return float32 [samples] without silence at the ends, and with pauses over 0.5 s shortened to 0.2 s.

    Raises AudioError (`no_speech`) if nothing is long enough to be speech.
    """
    spans = join_spans(loud_spans(audio, rate), PAUSE)
    if not spans:
        raise AudioError(f"{name} contains no speech.", "no_speech")
    return np.concatenate([audio[round(max(0, a - MARGIN) * rate) : round((b + MARGIN) * rate)] for a, b in spans])


def levelled(audio: np.ndarray) -> np.ndarray:
    """Return float32 [samples], raised to an RMS of 0.1 as far as the peak allows."""
    level, peak = root_mean_square(audio), float(np.abs(audio).max())
    return audio * np.float32(max(1.0, min(LEVEL / level, PEAK / peak)))


def root_mean_square(audio: np.ndarray) -> float:
    return float(np.sqrt(np.square(audio, dtype=np.float64).mean()))


def transcriber(recognizer: str, device: str = "cpu") -> Transcriber:
    """Transcribes references by a model of Stentor's or of transformers, a folder or a Hub id, which is loaded with the
    first one."""
    model = evaluator_for(recognizer, "text")

    def transcribe(audio: np.ndarray, rate: int, language: str | None) -> str:
        return str(evaluate_clips(model, [audio], rate, [language], device)[0])

    return transcribe


def _read(audio: str | Path | np.ndarray, rate: int | None, codec_rate: int, name: str) -> np.ndarray:
    if isinstance(audio, (str, Path)):
        with audio_file(audio) as file:
            check_length(probe(file).duration, name)
            return read(file, rate=codec_rate)
    if rate is None:
        raise ConfigError("A reference that is an array needs its sample rate in Hz (`reference_rate`).")
    samples = ArrayRecording(audio, rate, codec_rate, name).audio
    check_length(len(samples) / codec_rate, name)
    if abs(samples).max() < SILENCE:
        raise AudioError(f"{name} is silent.", "silent")
    return samples


def check_length(seconds: float, name: str) -> None:
    """Raise AudioError for recordings that are too short or too long for a reference."""
    if seconds < SHORTEST:
        raise AudioError(
            f"{name} lasts {seconds:.2f} s; a reference needs at least {SHORTEST:g} s, and {ADVICE}.", "too_short"
        )
    if seconds > LONGEST_FILE:
        raise AudioError(
            f"{name} lasts {seconds:.0f} s; a reference is at most {LONGEST_FILE:g} s long, and {ADVICE}. Cut it.",
            "too_long",
        )


def _cut(audio: np.ndarray, rate: int) -> np.ndarray:
    """Return the audio before the last pause within `LONGEST` seconds, or those seconds if there is no pause."""
    runs = join_spans(loud_spans(audio, rate), MARGIN)
    ends = [end for _, end in runs[:-1] if LONGEST / 2 < end <= LONGEST - MARGIN]
    return audio[: round((ends[-1] + MARGIN if ends else LONGEST) * rate)]
