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
"""Seconds of speech that a reference must hold."""
LONGEST = 20.0
"""Seconds of a reference that are used where its text is not given."""
LONGEST_WITH_TEXT = 30.0
"""... and where it is: it cannot be cut then, the text would be longer."""
LONGEST_FILE = 60.0
"""Seconds of a file that is still taken for a reference."""
ADVICE = "3 to 10 s of one voice are best"
LEVEL = 0.1
"""Root mean square that quieter references are raised to."""
PEAK = 0.99
PAUSE, MARGIN = 0.5, 0.1
"""Pauses longer than the first are shortened to twice the second; as much is left at both ends. Seconds."""

CLOSED = frozenset(";:,.!?…)]}\"'“”‘’；：，。！？、）】")
"""Characters that the text of a reference may end with."""

Remark = Callable[[str], None]
Transcriber = Callable[["np.ndarray", int, "str | None"], str]
"""The text of float32 [samples] at a rate in Hz, in a language where that is known."""


def make_voice(
    audio: str | Path | np.ndarray,
    codec: AudioCodec,
    text: str | None = None,
    language: str | None = None,
    rate: int | None = None,
    transcribe: Transcriber | None = None,
    remark: Remark | None = None,
) -> Voice:
    """The voice in a recording: a file, or an array [samples] or [channels, samples] at `rate` Hz.

    It is made mono and resampled, silence at the ends and long pauses go, what is quieter than an RMS of 0.1 is raised
    to it. Where `text`, what is said in it, is not given, it is cut at a pause before 20 s and `transcribe`d. `remark`
    is called with sentences for a person about what was done. Raises AudioError (`too_short`, `too_long`, `silent`,
    `no_speech`, ...) and, when there is neither a text nor a recogniser, ConfigError.
    """
    if text is not None and not text.strip():
        raise ConfigError("The text of the reference is empty: leave it out to have it transcribed, or write it down.")
    if text is None and transcribe is None:
        raise ConfigError(
            "What is said in the reference must be known: give --reference-text, or --recognizer with a model that "
            "writes it down."
        )
    name = str(audio) if isinstance(audio, (str, Path)) else "The reference"
    tell = remark or (lambda sentence: None)
    samples = trimmed(_read(audio, rate, codec.sample_rate, name), codec.sample_rate, name)
    seconds = len(samples) / codec.sample_rate
    if seconds < SHORTEST:
        raise AudioError(
            f"{name} holds {seconds:.2f} s of speech; a reference needs at least {SHORTEST:g} s, and {ADVICE}.",
            "too_short",
        )
    if text is not None and seconds > LONGEST_WITH_TEXT:
        raise AudioError(
            f"{name} holds {seconds:.1f} s of speech, and its text is as long; at most {LONGEST_WITH_TEXT:g} s "
            f"can be used, and {ADVICE}. Cut the recording and its text, or leave out the text and give --recognizer.",
            "too_long",
        )
    if text is None and seconds > LONGEST:
        samples = _cut(samples, codec.sample_rate)
        tell(
            f"{name} holds {seconds:.1f} s of speech: the first {len(samples) / codec.sample_rate:.1f} s are used; "
            f"{ADVICE}."
        )
    elif seconds > LONGEST:
        tell(f"{name} holds {seconds:.1f} s of speech, which is slow and seldom sounds better: {ADVICE}.")
    rms = root_mean_square(samples)
    samples = levelled(samples)
    if text is None:
        assert transcribe is not None
        text = transcribe(samples, codec.sample_rate, language).strip()
        if not text:
            raise AudioError(f"The recogniser hears no word in {name}: give its text.", "no_speech")
        tell(f"{name} is heard as: {text}")
    source = name if isinstance(audio, (str, Path)) else None
    return Voice(codec.encode([samples])[0], text.strip(), language, source, rms)


def closed(text: str) -> str:
    """The text of a reference with a full stop where it ends in no punctuation, as OmniVoice has it: it shall not run
    on into what is spoken after it."""
    text = text.strip()
    if not text or text[-1] in CLOSED:
        return text
    return text + ("。" if re.search(r"[\u4e00-\u9fff]", text) else ".")


def trimmed(audio: np.ndarray, rate: int, name: str = "The audio") -> np.ndarray:
    """Float32 [samples] without silence at the ends, with pauses longer than 0.5 s shortened to 0.2 s.

    Raises AudioError (`no_speech`) when nothing in it is long enough to be speech.
    """
    spans = join_spans(loud_spans(audio, rate), PAUSE)
    if not spans:
        raise AudioError(f"{name} holds no speech.", "no_speech")
    return np.concatenate([audio[round(max(0, a - MARGIN) * rate) : round((b + MARGIN) * rate)] for a, b in spans])


def levelled(audio: np.ndarray) -> np.ndarray:
    """Float32 [samples], louder where its RMS is below 0.1, as far as its peak allows."""
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
        raise ConfigError("A reference that is an array needs its samples per second (`reference_rate`).")
    samples = ArrayRecording(audio, rate, codec_rate, name).audio
    check_length(len(samples) / codec_rate, name)
    if abs(samples).max() < SILENCE:
        raise AudioError(f"{name} is silent.", "silent")
    return samples


def check_length(seconds: float, name: str) -> None:
    """Raises AudioError for recordings that are too short or too long for a reference."""
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
    """Audio before the last pause within `LONGEST` seconds, or all of that where there is none."""
    runs = join_spans(loud_spans(audio, rate), MARGIN)
    ends = [end for _, end in runs[:-1] if LONGEST / 2 < end <= LONGEST - MARGIN]
    return audio[: round((ends[-1] + MARGIN if ends else LONGEST) * rate)]
