"""Audio of cuts, and of the records that predictions carry: read from files, generated, mixed, put into rooms, or left
to lhotse.

Two custom keys make simulated conversations (the `conversation` source) out of metadata alone:

* `mixed_turn` on a cut: `{"first", "seconds", "level", "room"}` and, where it is not 1, `speed`. The piece of the
  recording from `first` on, `seconds` long when played at its speed, is brought to `level` dBFS (root mean square) and
  put into the `room` (an impulse response: `{"path"}`, or `{"rt60", "seed"}` for a simulated one; null: dry). What the
  cut now covers is cut out of that afterwards, so a window of a conversation holds the same samples as the whole does,
  but for the echo of speech that ended before the window.
* `made_noise` on a cut without audio: `{"kind", "path", "seed", "seconds", "level"}`, made in full, then cut out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.audio.channels import to_mono
from stentor.audio.io import read
from stentor.audio.selection import Selection
from stentor.data.augment import DIRECT, builtin_noise, change_speed, decoded, simulate_response, stretch
from stentor.data.codec_tokens import has_codes
from stentor.data.cut import RATE, audio_path, turn_of
from stentor.data.embedded_audio import audio_file, load_at, load_encoded
from stentor.data.fields import channel_of
from stentor.data.storage import as_path
from stentor.data.storage_cache import local_copy
from stentor.errors import AudioError

if TYPE_CHECKING:
    from lhotse import AudioSource
    from lhotse.cut import Cut


def load_audio(cut: Cut, rate: int = RATE) -> np.ndarray:
    """The audio of a cut: float32 [samples] at `rate` Hz, mono. Raises `AudioError`.

    Spoken cuts (custom key `voice`, from the `synth` source) are generated; mixed cuts are summed track by track, with
    lhotse's meaning of `snr`; files, and the encoded audio of the `hub` and `shards` sources, are read with
    stentor.audio.io; levels, rooms and noise of simulated conversations are made below; anything else is left to
    lhotse.
    """
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, PaddingCut):
        return np.zeros(round(cut.duration * rate), np.float32)
    if isinstance(cut, MixedCut):
        return load_with_lhotse(cut, rate) if cut.transforms else load_mixture(cut, rate)
    if turn_of(cut.custom):
        return load_turn(cut, rate)
    if cut.recording is not None and not cut.recording.transforms:
        place = (cut.recording.id, cut.start, cut.duration, rate)
        if (audio := _load_described(cut.custom or {}, audio_path(cut), cut.recording.sources, *place)) is not None:
            return audio
    if has_codes(cut):
        raise AudioError(
            f"{cut.recording.id} holds codec tokens and no audio; this model needs audio. Use shards with audio files, "
            "or another source.",
            "no_audio",
        )
    return load_with_lhotse(cut, rate)


def load_record(record: Mapping[str, Any], rate: int = RATE) -> np.ndarray | None:
    """The audio of a record as `record_from_cut` writes it: float32 [samples] at `rate` Hz, mono.

    Records with a `voice` are spoken again by the built-in voice; those with `hub` lie in the data set's cache, those
    with `tar` in a tar file; those with `parts` are joined again, turns of simulated conversations with their levels,
    rooms and noise. None when the record has none of these (audio that was in memory, codec tokens). Raises
    `AudioError` when a file cannot be read.
    """
    start, duration = record.get("start", 0.0), record.get("duration")
    if (turn := turn_of(record)) is not None:
        whole = {k: v for k, v in record.items() if k != "mixed_turn"}
        seconds = turn["seconds"] * turn.get("speed", 1.0)
        dry = load_record({**whole, "start": turn["first"], "duration": seconds}, rate)
        return None if dry is None else turn_piece(dry, turn, start, record["duration"], rate, echo=True)
    if parts := not record.get("audio_path") and record.get("parts"):
        joined = np.zeros(round(record["duration"] * rate), np.float32)
        for part in parts:
            first = round(part["at"] * rate)
            audio = load_record(part, rate)[: len(joined) - first]  # type: ignore[index]  # parts always have audio
            joined[first : first + len(audio)] += audio
        return joined
    return _load_described(record, record.get("audio_path"), (), record.get("id", ""), start, duration, rate)


def _load_described(
    keys: Mapping[str, Any],
    path: str | None,
    sources: Sequence[AudioSource],
    name: str,
    start: float,
    duration: float | None,
    rate: int,
) -> np.ndarray | None:
    """A piece of the audio in one file, or of the audio that keys of a cut or a record describe; None where they do
    not. `sources`: other sources for the recording. `name` is used in errors."""
    if path:
        with audio_file(path) as file:
            return read(file, rate=rate, start=start, duration=duration, selection=Selection(channel_of(keys)))
    location = keys.get("tar") or keys.get("hub")
    if location is not None and sources and sources[0].type == "memory":
        return load_encoded(sources[0].source, name, rate, start, duration, channel_of(keys))
    if sources:
        return None
    if location:
        return load_at(location, name, rate, start, duration, channel_of(keys))
    if isinstance(noise := keys.get("made_noise"), dict):
        return crop(make_noise(noise, rate), start, duration, rate)
    if voice := keys.get("voice"):
        from stentor.data.synth_cache import synthesized_audio

        return crop(synthesized_audio(voice, rate), start, duration, rate)
    return None


def crop(audio: np.ndarray, start: float, duration: float | None, rate: int) -> np.ndarray:
    """`duration` seconds from `start` seconds on (None: all that follows) of `audio` [samples]."""
    first = round(start * rate)
    return audio[first:] if duration is None else audio[first : first + round(duration * rate)]


def load_mixture(cut: Cut, rate: int) -> np.ndarray:
    """The sum of the tracks. A track with an `snr` is scaled against the mean power of the reference track."""
    from lhotse.cut import PaddingCut

    tracks = [(t, _load_track(t.cut, rate)) for t in cut.tracks if not isinstance(t.cut, PaddingCut)]
    reference = next((a for t, a in tracks if t.is_snr_reference), next((a for t, a in tracks if t.snr is None), None))
    mixture = np.zeros(round(cut.duration * rate), np.float32)
    for track, audio in tracks:
        if track.mute:
            continue
        if track.snr is not None and reference is not None:
            power, reference_power = float(np.mean(audio**2)), float(np.mean(reference**2))
            if power > 0 and reference_power > 0:
                audio = audio * np.float32(np.sqrt(reference_power * 10 ** (-track.snr / 10) / power))
        start = round(track.offset * rate)
        audio = audio[: len(mixture) - start]
        mixture[start : start + len(audio)] += audio
    return mixture


def _load_track(cut: Cut, rate: int) -> np.ndarray:
    """A track's audio; that of a turn that was not cut short continues with its echo."""
    from lhotse.cut.data import DataCut

    is_turn = isinstance(cut, DataCut) and turn_of(cut.custom) is not None
    return load_turn(cut, rate, echo=True) if is_turn else load_audio(cut, rate)


def load_turn(cut: Cut, rate: int, echo: bool = False) -> np.ndarray:
    """The audio of a cut with the key `mixed_turn`: float32 [samples] at `rate` Hz; with `echo`, longer by what echoes
    after its end, if the cut reaches to the end of the turn."""
    turn = cut.custom["mixed_turn"]
    custom = {k: v for k, v in cut.custom.items() if k != "mixed_turn"}
    seconds = turn["seconds"] * turn.get("speed", 1.0)
    dry = load_audio(replace(cut, start=turn["first"], duration=seconds, custom=custom, supervisions=[]), rate)
    return turn_piece(dry, turn, cut.start, cut.duration, rate, echo)


def turn_piece(
    dry: np.ndarray, turn: Mapping[str, Any], start: float, duration: float, rate: int, echo: bool
) -> np.ndarray:
    """Audio of a turn, float32 [samples], over the span of a cut, at its speed, in its room and at its level; see
    `load_turn`."""
    if (speed := turn.get("speed", 1.0)) != 1.0:
        dry = change_speed(dry, speed)
    first = round((start - turn["first"]) * rate)
    wet = apply_room_and_level(dry, turn, rate)
    # A cut may be a sample longer than its turn by rounding.
    last = first + round(duration * rate)
    return wet[first:] if echo and last >= len(dry) - 1 else wet[first : min(last, len(dry))]


def apply_room_and_level(audio: np.ndarray, turn: Mapping[str, Any], rate: int) -> np.ndarray:
    """`audio`, float32 [samples], in its room and at its level: float32, longer by the room's echo."""
    wet = audio
    if turn.get("room"):
        from scipy.signal import oaconvolve

        response = _impulse_response(turn["room"], rate)
        direct = int(np.argmax(np.abs(response)))
        wet = oaconvolve(audio, response)[direct:].astype(np.float32, copy=False)
    return _at_level(wet, turn["level"], len(audio))


def make_noise(noise: Mapping[str, Any], rate: int) -> np.ndarray:
    """The noise that the key `made_noise` describes, in full: a stretch of a file (repeated when short), or a kind."""
    generator = np.random.default_rng(noise["seed"])
    length = round(noise["seconds"] * rate)
    if noise.get("path"):
        audio = stretch(decoded(as_path(noise["path"]), rate), length, generator)
    else:
        audio = builtin_noise(noise["kind"], np.zeros(length, np.float32), generator, rate)
    return _at_level(audio.astype(np.float32, copy=False), noise["level"], length)


def _impulse_response(room: dict[str, Any], rate: int) -> np.ndarray:
    if room.get("path"):
        return decoded(as_path(room["path"]), rate)
    generator = np.random.default_rng(room["seed"])
    low, high = room.get("direct", DIRECT)
    return simulate_response(room["rt60"], generator, rate, (low, high))


def _at_level(audio: np.ndarray, level: float, length: int) -> np.ndarray:
    """`audio` scaled so that its first `length` samples have `level` dBFS; unchanged where they are silent."""
    power = float(np.mean(np.square(audio[:length], dtype=np.float64))) if length else 0.0
    return audio * np.float32(10 ** (level / 20) / np.sqrt(power)) if power > 0 else audio


def load_with_lhotse(cut: Cut, rate: int) -> np.ndarray:
    """The audio of a cut as lhotse loads it, mixed to mono, at `rate` Hz. Raises `AudioError`."""
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
    # A cut that lhotse gives one channel of a recording names it itself.
    channel = None if isinstance(cut, MixedCut) or len(audio) == 1 else channel_of(cut.custom)
    mono = np.asarray(to_mono(audio.T, cut.id, channel), np.float32)
    return mono if cut.sampling_rate == rate else soxr.resample(mono, cut.sampling_rate, rate)


def _from_tar(cut: Cut, path: str, offset: int, size: int) -> Cut:
    """The cut with its encoded audio from a Shar tar file (see the `manifest` source)."""
    from lhotse import AudioSource

    with local_copy(as_path(path)).open("rb") as tar:
        tar.seek(offset)
        source = AudioSource("memory", cut.recording.sources[0].channels, tar.read(size))
    return replace(cut, recording=replace(cut.recording, sources=[source]))
