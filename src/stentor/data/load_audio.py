"""Audio of cuts: read from files, generated, mixed, shaped, or left to lhotse.

Two custom keys make simulated conversations (the `conversation` source) out of metadata alone:

* `mixed_turn` on a cut: `{"first", "seconds", "level", "room"}`. The piece of the recording from `first` on, `seconds`
  long, is brought to `level` dBFS (root mean square) and heard in the `room` (an impulse response: `{"path"}`, or
  `{"rt60", "seed"}` for a simulated one; null: dry). What the cut now covers is cut out of that afterwards, so a window
  of a conversation holds the same samples as the whole does, but for the echo of speech that ended before the window.
* `made_noise` on a cut without audio: `{"kind", "path", "seed", "seconds", "level"}`, made as a whole, then cut out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.cut import RATE, audio_path, is_spoken
from stentor.errors import AudioError

if TYPE_CHECKING:
    from lhotse.cut import Cut


def load_audio(cut: Cut, rate: int = RATE) -> np.ndarray:
    """The audio of a cut: float32 [samples] at `rate` Hz, mono. Raises `AudioError`.

    Spoken cuts (custom key `voice`, from the `synth` source) are generated; mixed cuts are summed track by track, with
    lhotse's meaning of `snr`; files, and the encoded audio of the `hub` and `shards` sources, are read with
    stentor.audio.io; levels, rooms and noise of simulated conversations are made below; anything else is left to
    lhotse.
    """
    from lhotse.cut import MixedCut, PaddingCut

    from stentor.data.codec_tokens import has_codes
    from stentor.data.embedded_audio import audio as embedded_audio
    from stentor.data.embedded_audio import is_embedded

    if isinstance(cut, PaddingCut):
        return np.zeros(round(cut.duration * rate), np.float32)
    if isinstance(cut, MixedCut) and not cut.transforms:
        return mix(cut, rate)
    if isinstance(cut, MixedCut):
        return load_with_lhotse(cut, rate)
    if cut.has_custom("mixed_turn"):
        return part(cut, rate)
    if is_noise(cut):
        return noise(cut, rate)
    if is_spoken(cut):
        from stentor.data.synth_cache import audio

        first = round(cut.start * rate)
        return audio(cut.custom["voice"], rate)[first : first + round(cut.duration * rate)]
    if is_embedded(cut):
        return embedded_audio(cut, rate)
    if has_codes(cut):
        raise AudioError(
            f"{cut.recording.id} holds codec tokens and no audio; this model needs audio. Shards with audio files in "
            "them, or any other source, would do.",
            "no_audio",
        )
    path = audio_path(cut)
    if path is not None:
        from stentor.audio.io import read

        return read(path, rate=rate, start=cut.start, duration=cut.duration)
    return load_with_lhotse(cut, rate)


def is_noise(cut: Cut) -> bool:
    """Whether the cut is background noise that is made when it is loaded."""
    return "made_noise" in (cut.custom or {}) and not cut.recording.sources


def mix(cut: Cut, rate: int) -> np.ndarray:
    """The sum of the tracks. A track with an `snr` is scaled against the mean power of the reference track."""
    from lhotse.cut import PaddingCut

    parts = [(t, _track(t.cut, rate)) for t in cut.tracks if not isinstance(t.cut, PaddingCut)]
    reference = next((a for t, a in parts if t.is_snr_reference), next((a for t, a in parts if t.snr is None), None))
    summed = np.zeros(round(cut.duration * rate), np.float32)
    for track, audio in parts:
        if track.mute:
            continue
        if track.snr is not None and reference is not None:
            ours, theirs = float(np.mean(audio**2)), float(np.mean(reference**2))
            if ours > 0 and theirs > 0:
                audio = audio * np.float32(np.sqrt(theirs * 10 ** (-track.snr / 10) / ours))
        at = round(track.offset * rate)
        audio = audio[: len(summed) - at]
        summed[at : at + len(audio)] += audio
    return summed


def _track(cut: Cut, rate: int) -> np.ndarray:
    """A track's audio; that of a part that was not cut short goes on with its echo."""
    return part(cut, rate, echo=True) if "mixed_turn" in _custom(cut) else load_audio(cut, rate)


def _custom(cut: Cut) -> dict[str, Any]:
    from lhotse.cut.data import DataCut

    return (cut.custom or {}) if isinstance(cut, DataCut) else {}


def part(cut: Cut, rate: int, echo: bool = False) -> np.ndarray:
    """The audio of a cut with the key `mixed_turn`: float32 [samples] at `rate` Hz; with `echo`, longer by what echoes
    after its end, if the cut reaches to the end of the turn."""
    about = cut.custom["mixed_turn"]
    plain = {k: v for k, v in cut.custom.items() if k != "mixed_turn"}
    whole = load_audio(
        replace(cut, start=about["first"], duration=about["seconds"], custom=plain, supervisions=[]), rate
    )
    first, dry = round((cut.start - about["first"]) * rate), len(whole)
    shaped = shape(whole, about, rate)
    # A cut may be a sample longer than its part by rounding.
    last = first + round(cut.duration * rate)
    return shaped[first:] if echo and last >= dry - 1 else shaped[first : min(last, dry)]


def shape(audio: np.ndarray, about: dict[str, Any], rate: int) -> np.ndarray:
    """`audio`, float32 [samples], in its room and at its level: float32, longer by the room's echo."""
    wet = audio
    if about.get("room"):
        from scipy.signal import oaconvolve

        response = _response(about["room"], rate)
        direct = int(np.argmax(np.abs(response)))
        wet = oaconvolve(audio, response)[direct:].astype(np.float32, copy=False)
    return _at_level(wet, about["level"], len(audio))


def noise(cut: Cut, rate: int) -> np.ndarray:
    """The audio of a cut with the key `made_noise`: float32 [samples] at `rate` Hz."""
    about = cut.custom["made_noise"]
    whole = make_noise(about, rate)
    first = round(cut.start * rate)
    return whole[first : first + round(cut.duration * rate)]


def make_noise(about: dict[str, Any], rate: int) -> np.ndarray:
    """The noise that the key `made_noise` describes, whole: a stretch of a file (repeated when short), or a kind."""
    from stentor.data.augment import builtin_noise, decoded, stretch

    generator = np.random.default_rng(about["seed"])
    length = round(about["seconds"] * rate)
    if about.get("path"):
        made = stretch(decoded(Path(about["path"]), rate), length, generator)
    else:
        made = builtin_noise(about["kind"], np.zeros(length, np.float32), generator, rate)
    return _at_level(made.astype(np.float32, copy=False), about["level"], length)


def _response(room: dict[str, Any], rate: int) -> np.ndarray:
    from stentor.data.augment import decoded, simulate_response

    if room.get("path"):
        return decoded(Path(room["path"]), rate)
    return simulate_response(room["rt60"], np.random.default_rng(room["seed"]), rate)


def _at_level(audio: np.ndarray, level: float, length: int) -> np.ndarray:
    """`audio` scaled so that its first `length` samples have `level` dBFS; unchanged where they are silent."""
    power = float(np.mean(np.square(audio[:length], dtype=np.float64))) if length else 0.0
    return audio * np.float32(10 ** (level / 20) / np.sqrt(power)) if power > 0 else audio


def load_with_lhotse(cut: Cut, rate: int) -> np.ndarray:
    """What lhotse makes of a cut, mixed to mono, at `rate` Hz. Raises `AudioError`."""
    import soxr
    from lhotse.cut import MixedCut

    try:
        if not cut.has_recording:
            raise AudioError(f"{cut.id}: the cut has no audio.", "empty")
        if not isinstance(cut, MixedCut) and cut.recording.sources[0].type == "shar":
            cut = _from_tar(cut, **cut.custom["shar"])
        audio = cut.load_audio()
    except AudioError:
        raise
    except Exception as error:  # lhotse raises many kinds; each means that this one cut cannot be read
        raise AudioError(f"{cut.id}: lhotse could not read the audio ({error}).") from error
    mono = np.asarray(audio.mean(axis=0), np.float32)
    return mono if cut.sampling_rate == rate else soxr.resample(mono, cut.sampling_rate, rate)


def _from_tar(cut: Cut, path: str, offset: int, size: int) -> Cut:
    """The cut with the encoded audio that lies at an offset in a Shar tar file (see the `manifest` source)."""
    from lhotse import AudioSource

    with open(path, "rb") as tar:
        tar.seek(offset)
        source = AudioSource("memory", cut.recording.sources[0].channels, tar.read(size))
    return replace(cut, recording=replace(cut.recording, sources=[source]))
