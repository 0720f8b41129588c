"""Audio files: headers, reading a piece of a file as 16 kHz mono, writing.

libsndfile reads wav, flac, mp3, ogg, opus, SPHERE, aiff and more; FFmpeg (the optional extra `av`) reads the rest.
A file that cannot be trusted is refused with a reason, so that it is counted instead of trained on.
"""

import io
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.channels import to_mono
from stentor.audio.ffmpeg import ffmpeg_errors, is_text, open_av
from stentor.errors import AudioError, installed

SILENCE = 10 ** (-90 / 20)
"""A file whose samples are all below this (-90 dBFS, less than one step of 16 bits) is silent."""

AUDIO_SUFFIXES = (
    *(".wav", ".flac", ".mp3", ".ogg", ".opus", ".sph", ".aiff", ".aif", ".au", ".w64", ".caf"),
    *(".m4a", ".aac", ".wma", ".amr", ".webm", ".mp4", ".mkv", ".mov"),
)
"""Suffixes of audio files, for searches in folders; those of the second line need FFmpeg."""

# libsndfile's error codes for a file that another reader may know: unrecognised format, unsupported encoding.
_FOREIGN = (1, 4)
LOUDEST = 2.0**31
"""Beyond this, the full scale of 32-bit integers, float samples are no audio."""
# What libsndfile's log says about a file that ends before its header says.
_CUT_SHORT = re.compile(
    r"(?:SSND|Data Size|BODY|riff|Riff size)\s*: (\d+) \(should be (\d+)\)|(?i:seems to be (?:a )?(truncated))"
)
# Programs that write to a pipe cannot know the length: they leave 0 or a number near the largest in the wav header.
_UNKNOWN_SIZE = 0x7FFF0000
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


MP3_FULL_DECODE = 60.0
"""Seconds of the longest MP3 that is decoded entirely to read a part of it: at each seek (soundfile also seeks after a
partial read) libmpg123 prints errors about frames whose samples it rightly drops."""


def probe(path: str | Path) -> AudioInfo:
    """The properties of a file, from its header (MP3 files that declare no length are decoded).

    Raises `AudioError` with the reason `missing`, `empty` (0 bytes), `unreadable` or `truncated`.
    A valid file with no samples has duration 0; `read` refuses it.
    """
    path = _existing(path)
    file = _opened(path)
    if file is None:
        return _probe_av(path)
    with file:
        _check_complete(file, path)
        frames = file.frames if _declares_length(file, path) else len(_decode(file, path, 0.0, None, "int16")[0])
        return AudioInfo(
            frames / file.samplerate, file.samplerate, file.channels, frames, f"{file.format}/{file.subtype}"
        )


def read(
    path: str | Path,
    rate: int = 16000,
    start: float = 0.0,
    duration: float | None = None,
    check_silence: bool = True,
    channel: int | None = None,
) -> np.ndarray:
    """A piece of a file as float32 [samples] at `rate` Hz: the mean of its channels (see `to_mono`), or the `channel`
    of this number (from 0), resampled with soxr (HQ).

    `start` and `duration` are seconds; None reads to the end. Raises `AudioError` with one of the reasons `missing`,
    `unreadable`, `empty` (no samples), `truncated` (the samples end more than 0.2 s and 5 % before the header or the
    request says), `no_channel`, `not_finite` (NaN, infinite or absurdly large samples) and, with `check_silence`,
    `silent` (all below -90 dBFS).
    """
    path = _existing(path)
    file = _opened(path)
    if file is None:
        samples, file_rate, expected = _decode_av(path, start, duration)
    else:
        with file:
            samples, file_rate, expected = _decode(file, path, start, duration)
    seconds = len(samples) / file_rate
    check_length(path, start, expected, seconds)
    if not len(samples):
        raise AudioError(f"{path} has no samples.", "empty")
    mono = to_mono(samples, str(path), channel)
    check_finite(mono, str(path))
    if check_silence and np.abs(mono).max() < SILENCE:
        raise AudioError(f"{path} is silent from {start:g} to {start + seconds:.2f} s.", "silent")
    if file_rate == rate:
        return mono
    import soxr

    return soxr.resample(mono, file_rate, rate, quality="HQ")


def check_length(path: Path, start: float, expected: float, seconds: float) -> None:
    """Raise `AudioError` with the reason `truncated` when less than `expected` seconds were read from `start` on."""
    if expected - seconds > max(0.2, 0.05 * expected) or (not seconds and expected > 0):
        raise AudioError(
            f"{path} is cut short: its header says {start + expected:.2f} s and it ends at {start + seconds:.2f} s.",
            "truncated",
        )


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


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise AudioError(f"{path} does not exist or is not a file.", "missing")
    if path.stat().st_size == 0:
        raise AudioError(f"{path} is empty (0 bytes).", "empty")
    return path


def _decode(
    file: Any, path: Path, start: float, duration: float | None, dtype: str = "float32"
) -> tuple[np.ndarray, int, float]:
    """Samples [frames, channels], their rate, and how many seconds there should be."""
    import soundfile

    _check_complete(file, path)
    if not file.frames:
        raise AudioError(f"{path} has no samples.", "empty")
    rate, first = file.samplerate, round(start * file.samplerate)
    if first >= file.frames:
        raise AudioError(
            f"{path}: audio from {start:g} s on is wanted, it ends at {file.frames / rate:.2f} s.", "truncated"
        )
    expected = file.frames / rate - start if duration is None else duration
    try:
        if file.format == "MP3" and file.frames <= MP3_FULL_DECODE * rate:
            samples = file.read(dtype=dtype, always_2d=True)[first : first + round(expected * rate)]
        else:
            file.seek(first)
            samples = file.read(round(expected * rate), dtype=dtype, always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{path} is damaged or cut short: {_reason(error)}.", "truncated") from None
    if duration is None and not _declares_length(file, path):
        expected = len(samples) / rate
    return samples, rate, expected


def _reason(error: Any) -> str:
    return error.error_string.strip().removeprefix("Error : ").rstrip(".")


def _declares_length(file: Any, path: Path) -> bool:
    """Whether the header holds the length; libsndfile guesses that of an MP3 without a Xing, Info or VBRI tag."""
    if file.format != "MP3":
        return True
    with path.open("rb") as raw:
        head = raw.read(10)
        # An ID3 tag in front says its size in four groups of 7 bits.
        size = 10 + sum((byte & 127) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0)))
        raw.seek(size if head[:3] == b"ID3" else 0)
        first = raw.read(512)
    return any(tag in first for tag in (b"Xing", b"Info", b"VBRI"))


def _check_complete(file: Any, path: Path) -> None:
    """Compare the promised size with the file's, which libsndfile does not. Raises `AudioError`, also for a file
    without a header that libsndfile takes for audio because of its name."""
    if file.format == "RAW" and (file.subtype == "ULAW" or is_text(path)):
        raise AudioError(f"{path} is not an audio file: it only has the name of one.", "unreadable")
    if file.format == "OGG" and (problem := _last_page_problem(path)):
        raise AudioError(f"{path} is cut short: {problem}.", "truncated")
    promised, present = _promised_bytes(file, path)
    if promised - present > 0.05 * promised:
        raise AudioError(
            f"{path} is cut short: its header promises {promised} bytes of audio, {present} are there.", "truncated"
        )


def _promised_bytes(file: Any, path: Path) -> tuple[int, int]:
    """Bytes of audio that the header promises and that are there; (0, 0) when the header does not know."""
    if file.format in ("WAV", "WAVEX"):
        return _wav_bytes(path)
    if file.format == "NIST":
        head = path.open("rb").read(1024)
        fields = {key: int(value) for key, value in re.findall(rb"(sample_count|sample_n_bytes) -i (\d+)", head)}
        size = fields.get(b"sample_count", 0) * fields.get(b"sample_n_bytes", 0) * file.channels
        coded = re.search(rb"sample_coding -s\d+ \S*(shorten|embedded)", head)
        return (0, 0) if coded else (size, path.stat().st_size - 1024)
    match = _CUT_SHORT.search(file.extra_info)
    if match is None:
        return 0, 0
    if match[3]:
        return path.stat().st_size, 0
    unknown = file.format not in ("W64", "RF64") and int(match[1]) >= _UNKNOWN_SIZE
    return (0, 0) if unknown else (int(match[1]), int(match[2]))


def _written_to_a_pipe(path: Path) -> bool:
    """Whether a WAV says that it is empty although more data follows."""
    with path.open("rb") as raw:
        head = raw.read(8)
    promised, present = _wav_bytes(path)
    return not promised and 0 < present < path.stat().st_size - int.from_bytes(head[4:], "little")


def _wav_bytes(path: Path) -> tuple[int, int]:
    """Bytes of audio that the header promises and that are there; (0, 0) when the header does not know."""
    end = path.stat().st_size
    with path.open("rb") as raw:
        if raw.read(4) == b"RIFF":
            raw.seek(12)
            while len(head := raw.read(8)) == 8:
                name, size = struct.unpack("<4sI", head)
                if name == b"data":
                    return (size, end - raw.tell()) if size < _UNKNOWN_SIZE else (0, 0)
                raw.seek(size + size % 2, os.SEEK_CUR)
    return 0, 0


def _last_page_problem(path: Path) -> str | None:
    """Fault at the end of an ogg file (RFC 3533): a page is at most 65,307 bytes, its header says its size,
    and that of the last one that it is the last."""
    size = path.stat().st_size
    with path.open("rb") as raw:
        raw.seek(max(0, size - 65307))
        tail = raw.read()
    page = tail.rfind(b"OggS\0")
    segments = tail[page + 26] if len(tail) > page + 26 else 255
    if len(tail) < page + 27 + segments + sum(tail[page + 27 : page + 27 + segments]):
        return "its last page is not complete"
    return None if tail[page + 5] & 4 else "its last page does not say that it is the last"


def _opened(path: Path) -> Any:
    """A file as libsndfile opens it; None for one that FFmpeg is to read. Raises `AudioError` for one that neither
    does, and without `av`."""
    import soundfile

    try:
        file = soundfile.SoundFile(str(path))
        if file.frames < UNKNOWN_FRAMES and (file.frames or not _written_to_a_pipe(path)):
            return file
        file.close()
    except soundfile.LibsndfileError as error:
        if error.code not in _FOREIGN:
            raise AudioError(f"{path} cannot be read: {_reason(error)}.", "unreadable") from None
    if not installed("av"):
        raise AudioError(
            f"{path} is in a format that libsndfile does not read; if it is m4a, aac, webm or the like, "
            "`pip install 'stentor[av]'`.",
            "unreadable",
        )
    return None


def _probe_av(path: Path) -> AudioInfo:
    with open_av(path) as container:
        stream = container.streams.audio[0]
        seconds = _declared(container, stream)
        name = f"{container.format.name}/{stream.codec_context.name}"
        rate, channels = stream.codec_context.sample_rate, stream.codec_context.channels
        if seconds is None:  # bare streams and recordings of browsers
            with ffmpeg_errors(path):
                seconds = sum(frame.samples for frame in container.decode(stream)) / rate
    return AudioInfo(seconds, rate, channels, round(seconds * rate), name)


def _declared(container: Any, stream: Any) -> float | None:
    """Seconds, where the container knows; FFmpeg guesses it from the bit rate of bare streams."""
    if container.format.name in ("aac", "ac3", "eac3", "dts"):
        return None
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration else None


def _decode_av(path: Path, start: float, duration: float | None) -> tuple[np.ndarray, int, float]:
    """As `_decode`, through FFmpeg; decodes from the beginning, because seeking is inexact in many formats."""
    import av

    with open_av(path) as container:
        stream = container.streams.audio[0]
        rate = stream.codec_context.sample_rate
        declared = _declared(container, stream)
        planar = av.AudioResampler(format="fltp")
        first, last = round(start * rate), None if duration is None else round((start + duration) * rate)
        pieces, position = [], 0
        with ffmpeg_errors(path):
            for frame in container.decode(stream):
                for out in planar.resample(frame):
                    pieces.append(out.to_ndarray()[:, max(0, first - position) :].T)
                    position += out.samples
                if last is not None and position >= last:
                    break
    samples = np.concatenate(pieces) if pieces else np.zeros((0, 1), np.float32)
    if duration is not None:
        return samples[: last - first], rate, duration
    return samples, rate, len(samples) / rate if declared is None else max(0.0, declared - start)
