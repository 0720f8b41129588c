"""Uploaded audio: what an upload is, its first bytes and the decoder decide, never its name.

A playlist, an archive or a web page that is named `speech.wav` reaches no decoder: FFmpeg, which reads m4a, would open
the addresses in a playlist.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stentor.audio import io
from stentor.audio.blocks import FileBlocks
from stentor.audio.io import probe
from stentor.errors import AudioError, missing_extra
from stentor.studio.dataset_folder import RATES
from stentor.studio.files import disk_errors, name_from
from stentor.studio.texts import say

MOST_BYTES = 2**30
"""Bytes of the largest audio file."""
LONGEST = 4 * 3600.0
"""Seconds of the longest recording."""
MOST_CHANNELS = 8
KINDS = {
    "wav": rb"(?:RIFF|RF64|BW64).{4}WAVE",
    # At last frames of MPEG audio, layers II and III; the mark of UTF-16 text looks like layer I, which is not in use.
    "entered": rb"fLaC|OggS|FORM.{4}(?:AIF[FC]|8SVX|16SV)|\.snd|riff\x2e\x91\xcf\x11|NIST_1A"
    rb"| paf|PVF1|2BIT|ALawSoundFile|ID3|\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd][\x00-\xef]",
    # MP4, Matroska, CAF, WMA, AAC, AMR, AVI, MPEG streams, and what is rare.
    "decoded": rb"[\x00-\x08].{3}(?:ftyp|moov|mdat|wide|free|skip)|\x1a\x45\xdf\xa3|caff|\x30\x26\xb2\x75\x8e\x66"
    rb"|\xff[\xf0\xf1\xf8\xf9]|ADIF|#!AMR|RIFF.{4}(?:AVI |QLCM)|\x00\x00\x01[\xb3\xba]|G.{187}G|.{4}G.{191}G"
    rb"|FLV\x01|MAC |wvpk|TTA[12]|MPCK|MP\+|tBaK|ajkg|DSD |FRM8|\x0b\x77|\x7f\xfe\x80\x01|\.RMF|\.ra\xfd|qoaf"
    rb"|Creative Voice File|\x06\x0e\x2b\x34|nut/multimedia|\x02dss",
}
"""First bytes of files that Stentor's decoders read: wav and others from the middle, the last from the start.
None of them can be text."""


class Upload(NamedTuple):
    """A file that a browser sent: where it lies, and what it was called there."""

    path: Path
    name: str


def kind_of(path: Path) -> str | None:
    """The key of `KINDS` for audio and video; None for anything else: playlists, archives, web pages."""
    with open(path, "rb") as file:
        head = file.read(200)
    return next((kind for kind, begins in KINDS.items() if re.match(begins, head, re.DOTALL)), None)


def checked(upload: Upload) -> tuple[float, int]:
    """(seconds, sampling rate in Hz) of an upload. Raises AudioError when it is no audio file that is taken."""
    name = shown(upload.name)
    size = upload.path.stat().st_size if upload.path.is_file() else 0
    if size == 0:
        raise AudioError(f"{name} is empty.", "empty")
    if size > MOST_BYTES:
        raise AudioError(f"{name} is larger than {MOST_BYTES / 1e6:.0f} MB: cut it.", "too_large")
    if kind_of(upload.path) is None:
        raise AudioError(say("not_audio", name=name), "unreadable")
    with _called_by_its_name(upload):
        probed = probe(upload.path)
    if not 0 < probed.channels <= MOST_CHANNELS or not RATES[0] <= probed.sample_rate <= RATES[1]:
        raise AudioError(
            f"{name} has {probed.channels} channels at {probed.sample_rate} Hz: at most {MOST_CHANNELS} channels at "
            f"{RATES[0]} to {RATES[1]} Hz are taken.",
            "unreadable",
        )
    if probed.duration > LONGEST:
        raise AudioError(f"{name} is longer than {LONGEST / 3600:g} hours: cut it.", "too_long")
    return probed.duration, probed.sample_rate


def read(upload: Upload, rate: int, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    """A piece of a checked upload: float32 mono [samples] at `rate`. Raises AudioError."""
    with _called_by_its_name(upload):
        return io.read(upload.path, rate, start, seconds)


def enterable(upload: Upload) -> Upload:
    """The upload as a file that can be read from the middle: others as WAV (16 bits, mono, same rate).

    FFmpeg decodes those from their beginning each time, and some do not say how long they are. A minute or less of
    audio is held at a time. Raises AudioError, also for more than `LONGEST`, StentorError when the disk is full.
    """
    path = upload.path
    if not path.is_file() or kind_of(path) != "decoded" or path.stat().st_size > MOST_BYTES:
        return upload
    wav = path.with_name(path.name + ".wav")
    if wav.is_file():  # of an earlier attempt; it has its name only when it is whole
        return Upload(wav, upload.name)
    part = path.with_name(path.name + ".part")
    try:
        with disk_errors(wav):
            _convert(upload, part)
            part.replace(wav)
    finally:
        part.unlink(missing_ok=True)
    return Upload(wav, upload.name)


def _convert(upload: Upload, to: Path) -> None:
    """All of it as a WAV file, block by block."""
    name, samples = shown(upload.name), 0
    if missing := missing_extra("av", name):
        raise AudioError(missing, "unreadable")
    import soundfile

    with _called_by_its_name(upload):
        rate = probe(upload.path).sample_rate
        if not RATES[0] <= rate <= RATES[1]:
            raise AudioError(f"{name} has {rate} Hz: {RATES[0]} to {RATES[1]} Hz are taken.", "unreadable")
        try:
            with soundfile.SoundFile(str(to), "w", rate, 1, "PCM_16", format="WAV") as file:
                for block in FileBlocks(upload.path, rate):
                    file.write(io.pcm16(block))
                    samples += len(block)
                    if samples > LONGEST * rate:
                        raise AudioError(f"{name} is longer than {LONGEST / 3600:g} hours: cut it.", "too_long")
        except soundfile.LibsndfileError as error:
            raise OSError(28, str(error)) from None  # the only thing that fails on writing: the disk is full


@contextlib.contextmanager
def _called_by_its_name(upload: Upload) -> Iterator[None]:
    """AudioErrors in its block name the file as its sender did."""
    try:
        yield
    except AudioError as error:
        raise AudioError(str(error).replace(str(upload.path), shown(upload.name)), error.reason) from None


def shown(name: str) -> str:
    """An uploaded file's name for messages: printable, short, without folders."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(c if c.isprintable() else "?" for c in last)[:80] or "the file"


def source_name(shown_name: str) -> str:
    """Key of an uploaded file in its records, besides its fingerprint."""
    return name_from(shown_name.rpartition(".")[0] or shown_name)


def fingerprint(path: Path) -> str:
    """Fingerprint of an uploaded file: the same contents, the same digits."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
