"""Audio files: headers, reading a piece of a file as 16 kHz mono, writing.

libsndfile reads wav, flac, mp3, ogg, opus, SPHERE, aiff and more; FFmpeg (the optional extra `av`) reads the rest.
A file that cannot be trusted is refused with a reason, so that it is counted instead of trained on.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stentor.audio.channels import to_mono
from stentor.audio.ffmpeg import Track, cut_short, open_av
from stentor.audio.links import Layout, Spliced, behind, check_complete, layout
from stentor.audio.selection import WHOLE, Selection
from stentor.errors import AudioError, installed

SILENCE = 10 ** (-90 / 20)
"""A file whose samples are all below this (-90 dBFS, less than one step of 16 bits) is silent."""

# libsndfile's error codes for a file that another reader may know: unrecognised format, unsupported encoding.
_FOREIGN = (1, 4)
LOUDEST = 2.0**31
"""Beyond this, the full scale of 32-bit integers, float samples are no audio."""
# libsndfile's length of a FLAC that was written to a pipe, in which it cannot be moved.
UNKNOWN_FRAMES = 2**63 - 1


@dataclass(frozen=True)
class AudioInfo:
    """The header of an audio file."""

    duration: float
    """Seconds."""
    sample_rate: int
    """Hz."""
    channels: int
    frames: int
    """Samples per channel."""
    format: str
    """Container and encoding, such as `WAV/PCM_16`."""
    notes: tuple[str, ...] = ()
    """Contradictions of the header, and what was added or left out, as clauses without the file's name."""


def probe(path: str | Path, selection: Selection = WHOLE) -> AudioInfo:
    """The properties of a file, from its header (files that declare no length, or a wrong one, are decoded).

    Raises `AudioError` with the reason `missing`, `empty` (0 bytes), `unreadable` or `truncated`.
    A valid file with no samples has duration 0; `read` refuses it.
    """
    path = existing(path)
    with opened(path, selection) as (files, notes, known):
        if not files:
            return _probe_av(path, selection, notes, known)
        first, seconds = files[0], sum(file.frames / file.samplerate for file in files)
        frames, name = round(seconds * first.samplerate), f"{first.format}/{first.subtype}"
        return AudioInfo(seconds, first.samplerate, first.channels, frames, name, notes)


def read(
    path: str | Path,
    rate: int = 16000,
    start: float = 0.0,
    duration: float | None = None,
    check_silence: bool = True,
    selection: Selection = WHOLE,
) -> np.ndarray:
    """A piece of a file as float32 [samples] at `rate` Hz: the mean of its channels (see `to_mono`), or what the
    `selection` says, resampled with soxr (HQ).

    `start` and `duration` are seconds; None reads to the end. Raises `AudioError` with one of the reasons `missing`,
    `unreadable`, `empty` (no samples), `truncated` (the samples end more than 0.2 s and 5 % before the header or the
    request says), `no_channel`, `not_finite` (NaN, infinite or absurdly large samples) and, with `check_silence`,
    `silent` (all below -90 dBFS).
    """
    path = existing(path)
    parts, at = list[tuple[np.ndarray, int, float]](), 0.0
    whole = duration is None and not selection.partial  # where a FLAC ends is seen when it was read
    with opened(path, selection, 0.0 if whole else None if duration is None else start + duration) as (files, _, known):
        for file in files:
            length, first = file.frames / file.samplerate, max(0.0, start - at)
            wanted = None if duration is None else duration - max(0.0, at - start)
            last = file is files[-1]
            if (last and not parts) or (first < length and (wanted is None or wanted > 0)):
                to_end = wanted is not None and first + wanted >= length and not last
                parts.append(_decode(file, path, first, None if to_end else wanted))
            at += length
        if whole and files and files[0].format == "FLAC" and installed("av"):
            known = os.lseek(files[0].name, 0, os.SEEK_CUR) == path.stat().st_size
            files = files if known else []
    if not files:
        parts = [_decode_av(path, selection, start, duration, known)]
    seconds = sum(len(samples) / file_rate for samples, file_rate, _ in parts)
    if not selection.partial:
        check_length(path, start, sum(expected for _, _, expected in parts), seconds)
    if not seconds:
        raise AudioError(f"{path} has no samples.", "empty")
    monos = [to_mono(samples, str(path), selection.channel) for samples, _, _ in parts]
    check_finite(monos[0] if len(monos) == 1 else np.concatenate(monos), str(path))
    if check_silence and max(np.abs(mono).max(initial=0) for mono in monos) < SILENCE:
        raise AudioError(f"{path} is silent from {start:g} to {start + seconds:.2f} s.", "silent")
    import soxr

    pieces = [
        mono if file_rate == rate else soxr.resample(mono, file_rate, rate, quality="HQ")
        for mono, (_, file_rate, _) in zip(monos, parts)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def check_length(path: Path, start: float, expected: float, seconds: float) -> None:
    """Raise `AudioError` with the reason `truncated` when less than `expected` seconds were read from `start` on."""
    if expected - seconds > max(0.2, 0.05 * expected) or (not seconds and expected > 0):
        raise cut_short(path, f"its header says {start + expected:.2f} s and it ends at {start + seconds:.2f} s")


def check_finite(audio: np.ndarray, name: str) -> None:
    """Raise `AudioError` with the reason `not_finite` for NaN and infinite samples and for those beyond `LOUDEST`."""
    if not np.isfinite(audio).all():
        raise AudioError(f"{name} contains NaN or infinite samples; write it again.", "not_finite")
    if len(audio) and (peak := float(np.abs(audio).max())) > LOUDEST:
        raise AudioError(
            f"{name} holds samples as large as {peak:.1e}, which is no audio: full scale is 1. Write it again.",
            "not_finite",
        )


WRITTEN = {"wav": "PCM_16", "flac": "PCM_16", "ogg": "VORBIS"}
"""Endings of the audio files that are written, and their encodings."""


def write(path: str | Path, audio: np.ndarray, rate: int) -> None:
    """Write float [samples] as 16-bit wav or flac or as ogg (by the name's ending), through a temporary file that is
    renamed.

    Audio beyond -1..1 is scaled down as a whole instead of clipped. Raises `AudioError` for another ending, for no
    samples and for NaN or infinite ones.
    """
    import soundfile

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in WRITTEN:
        raise AudioError(f"{path}: audio is written as .wav, .flac or .ogg.", "unreadable")
    quantised = _quantised(audio, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        soundfile.write(str(part), quantised, rate, subtype=WRITTEN[kind], format=kind.upper())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def encode(audio: np.ndarray, rate: int, name: str = "audio", kind: str = "flac") -> bytes:
    """Float [samples] as the contents of a 16-bit file of a `kind` of `WRITTEN`, as `write` would write it.

    Raises `AudioError`, which names `name`, for no samples and for NaN or infinite ones.
    """
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, _quantised(audio, name), rate, subtype=WRITTEN[kind], format=kind.upper())
    return file.getvalue()


def _quantised(audio: np.ndarray, name: str) -> np.ndarray:
    """int16 [samples]; audio beyond -1..1 is scaled down as a whole."""
    samples = np.asarray(audio, np.float32)
    if samples.ndim != 1 or not len(samples):
        raise AudioError(f"{name}: audio to write must be [samples] with at least one, got {samples.shape}.", "empty")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: the audio to write contains NaN or infinite samples.", "not_finite")
    samples = samples / max(1.0, float(np.abs(samples).max()))
    return pcm16(samples)


def pcm16(audio: np.ndarray) -> np.ndarray:
    """int16 [samples] of float ones; those beyond -1..1 are clipped."""
    # By 32768 and not 32767: 16-bit audio that was read and written again stays the same, bit for bit.
    return np.clip(np.rint(audio * 32768), -32768, 32767).astype(np.int16)


def existing(path: str | Path) -> Path:
    """The path of a file with contents. Raises AudioError."""
    path = Path(path)
    if not path.is_file():
        raise AudioError(f"{path} does not exist or is not a file.", "missing")
    if path.stat().st_size == 0:
        raise AudioError(f"{path} is empty (0 bytes).", "empty")
    return path


def _decode(file: Any, path: Path, start: float, duration: float | None) -> tuple[np.ndarray, int, float]:
    """Samples [frames, channels], their rate, and how many seconds there should be."""
    import soundfile

    if not file.frames:
        raise AudioError(f"{path} has no samples.", "empty")
    rate, first = file.samplerate, round(start * file.samplerate)
    if first >= file.frames:
        raise AudioError(
            f"{path}: audio from {start:g} s on is wanted, it ends at {file.frames / rate:.2f} s.", "truncated"
        )
    expected = file.frames / rate - start if duration is None else duration
    try:
        _go_to(file, first)
        samples = file.read(round(expected * rate), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise cut_short(path, reason(error)) from None
    return samples, rate, expected


def _go_to(file: Any, first: int) -> None:
    """Go to a frame: by reading, where a format has no way to seek (GSM, MP3)."""
    if file.seekable():
        file.seek(first)
        return
    while first > 0 and (read := len(file.read(min(first, 2**20), always_2d=True))):
        first -= read


def reason(error: Any) -> str:
    """Return the message of an error of libsndfile."""
    return error.error_string.strip().removeprefix("Error : ").rstrip(".")


class Opened(NamedTuple):
    """A file that was opened."""

    files: list[Any]
    """Its links, as libsndfile opens them. None: FFmpeg is to read it."""
    notes: tuple[str, ...]
    known: bool | None
    """Whether its header says truly how long it is; None: it does not say."""


@contextlib.contextmanager
def opened(path: Path, selection: Selection, end: float | None = None) -> Iterator[Opened]:
    """A file for reading to `end` (seconds; None: all). Raises `AudioError` for one that no reader knows, that is
    damaged, or that lacks the track."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("rb", buffering=0))
        plan = layout(raw, path)
        files, damage, known = list[Any](), plan.damage, plan.known
        if not plan.ffmpeg or not installed("av"):
            files = _sound_files(path, raw, plan, selection, stack)
        if files:
            damage = damage or check_complete(files[0], path)
            if files[0].format == "FLAC" and files[0].frames < UNKNOWN_FRAMES:
                known = (end is not None and end * files[0].samplerate < files[0].frames) or _ends(files[0], raw)
        if damage and not selection.partial:
            raise cut_short(path, damage)
        if any(file.frames == UNKNOWN_FRAMES for file in files) or (not known and installed("av")):
            files = []
        if files:
            _check_track(path, selection.track)
        elif not installed("av"):
            raise AudioError(
                f"{path} is in a format that libsndfile does not read; if it is m4a, aac, webm or the like, "
                "`pip install 'stentor[av]'`.",
                "unreadable",
            )
        more = behind(files[0], os.fstat(raw.fileno()).st_size) if len(files) == 1 else ()
        yield Opened(files, (*plan.notes, *more, *([f"it is cut short: {damage}"] if damage else [])), known)


def _sound_files(path: Path, raw: Any, plan: Layout, selection: Selection, stack: contextlib.ExitStack) -> list[Any]:
    """The links of a file as libsndfile opens them; none for one that FFmpeg may read. Raises `AudioError`."""
    import soundfile

    raw.seek(0)
    head = raw.read(4)
    raw.seek(0)
    # Others by their name, of which soundfile demands a rate for `.raw`.
    by_contents = head in (b"RIFF", b"fLaC", b"OggS") or path.suffix.lower() == ".raw"
    sources: list[Any] = [Spliced(path, link) for link in plan.links]
    try:
        sources = sources or [os.dup(raw.fileno()) if by_contents else str(path)]
        files = [stack.enter_context(soundfile.SoundFile(source)) for source in sources]
    except soundfile.LibsndfileError as error:
        refused = head in (b"RIFF", b"caff", b"FORM", b".snd") and not selection.partial
        if error.code not in _FOREIGN and (refused or not installed("av")):
            raise AudioError(f"{path} cannot be read: {reason(error)}.", "unreadable") from None
        return []
    for file in files:
        if file.subtype.startswith("MPEG"):  # soundfile seeks after each read, and libmpg123 prints errors then
            file.seekable = lambda: False
    return files


def _check_track(path: Path, track: int | None) -> None:
    """Raise AudioError for a track of a file that libsndfile reads, which has one."""
    if track:
        raise AudioError(f"{path} has no audio track {track}. It has 1 audio track: 0.", "no_track")


def _ends(file: Any, raw: Any) -> bool:
    """Whether a FLAC ends where its header says: libFLAC finds the last sample, and reads the file to its end."""
    import soundfile

    if not file.frames:
        return True
    try:
        file.seek(file.frames - 1)
        file.read(1)
        here = raw.tell()
        file.seek(0)
    except soundfile.LibsndfileError:
        return False
    return bool(here == os.fstat(raw.fileno()).st_size)


def _probe_av(path: Path, selection: Selection, notes: tuple[str, ...], known: bool | None) -> AudioInfo:
    with open_av(path) as container:
        track = Track(container, path, selection.track, selection.partial, known)
        seconds = track.declared
        if seconds is None:  # bare streams and recordings of browsers
            seconds = sum(len(piece) for piece in track.pieces()) / track.rate
        name = f"{container.format.name}/{track.stream.codec_context.name}"
        return AudioInfo(seconds, track.rate, track.channels, round(seconds * track.rate), name, notes + track.notes)


def _decode_av(
    path: Path, selection: Selection, start: float, duration: float | None, known: bool | None
) -> tuple[np.ndarray, int, float]:
    """As `_decode`, through FFmpeg."""
    with open_av(path) as container:
        track = Track(container, path, selection.track, selection.partial, known)
        wanted = None if duration is None else round((start + duration) * track.rate) - round(start * track.rate)
        pieces, count = [], 0
        for piece in track.pieces(start):
            pieces.append(piece)
            count += len(piece)
            if wanted is not None and count >= wanted:
                break
        samples = np.concatenate(pieces)[:wanted] if pieces else np.zeros((0, 1), np.float32)
        whole = track.seconds if track.declared is None else track.declared
        return samples, track.rate, max(0.0, whole - start) if duration is None else duration
