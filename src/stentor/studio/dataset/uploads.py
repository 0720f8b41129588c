"""Uploaded audio, with or without transcripts, into a data set.

What an upload is, its first bytes and the decoder say, never its name. A playlist, an archive or a web page that is
named `speech.wav` reaches no decoder: FFmpeg, which reads m4a, would follow what a playlist points to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError, ConfigError, DataError, StentorError
from stentor.studio.dataset.dataset import RATES, DataSet, Record
from stentor.studio.dataset.transcript_entry import Entry, key, stem
from stentor.studio.dataset.transcripts import match, parse
from stentor.studio.files import name_from, telling

if TYPE_CHECKING:
    import numpy as np

MOST_FILES = 2000
"""Audio files of one upload."""
MOST_BYTES = 2**30
"""Bytes of the largest audio file."""
LONGEST = 4 * 3600.0
"""Seconds of the longest recording."""
WHOLE = 60.0
"""Seconds of the longest recording that becomes one record; longer ones are split (see split.py) or have subtitles."""
MOST_CHANNELS = 8
OVERLAP = 0.25
"""Seconds that two subtitles may overlap: what is more is two people at once, whose words cannot be told apart."""


@dataclass(frozen=True)
class Upload:
    """A file that a browser sent: where it lies, and what it was called there."""

    path: Path
    name: str


@dataclass
class Imported:
    """What became of an upload."""

    records: list[Record] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """A sentence for each file or transcript that was not taken."""
    taken: list[tuple[str, list[Record]]] = field(default_factory=list)
    """Name of each file of which something was taken, with its records."""


def kind_of(path: Path) -> str | None:
    """wav, flac, mp3, ogg, m4a or webm, by the first bytes; None for anything else."""
    with open(path, "rb") as file:
        head = file.read(16)
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head[4:8] == b"ftyp":
        return "m4a"
    known = {b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "webm"}
    if head[:4] in known:
        return known[head[:4]]
    # A frame of MPEG audio, layer II or III: 11 bits set, then no reserved version, bit rate or sampling rate. The mark
    # of UTF-16 text looks like layer I, which nobody uses.
    frame = len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x18 != 8
    frame = frame and head[1] & 6 in (2, 4) and head[2] >> 4 != 15 and head[2] & 12 != 12
    return "mp3" if head[:3] == b"ID3" or frame else None


def checked(upload: Upload) -> tuple[float, int]:
    """(seconds, sampling rate in Hz) of an upload. Raises AudioError when it is no audio file that is taken."""
    from stentor.audio.io import probe

    name = shown(upload.name)
    size = upload.path.stat().st_size if upload.path.is_file() else 0
    if size == 0:
        raise AudioError(f"{name} is empty.", "empty")
    if size > MOST_BYTES:
        raise AudioError(f"{name} is larger than {MOST_BYTES / 1e6:.0f} MB: cut it.", "too_large")
    if kind_of(upload.path) is None:
        raise AudioError(
            f"{name} is not a wav, flac, mp3, ogg, m4a or webm file, whatever its name says.", "unreadable"
        )
    try:
        found = probe(upload.path)
    except AudioError as error:
        raise AudioError(str(error).replace(str(upload.path), name), error.reason) from None
    if not 0 < found.channels <= MOST_CHANNELS or not RATES[0] <= found.sample_rate <= RATES[1]:
        raise AudioError(
            f"{name} has {found.channels} channels at {found.sample_rate} Hz: at most {MOST_CHANNELS} channels at "
            f"{RATES[0]} to {RATES[1]} Hz are taken.",
            "unreadable",
        )
    if found.duration > LONGEST:
        raise AudioError(f"{name} is longer than {LONGEST / 3600:g} hours: cut it.", "too_long")
    return found.duration, found.sample_rate


def read(upload: Upload, rate: int, start: float = 0.0, seconds: float | None = None) -> np.ndarray:
    """A piece of a checked upload: float32 mono [samples] at `rate`. Raises AudioError."""
    from stentor.audio import io

    try:
        return io.read(upload.path, rate, start, seconds)
    except AudioError as error:
        raise AudioError(str(error).replace(str(upload.path), shown(upload.name)), error.reason) from None


def enterable(upload: Upload) -> Upload:
    """The upload as a file that can be read from the middle: m4a and webm as WAV (16 bits, mono, same rate) beside it.

    FFmpeg decodes those from their beginning each time, and some do not say how long they are. A minute or less of
    audio is held at a time. Raises AudioError, also for more than `LONGEST`, StentorError when the disk is full.
    """
    if not upload.path.is_file() or kind_of(upload.path) not in ("m4a", "webm") or too_large(upload):
        return upload
    made = upload.path.with_name(upload.path.name + ".wav")
    if made.is_file():  # of an earlier attempt; it has its name only when it is whole
        return Upload(made, upload.name)
    part = upload.path.with_name(upload.path.name + ".part")
    try:
        with telling(made):
            _convert(upload, part)
            part.replace(made)
    finally:
        part.unlink(missing_ok=True)
    return Upload(made, upload.name)


def too_large(upload: Upload) -> bool:
    return upload.path.stat().st_size > MOST_BYTES


def _convert(upload: Upload, to: Path) -> None:
    """The first stream of audio as a WAV file, block by block."""
    name = shown(upload.name)
    try:
        import av
    except ModuleNotFoundError:
        raise AudioError(f"{name} needs FFmpeg to be read: pip install 'stentor[av]'.", "unreadable") from None
    import soundfile

    samples = 0
    try:
        with av.open(str(upload.path)) as container:
            if not container.streams.audio:
                raise AudioError(f"{name} holds no audio.", "unreadable")
            stream = container.streams.audio[0]
            rate = stream.codec_context.sample_rate
            if not RATES[0] <= rate <= RATES[1]:
                raise AudioError(f"{name} has {rate} Hz: {RATES[0]} to {RATES[1]} Hz are taken.", "unreadable")
            resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
            with soundfile.SoundFile(str(to), "w", rate, 1, "PCM_16", format="WAV") as file:
                for frame in _frames(container, stream):
                    for out in resampler.resample(frame):
                        file.write(out.to_ndarray()[0])
                        samples += out.samples
                    if samples > LONGEST * rate:
                        raise AudioError(f"{name} is longer than {LONGEST / 3600:g} hours: cut it.", "too_long")
    except av.FFmpegError as error:
        raise AudioError(f"{name} is damaged or cut short ({error.strerror}).", "truncated") from None
    except soundfile.LibsndfileError as error:
        raise OSError(28, str(error)) from None  # the only thing that fails on writing: the disk is full
    if not samples:
        raise AudioError(f"{name} has no samples.", "empty")


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    yield from container.decode(stream)
    yield None  # what the resampler still holds


def add_uploads(
    dataset: DataSet,
    audio: Sequence[Upload],
    transcripts: Sequence[Upload] = (),
    pasted: str = "",
    language: str | None = None,
    speaker: str | None = None,
    on_clip: Callable[[int, int], None] | None = None,
) -> Imported:
    """Take uploaded recordings with their transcripts into a data set, each saved as it is read.

    `pasted` are lines of text, as in a txt file: one for each recording, in the order of `audio`. Recordings without a
    transcript get an empty text, for a person (or a model, see split.py) to fill in; those over a minute must come with
    times. A file that is refused is told and the others are taken; what the data set has already from the same file is
    not taken again. `on_clip` is told (clips done, of). Raises DataError for transcripts that cannot be read or matched
    (then nothing was taken), ConfigError for too many files, StentorError when the disk is full.
    """
    if len(audio) > MOST_FILES:
        raise ConfigError(f"{len(audio)} files are too many for one upload: at most {MOST_FILES}.")
    if not audio:
        raise ConfigError("There is no recording in the upload: choose wav, flac, mp3, ogg or m4a files.")
    matched = match([a.name for a in audio], list(_entries(audio, transcripts, pasted)))
    done = Imported()
    for entry in matched.left:
        done.refused.append(f"{entry.where}: there is no recording named {shown(entry.file or '')}.")
    clips: dict[int, list[Entry]] = {i: [] for i in range(len(audio))}
    for i, entry in matched.clips:
        clips[i].append(entry)
    had = {(r.get("source_id"), r.get("source_start")) for r in dataset.records()}
    count, of = 0, sum(max(1, len(entries)) for entries in clips.values())
    for i, upload in enumerate(audio):
        made: list[Record] = []
        try:
            for record in _taken(dataset, upload, clips[i], language, speaker, done.refused, had):
                made.append(record)
                if on_clip:
                    on_clip(min(count + len(made), of), of)
        except AudioError as error:
            done.refused.append(str(error))
        if made:
            done.records += made
            done.taken.append((shown(upload.name), made))
        count += max(1, len(clips[i]))
        if on_clip:
            on_clip(count, of)
    return done


def shown(name: str) -> str:
    """An uploaded file's name for messages: printable, short, without folders."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(c if c.isprintable() else "?" for c in last)[:80] or "the file"


def fingerprint(path: Path) -> str:
    """What an uploaded file is known by: the same contents, the same digits."""
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _entries(audio: Sequence[Upload], transcripts: Sequence[Upload], pasted: str) -> Iterator[Entry]:
    from stentor.studio.dataset.transcripts import MOST_BYTES as MOST_TEXT

    names = [a.name for a in audio]
    stems = {key(name) for name in names}
    problems = []
    for upload in transcripts:
        name = shown(upload.name)
        try:
            with open(upload.path, "rb") as file:
                found = parse(name, file.read(MOST_TEXT + 1), names)
        except StentorError as error:
            problems.append(str(error))
            continue
        # A text file of a recording's own name is that recording's text, on as many lines as it likes.
        if name.lower().endswith((".txt", ".lab")) and key(name) in stems:
            text = " ".join(e.text for e in found)
            found = [replace(found[0], text=text, file=stem(name), start=None, end=None)]
        yield from found
    if problems:
        raise DataError("\n".join(problems))
    if pasted.strip():
        yield from parse("the pasted text", pasted.encode("utf-8", "replace"), names)


def _taken(
    dataset: DataSet,
    upload: Upload,
    entries: list[Entry],
    language: str | None,
    speaker: str | None,
    refused: list[str],
    had: set[tuple[str | None, float | None]],
) -> Iterator[Record]:
    """Save what one file holds, and answer each record as it is on the disk. Raises AudioError for the whole file;
    what is wrong with a part of it is put into `refused`."""
    name = shown(upload.name)
    if not upload.path.is_file() or upload.path.stat().st_size == 0:
        raise AudioError(f"{name} is empty.", "empty")
    identity = fingerprint(upload.path)
    if (identity, None) in had and not any(e.start is not None for e in entries):
        raise AudioError(f"{name} is in the data set already: its text can be changed in Check.", "again")
    file = enterable(upload)
    try:
        seconds, rate = checked(file)
        if seconds > WHOLE and not any(e.start is not None for e in entries):
            raise AudioError(
                f"{name} lasts {seconds:.0f} s, which is too long to train on as a whole: bring subtitles, or let it "
                "be split at its pauses (Long recordings, below).",
                "too_long",
            )
        source = name_from(name.rpartition(".")[0] or name)
        for entry in _parts(name, entries, seconds, refused):
            start = None if entry.start is None else round(entry.start, 3)
            if (identity, start) in had:
                refused.append(f"{entry.where or name}: the data set has this part of {name} already.")
                continue
            try:
                if entry.start is None or entry.end is None:
                    samples = read(file, rate)
                else:
                    samples = read(file, rate, entry.start, entry.end - entry.start)
                more = {"source": source, "source_id": identity, "source_start": start}
                record = dataset.add(
                    samples, rate, entry.text, entry.language or language, entry.speaker or speaker, **more
                )
            except AudioError as error:
                refused.append(str(error))
                continue
            had.add((identity, start))
            yield record
    finally:
        if file is not upload:
            file.path.unlink(missing_ok=True)


def _parts(name: str, entries: list[Entry], seconds: float, refused: list[str]) -> Iterator[Entry]:
    """The entries of one recording that can be taken, those with times in order and within the recording."""
    whole = [e for e in entries if e.start is None]
    for entry in whole[1:] or (whole if len(whole) < len(entries) else []):
        refused.append(f"{entry.where}: {name} has another transcript already.")
    if not entries or (whole and len(whole) == len(entries)):
        yield whole[0] if whole else Entry("")
        return
    timed = sorted((e for e in entries if e.start is not None), key=lambda e: e.start or 0.0)
    reach, last, crossed = -1.0, 0, set()
    for i, entry in enumerate(timed):
        if (entry.start or 0.0) < reach - OVERLAP:
            crossed |= {i, last}
        end = seconds if entry.end is None else entry.end
        if end > reach:
            reach, last = end, i
    for i, entry in enumerate(timed):
        start, end = entry.start or 0.0, min(seconds if entry.end is None else entry.end, seconds)
        if i in crossed:
            refused.append(f"{entry.where}: it overlaps another subtitle ({start:g} to {end:g} s): two at once.")
        elif start >= seconds:
            refused.append(f"{entry.where}: {start:g} s is not in {name}, which lasts {seconds:.1f} s.")
        elif end - start > WHOLE:
            refused.append(f"{entry.where}: {start:g} to {end:g} s lasts over {WHOLE:g} s.")
        else:
            yield replace(entry, start=start, end=end)
