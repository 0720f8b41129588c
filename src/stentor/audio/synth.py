"""Built-in voice: eSpeak NG (formant synthesis, no download), with the time of every word.

eSpeak carries state from one utterance to the next (flutter, noise, voice, rate), so the same call would sound
different after another one. Loading the library takes 0.3 ms: each utterance is spoken by a freshly loaded library,
which makes the audio a function of the arguments alone and leaves nothing behind for a forked worker to inherit.
"""

import _ctypes
import ctypes
import difflib
import os
import signal
import sys
import threading
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stentor.errors import ConfigError

RATE = 16000
"""Sampling rate of `SynthesizedSpeech.audio` in Hz."""

ACCENTS = ("en", "en-us", "en-us-nyc", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd")

ODD_VARIANTS = ("Alicia", "Andy", "Jacky", "boris", "fast", "kaukovalta", "travis", "whisper", "whisperf")
"""Variants that `say` takes but `variants` leaves out: whispers, `fast` (the plain voice), and those of which a Whisper
model got 40 % of the letters wrong (16 % for the plain voice)."""

# In espeak-ng 1.52: no dictionary in the wheel (fo, kaa, xex); crashes on numbers (kl).
_BROKEN_LANGUAGES = {"fo", "kaa", "kl", "xex"}

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS, _PHONEME_EVENTS = 2, 1
_CHARS_UTF8, _IPA = 1, 2
_SPEED, _PITCH = 1, 3
_LAST, _WORD, _END, _PHONEME = 0, 1, 5, 7


READINGS = 100_000
"""Texts whose phonemes are remembered."""


@dataclass(frozen=True)
class SynthesizedSpeech:
    """One spoken utterance."""

    audio: np.ndarray
    """float32 [samples] at 16 kHz, within -1..1."""
    words: list[dict[str, Any]]
    """`{"word", "start", "end"}` in seconds, in the order of the text. The words are the text split at white space,
    without those that are not spoken (a lone dash)."""
    native: np.ndarray = field(repr=False)
    """float32 [samples] at the synthesiser's own rate."""
    native_rate: int = field(repr=False)

    @property
    def seconds(self) -> float:
        """Duration of `audio`."""
        return len(self.audio) / RATE

    def audio_at(self, rate: int) -> np.ndarray:
        """float32 [samples] at `rate` Hz; above 16 kHz it keeps the band that the synthesiser made (11 kHz)."""
        return self.audio if rate == RATE else _resample(self.native, self.native_rate, rate)


def say(text: str, voice: str = "en-us", speed: int = 165, pitch: int = 50) -> SynthesizedSpeech:
    """Speak plain text (no SSML, no escapes) in a voice such as `en-us` or `en-us+f3`.

    `speed` is words per minute (80 to 450), `pitch` 0 to 99. The same arguments give the same samples in every
    process. Word times come from the synthesiser's own events, so they are exact; only inside words that it speaks as
    one unit ("of the") the border is placed by phoneme counts. A pause after a word does not belong to it.
    Safe from several threads and in forked workers. Raises `ConfigError` for an unknown voice, a speed or pitch out of
    range, and text in which nothing can be spoken.
    """
    check_voice(voice)
    if not 80 <= speed <= 450:
        raise ConfigError(f"The built-in voice speaks 80 to 450 words per minute; speed is {speed}.")
    if not 0 <= pitch <= 99:
        raise ConfigError(f"The built-in voice's pitch goes from 0 to 99; it is {pitch}.")
    tokens = _tokens(text)
    if not tokens:
        raise ConfigError("The text to speak is empty.")
    plain = [_plain(token) for token in tokens]
    with _lock, _Library() as library:
        samples = library.speak(" ".join(plain), voice, speed, pitch)
        if not any(event.sounds for event in library.events):
            raise ConfigError(f"There is nothing to speak in {text!r} with the voice '{voice}'.")
        times = _word_times(plain, library.events, len(samples), library.phonemes_in)
        rate = library.rate
    native = samples.astype(np.float32) / 32768
    words = [{"word": tokens[i], "start": round(a / rate, 5), "end": round(b / rate, 5)} for i, a, b in times]
    return SynthesizedSpeech(_resample(native, rate, RATE), words, native, rate)


@lru_cache(READINGS)
def phonemes(text: str, voice: str = "en-us") -> str:
    """Pronunciation of a text, in IPA with stress marks; clauses are separated by commas. Empty where there is nothing
    to speak. Raises `ConfigError` for an unknown voice."""
    check_voice(voice)
    plain = " ".join(map(_plain, _tokens(text)))
    with _lock, _Library() as library:
        if library.lib.espeak_SetVoiceByName(voice.encode()):
            raise ConfigError(f"espeak-ng does not know the voice '{voice}'.")
        return ", ".join(filter(None, (clause.strip() for clause in library.clauses(plain, _IPA))))


def _tokens(text: str) -> list[str]:
    """The text split at white space. Control characters are commands to espeak: they must not come from a text."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in text).split()


def _plain(token: str) -> str:
    """espeak's Vietnamese crashes on a lone backquote; in transcripts it stands for a quote."""
    return token.replace("`", "'")


def accents() -> list[str]:
    """The seven English accents, as language names."""
    return list(ACCENTS)


def variants() -> list[str]:
    """Voice variants (`f3` in `en-us+f3`) that speak clearly in every accent, each different from the others."""
    return [name for name in _all_variants() if name not in ODD_VARIANTS]


@cache
def languages() -> tuple[str, ...]:
    """Names of all languages and accents that speak, such as `de` or `en-gb-scotland`."""
    names = {path.name.lower() for path in (_data() / "lang").rglob("*") if path.is_file()}
    return tuple(sorted(names - _BROKEN_LANGUAGES))


def voices() -> list[str]:
    """All names that `say` takes: each language alone and with each variant."""
    return [name for language in languages() for name in (language, *(f"{language}+{v}" for v in _all_variants()))]


def check_voice(name: str) -> None:
    """Raise `ConfigError` when there is no such voice, naming close ones. Does not load the synthesiser.

    espeak itself would use another voice: it keeps the previous one, or leaves the variant out.
    """
    language, _, variant = name.partition("+")
    if language not in languages():
        close = difflib.get_close_matches(language, languages(), 3, 0.5)
        raise ConfigError(f"Unknown voice '{name}': there is no language '{language}'{_hint(close)}.")
    if "+" in name and variant not in _all_variants():
        close = difflib.get_close_matches(variant, _all_variants(), 3, 0.5)
        raise ConfigError(f"Unknown voice '{name}': there is no variant '{variant}'{_hint(close)}.")


def _hint(close: list[str]) -> str:
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""


@cache
def _data() -> Path:
    import espeakng_loader

    return Path(espeakng_loader.get_data_path())


@cache
def _all_variants() -> tuple[str, ...]:
    return tuple(sorted(path.name for path in (_data() / "voices" / "!v").iterdir()))


def _resample(audio: np.ndarray, rate: int, to: int) -> np.ndarray:
    import soxr

    # Resampling overshoots a little at full scale.
    return np.clip(soxr.resample(audio, rate, to), -1.0, 1.0)


class _SynthEvent(NamedTuple):
    """The parts of an espeak event that word times need."""

    kind: int
    position: int  # characters into the text, from 1
    sample: int
    phoneme: bytes

    @property
    def sounds(self) -> bool:
        """A phoneme that is not a pause ("_:") and not a change of language ("(de)")."""
        return self.kind == _PHONEME and not self.phoneme.startswith((b"_", b"("))


def _word_times(
    tokens: list[str], events: list[_SynthEvent], total: int, phonemes_in: Callable[[str], int]
) -> list[tuple[int, int, int]]:
    """(index of the token, first sample, last sample) of each token that is spoken."""
    offsets = list(accumulate((len(token) + 1 for token in tokens[:-1]), initial=0))
    announced = [(bisect_right(offsets, e.position - 1) - 1, k) for k, e in enumerate(events) if e.kind == _WORD]
    known = {token for token, _ in announced}
    spoken = [i for i, t in enumerate(tokens) if (i in known and any(map(str.isalnum, t))) or phonemes_in(t)]
    # espeak announces a word by its place in the text: some words twice (numbers), some not at all ("the" of "of the"),
    # and a word after a lone dash at the dash. A group is what lies between two announcements.
    groups: list[tuple[int, int]] = []  # (index into spoken, index of the event)
    for token, event in announced:
        index = bisect_left(spoken, token)
        if index < len(spoken) and (not groups or index > groups[-1][0]):
            groups.append((index, event))
    speech_end = next((e.sample for e in reversed(events) if e.kind == _END), total)
    words: list[tuple[int, int, int]] = []
    for g, (index, event) in enumerate(groups):
        last = g + 1 == len(groups)
        after, following = (len(spoken), len(events)) if last else groups[g + 1]
        members = spoken[0 if g == 0 else index : after]
        first, stop = events[event].sample, speech_end if last else events[following].sample
        # Pauses before the first sound and after the last one belong to no word.
        phonemes = [e for e in events[event:following] if e.kind == _PHONEME]
        sounding = [k for k, e in enumerate(phonemes) if e.sounds]
        if sounding and sounding[0] > 0:
            first = phonemes[sounding[0]].sample
        if sounding and sounding[-1] + 1 < len(phonemes):
            stop = phonemes[sounding[-1] + 1].sample
        edges = [first, stop]
        if len(members) > 1:
            counts = [max(1, phonemes_in(tokens[i])) for i in members]
            shares = [c / sum(counts) for c in accumulate(counts[:-1])]
            if len(sounding) >= len(members):
                borders = [phonemes[sounding[min(round(s * len(sounding)), len(sounding) - 1)]].sample for s in shares]
            else:
                borders = [round(first + s * (stop - first)) for s in shares]
            edges[1:1] = borders
        for k, i in enumerate(members):
            # Above 400 words per minute the events of espeak cross each other by some samples.
            start = max(edges[k], words[-1][2] if words else 0)
            words.append((i, start, min(max(edges[k + 1], start + 1), total)))
    return words


class _Name(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Name),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class _Library:
    """A freshly loaded espeak for one utterance; leaving the `with` block unloads it."""

    def __init__(self) -> None:
        import espeakng_loader

        self.path = espeakng_loader.get_library_path()
        self.chunks: list[np.ndarray] = []
        self.events: list[_SynthEvent] = []
        self.callback = _Callback(self._take)  # kept here: C holds no reference

    def __enter__(self) -> "_Library":
        global _open
        lib = self.lib = _open = ctypes.CDLL(self.path)
        lib.espeak_Info.restype = lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
        lib.espeak_ListVoices.restype = ctypes.c_void_p
        lib.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]
        lib.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
        text: list[Any] = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int]
        lib.espeak_Synth.argtypes = [*text, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p]
        self.rate = lib.espeak_Initialize(_SYNCHRONOUS, 0, str(_data()).encode(), _PHONEME_EVENTS)
        self.listed = None
        if self.rate <= 0:
            self.__exit__()
            raise ConfigError(f"The built-in voice did not start: espeak-ng's data in {_data()} is not usable.")
        if os.name != "nt" and lib.espeak_Info(None).startswith(b"1.52"):
            # Setting a voice would make this list too; espeak 1.52 never frees it (2 KB at each loading).
            self.listed = lib.espeak_ListVoices(None)
        lib.espeak_SetSynthCallback(self.callback)
        return self

    def __exit__(self, *_: object) -> None:
        global _open
        self.lib.espeak_Terminate()
        if self.listed:
            _libc().free(ctypes.c_void_p(self.listed))
        _unload(self.lib)
        _open = None

    def _take(self, wave: Any, count: int, events: Any) -> int:
        if wave and count > 0:
            self.chunks.append(np.ctypeslib.as_array(wave, shape=(count,)).copy())
        i = 0
        while events[i].type != _LAST:
            event = events[i]
            self.events.append(_SynthEvent(event.type, event.text_position, event.sample, bytes(event.id.string)))
            i += 1
        return 0

    def speak(self, text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
        """int16 [samples] at `rate`; fills `events`."""
        # Flutter and noise: espeak seeds its own generator with the time of day, and uses the C library's as it is.
        self.lib.espeak_ng_SetRandSeed(1)
        _libc().srand(1)
        if self.lib.espeak_SetVoiceByName(voice.encode()):
            raise ConfigError(f"espeak-ng does not know the voice '{voice}'.")
        self.lib.espeak_SetParameter(_SPEED, int(speed), 0)
        self.lib.espeak_SetParameter(_PITCH, int(pitch), 0)
        encoded = text.encode()
        with signals_later():
            self.lib.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _CHARS_UTF8, None, None)
        return np.concatenate(self.chunks) if self.chunks else np.zeros(0, np.int16)

    def phonemes_in(self, token: str) -> int:
        """Number of phonemes of the token when it is spoken alone; 0 for a lone dash or quote."""
        return sum(len(names.replace("|", " ").split()) for names in self.clauses(token, ord("|") << 8))

    def clauses(self, text: str, mode: int) -> Iterator[str]:
        """Phonemes of each clause, in the way of writing `mode`."""
        rest = ctypes.c_char_p(text.encode())
        while rest.value:
            yield (self.lib.espeak_TextToPhonemes(ctypes.byref(rest), _CHARS_UTF8, mode) or b"").decode()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)


def _unload(library: ctypes.CDLL) -> None:
    if sys.platform == "win32":
        _ctypes.FreeLibrary(library._handle)
    else:
        _ctypes.dlclose(library._handle)


_lock = threading.Lock()
_open: ctypes.CDLL | None = None


def _after_fork() -> None:
    """In a child that was forked while another thread of the parent spoke: drop that half-used library."""
    global _lock, _open
    _lock = threading.Lock()
    if _open is not None:
        _unload(_open)
        _open = None


if os.name == "posix":
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def signals_later() -> Iterator[None]:
    """SIGINT and SIGTERM are handled when the block is left: what a handler raises in a function that C calls is lost,
    and a part of the audio with it."""
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        yield
        return
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            if (handler := signal.getsignal(number)) is not None:  # not of another language
                handlers[number] = handler
                signal.signal(number, lambda number, _: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
