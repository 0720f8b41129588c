"""Where the streams of a file really end; libsndfile stops where the first header says, or refuses the file.

Where file and header contradict each other, a `Layout` says how to splice files that libsndfile reads to their ends.
"""

import io
import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stentor.audio.suffixes import is_text
from stentor.errors import AudioError

# What libsndfile's log says about a file that ends before its header says.
_CUT_SHORT = re.compile(
    r"(?:SSND|Data Size|BODY|riff|Riff size)\s*: (\d+) \(should be (\d+)\)|(?i:seems to be (?:a )?(truncated))"
)
_UNKNOWN_SIZE, _PLACEHOLDER = 0x7FFF0000, 10**9
"""Programs that write to a pipe cannot know the length: they leave 0 or a number near the largest in the WAV header, or
a whole number of millions of samples, of at least so many bytes."""
_WIDTHS = {"PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8, "ULAW": 1, "ALAW": 1}
"""Bytes of a sample by libsndfile's name of the encoding."""
_MPEG = (".mp3", ".mp2", ".mpga", ".mpa", ".m2a")
_PADDING, _TAGS, _PAGE = 0.05, 4096, 65307
"""Seconds behind the declared end that are no audio; bytes that tags may take behind an MP3, and of an Ogg page."""
Link = tuple[bytes | tuple[int, int], ...]
"""The pieces of which it is spliced: bytes, or the file from a position to another."""


@dataclass(frozen=True)
class Layout:
    """The streams of a file."""

    links: tuple[Link, ...] = ()
    """None: one, the file as it is."""
    notes: tuple[str, ...] = ()
    """See `AudioInfo`."""
    damage: str = ""
    """In which way it is cut short; the links then hold what is there."""
    ffmpeg: bool = False
    """FFmpeg reads it where it is installed: MPEG audio, because libmpg123 prints at each seek and what it finds
    amiss, and the sound of a video, whose times count."""
    known: bool | None = True
    """Whether the header says truly how long the file is; None: it does not say."""


class Spliced(io.RawIOBase):
    """A link, as a file."""

    def __init__(self, path: Path, pieces: Link):
        self._file, self._pieces, self._at = path.open("rb"), pieces, 0
        sizes = [len(piece) if isinstance(piece, bytes) else piece[1] - piece[0] for piece in pieces]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]

    def close(self) -> None:
        self._file.close()
        super().close()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._starts[-1])[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        done = 0
        for piece, start, end in zip(self._pieces, self._starts, self._starts[1:]):
            if start <= self._at < end and done < len(buffer):
                first, count = self._at - start, min(len(buffer) - done, end - self._at)
                if isinstance(piece, bytes):
                    data = piece[first : first + count]
                else:
                    self._file.seek(piece[0] + first)
                    data = self._file.read(count)
                buffer[done : done + len(data)] = data
                done, self._at = done + len(data), self._at + len(data)
        return done


def layout(file: Any, path: Path) -> Layout:
    """The streams of an open file. Of a plain WAV only the ends are read."""
    head, status = file.read(12), os.fstat(file.fileno())
    if head[:4] == b"RIFF":
        return _wav(file, status.st_size)
    if head[:4] == b"OggS":
        return _ogg(path, status.st_ino, status.st_size, status.st_mtime_ns)
    frame = head[:1] == b"\xff" and head[1:2] >= b"\xe0" and head[1] & 6
    if head[:3] == b"ID3" or frame or (path.suffix.lower() in _MPEG and head[:4] != b"fLaC"):
        return _mpeg(file, status.st_size)
    return Layout()


def _mpeg(file: Any, size: int) -> Layout:
    """Without a Xing, Info or VBRI tag, readers guess the length."""
    file.seek(0)
    head = file.read(10)
    # An ID3 tag in front says its size in four groups of 7 bits.
    tags = sum((byte & 127) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0))) + 10
    start = tags if head[:3] == b"ID3" else 0
    file.seek(start)
    tag = re.search(rb"(?:Xing|Info)...[\x03\x07\x0b\x0f](?!\0{4})....(....)|VBRI.{6}(....)", file.read(512), re.DOTALL)
    declared, present = int.from_bytes(tag[1] or tag[2], "big") if tag else 0, size - start
    damage, more = _promised(declared, present), 0 < declared <= present - _TAGS
    notes = (f"its header declares {declared} bytes of audio, {present} are there",) if more else ()
    return Layout((), notes, damage, True, None if not declared or damage or more else True)


def _chunks(file: Any, at: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and size of RIFF chunks in a row."""
    while at + 8 <= size:
        file.seek(at)
        name, count = struct.unpack("<4sI", file.read(8))
        if name == b"RIFF" or not re.fullmatch(rb"[ -~]{4}", name):
            return
        yield name, at + 8, count
        at += 8 + count + count % 2


def _wav(file: Any, size: int) -> Layout:
    links: list[Link] = []
    notes, damage, base = [], "", 0
    while _is_wav(file, base):
        chunks: dict[bytes, tuple[int, int]] = {}
        for name, begin, count in _chunks(file, base + 12, size):
            chunks[name] = begin, count
            if name == b"data":
                break
        if not chunks.keys() >= {b"fmt ", b"data"}:
            break
        file.seek(chunks[b"fmt "][0] + 8)
        rate, align = struct.unpack("<IH", file.read(6).ljust(6, b"\1"))  # bytes per second and sample
        start, count = chunks[b"data"]
        end = start + count
        rounded = end > size and count >= _PLACEHOLDER and count % (1_000_000 * max(1, align)) == 0
        endless = rounded or count >= _UNKNOWN_SIZE
        damage = "" if endless else _promised(count, size - start)
        after = _end_of_data(file, start, size) if endless else min(size, end + end % 2)
        for _, begin, more in _chunks(file, after, size):
            after = min(size, begin + more + more % 2)
        if size - after <= _PADDING * rate or (not endless and _is_wav(file, after)):
            after = size if size - after <= _PADDING * rate else after
            links.append(((base, after),))
        else:
            after = _end_of_data(file, start, size)
            if count and not endless:
                there = f"{(after - start) / rate:.2f} s are there"
                notes.append(f"its header declares {count / rate:.2f} s of audio, {there}")
            sizes = [struct.pack("<I", min(n, _UNKNOWN_SIZE - 1)) for n in (after - base - 8, after - start)]
            links.append(((base, base + 4), sizes[0], (base + 8, start - 4), sizes[1], (start, after)))
        base = after
    if len(links) > 1:
        notes.append(f"{len(links)} WAV files were joined in it")
    return Layout(() if sum(map(len, links)) <= 1 else tuple(links), tuple(notes), damage)


def _is_wav(file: Any, at: int) -> bool:
    file.seek(at)
    head = file.read(12)
    return head[:4] == b"RIFF" and head[8:] == b"WAVE"


def _end_of_data(file: Any, start: int, size: int) -> int:
    """Where audio of unknown length ends: at the next file, at tags, or with the file."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        following = re.compile(rb"RIFF....WAVE[a-zA-Z]{3}", re.DOTALL).search(data, start)
        if following:
            return following.start()
        tags = data.rfind(b"LIST", max(start, size - _PAGE), size)
    ends = [begin + count + count % 2 for _, begin, count in _chunks(file, tags, size)] if tags >= 0 else []
    return tags if ends and ends[-1] == size else size


@lru_cache(maxsize=4096)
def _ogg(path: Path, *_: int) -> Layout:
    """Gone through once, as long as the file stays as it is (inode, size and time)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        starts, last, video = [0], 0, False
        for begin in re.finditer(rb"OggS\0[\2\3]", data):
            # Streams that sound together (a video and its audio) begin together.
            video = video or begin.start() == last > 0
            if begin.start() > last:
                starts.append(begin.start())
            last = _page_end(data, begin.start())
        ends = [*starts[1:], len(data)]
        page = data.rfind(b"OggS\0", max(0, len(data) - _PAGE))
        whole, closed = _page_end(data, page) <= len(data), bool(data[page + 5] & 4)
    if not whole:
        ends[-1] = page
    links = tuple(((start, end),) for start, end in zip(starts, ends) if end > start)
    notes = [f"{len(starts)} Ogg files were joined in it"] if len(starts) > 1 else []
    if whole and not closed:
        notes.append("its last page does not say that it is the last, as when a recorder was killed")
    plain = whole and len(starts) == 1
    return Layout(() if plain else links, tuple(notes), "" if whole else "its last page is not complete", video)


def _page_end(data: Any, page: int) -> int:
    """Where an Ogg page ends (RFC 3533); its header may be cut short itself."""
    segments = data[page + 26] if page + 26 < len(data) else 255
    return page + 27 + segments + sum(data[page + 27 : page + 27 + segments])


def check_complete(file: Any, path: Path) -> str:
    """In which way a file is cut short, by its size, which libsndfile does not compare. Raises `AudioError` for a file
    without a header that libsndfile takes for audio because of its name."""
    if file.format == "RAW" and (file.subtype == "ULAW" or is_text(path)):
        raise AudioError(f"{path} is not an audio file: it only has the name of one.", "unreadable")
    return _promised(*_promised_bytes(file, path))


def behind(file: Any, size: int) -> tuple[str, ...]:
    """Data behind the declared end of plain samples, which libsndfile does not read; `_wav` knows more."""
    more = size - file.frames * file.channels * _WIDTHS.get(file.subtype, size)
    if file.format in ("WAV", "WAVEX", "FLAC") or more < max(4096, 0.05 * size):
        return ()
    return (f"{more} bytes stand behind the end that its header declares and are not read",)


def _promised(declared: int, present: int) -> str:
    """The fault of a file with less than a header declares, in bytes."""
    short = declared - present > 0.05 * declared
    return f"its header promises {declared} bytes of audio, {present} are there" if short else ""


def _promised_bytes(file: Any, path: Path) -> tuple[int, int]:
    """Bytes of audio that the header promises and that are there; (0, 0) when the header does not know."""
    if file.format == "NIST":
        head = path.open("rb").read(1024)
        fields = {key: int(value) for key, value in re.findall(rb"(sample_count|sample_n_bytes) -i (\d+)", head)}
        size = fields.get(b"sample_count", 0) * fields.get(b"sample_n_bytes", 0) * file.channels
        coded = re.search(rb"sample_coding -s\d+ \S*(shorten|embedded)", head)
        return (0, 0) if coded else (size, path.stat().st_size - 1024)
    match = _CUT_SHORT.search(file.extra_info)
    if match is None or file.format in ("WAV", "WAVEX"):  # `_wav` knows more
        return 0, 0
    if match[3]:
        return path.stat().st_size, 0
    unknown = file.format not in ("W64", "RF64") and int(match[1]) >= _UNKNOWN_SIZE
    return (0, 0) if unknown else (int(match[1]), int(match[2]))
