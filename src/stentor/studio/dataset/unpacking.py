"""Recordings and transcripts of an upload, also those in zip files and folders.

A zip file is unpacked beside itself, into numbered files: no name in it becomes a path.
"""

import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.layouts.transcripts import ENDINGS
from stentor.errors import DataError
from stentor.studio.files import disk_errors
from stentor.studio.uploaded_audio import MOST_BYTES, Upload, kind_of, shown

MOST_FILES = 2000
"""Audio files of one upload."""
MOST_TEXT = 20 * 2**20
"""Bytes of the largest transcript file."""
MOST_BATCH = 4 * 2**30
"""Bytes of all files of one upload, unpacked as well."""
SPARE = 200 * 2**20
"""Bytes that are left free on the disk."""
_SMALL, _DENSEST = 500 * 2**20, 100
"""Bytes that every zip file may become, and how many times its own size beyond that: recordings hardly shrink."""
_ADVICE = {
    "xlsx xls xlsm ods numbers": "This is a spreadsheet: save it as CSV UTF-8 (File, Save as).",
    "docx doc odt rtf pdf pages": "This is a document: save it as plain text, with lines of file name, tab, text.",
    "ass ssa sbv ttml dfxp lrc stl sub smi": "These are subtitles: save them as srt with a program for that.",
    "zip tar gz tgz bz2 xz 7z rar": "This archive is not unpacked: make a zip file of it, or choose its folder.",
}
ADVICE = {kind: advice for kinds, advice in _ADVICE.items() for kind in kinds.split()}
"""Advice for files that hold texts or recordings in another form, by their endings."""
_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx")
"""Files and folders that systems leave, besides those that begin with a dot."""
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, ValueError, RuntimeError)
"""Errors of zip files that are damaged, or packed in other ways."""


class Contents(NamedTuple):
    """The files of an upload."""

    audio: list[Upload]
    texts: list[Upload]
    unused: list[str]
    """A sentence for each other file that lay in a zip file or folder."""


def contents(uploads: Sequence[Upload], texts: Sequence[Upload] = ()) -> Contents:
    """Recordings and transcripts of an upload, those of zip files among them. Raises DataError for a file that must be
    saved as another kind, and for a zip file that cannot be unpacked; StentorError when the disk is full."""
    files = [(part, False) for upload in uploads for part in _parts(upload)]
    files += [(part, True) for upload in texts for part in _parts(upload)]
    uses = [(file, *_use(file, is_text)) for file, is_text in files]
    audio, read = ([file for file, use, _ in uses if use == kind] for kind in ("audio", "text"))
    return Contents(audio, read, [sentence for _, _, sentence in uses if sentence])


def _use(upload: Upload, is_text: bool) -> tuple[str, str]:
    """Use of a file (audio, text or none), and a sentence where one was expected."""
    kind, more = ending(upload.name), path_of(upload.name).split("/")[1:]
    if any(part.startswith(".") or part.lower() in _OF_SYSTEMS for part in more):
        return "", ""
    if kind in ENDINGS or (is_text and not more and kind not in ADVICE):
        return "text", ""
    if kind not in ADVICE and (not more or f".{kind}" in AUDIO_SUFFIXES or kind_of(upload.path) is not None):
        return "audio", ""
    sentence = f"{shown(upload.name)} was not used. {ADVICE.get(kind, 'It is neither a recording nor a transcript.')}"
    if not more:
        raise DataError(sentence)
    return "", sentence


def _in_order(name: str) -> list[tuple[str, int]]:
    """Key of names in the order in which a person reads them: 2 before 10."""
    return [(text.casefold(), int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def ending(name: str) -> str:
    return shown(name).rpartition(".")[2].lower() if "." in name else ""


def path_of(name: str) -> str:
    """A sent name with its folders, printable and without a way out of them."""
    parts = [part for part in name.replace("\\", "/").split("/") if part.strip(". ")]
    return "/".join(shown(part) for part in parts[-6:]) or "the file"


def discard(uploads: Sequence[Upload]) -> None:
    """Delete what was unpacked."""
    for upload in uploads:
        shutil.rmtree(_place(upload), ignore_errors=True)


def _place(upload: Upload) -> Path:
    return upload.path.with_name(f"zip-{upload.path.name}")


def _parts(upload: Upload) -> list[Upload]:
    """The upload, or the files of a zip file, which is unpacked once."""
    if ending(upload.name) != "zip":
        return [upload]
    name, place = shown(upload.name), _place(upload)
    try:
        with zipfile.ZipFile(upload.path) as archive, disk_errors(place):
            members = [m for m in archive.infolist() if not m.is_dir()]
            if not place.is_dir():
                _check(name, members, upload.path)
                part = place.with_name(f"{place.name}-part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                for number, member in enumerate(members):
                    with archive.open(member) as file, open(part / str(number), "wb") as to:
                        shutil.copyfileobj(file, to, 2**20)
                part.rename(place)
    except _DAMAGED as error:
        again = "make the zip file again, or choose the folder."
        raise DataError(f"{name} cannot be unpacked ({error}): {again}") from None
    parts = [Upload(place / str(i), f"{name}/{_name(member)}") for i, member in enumerate(members)]
    return sorted(parts, key=lambda part: _in_order(path_of(part.name)))


def _check(name: str, members: Sequence[zipfile.ZipInfo], path: Path) -> None:
    size = sum(m.file_size for m in members)
    room = shutil.disk_usage(path.parent).free - SPARE
    if any(m.flag_bits & 1 for m in members):
        raise DataError(f"{name} has a password: unpack it yourself, and choose the folder.")
    if len(members) > MOST_FILES * 2:
        raise DataError(f"{name} holds {len(members)} files: at most {MOST_FILES * 2} are taken at a time.")
    if size > max(_SMALL, _DENSEST * path.stat().st_size) or size > min(MOST_BATCH, room):
        raise DataError(f"{name} holds {size / 1e6:.0f} MB when it is unpacked, which is too much: make several of it.")
    if big := [m for m in members if m.file_size > (MOST_TEXT if ending(m.filename) in ENDINGS else MOST_BYTES)]:
        raise DataError(f"{name}: {shown(big[0].filename)} in it is larger than what is taken: split it.")


def _name(member: zipfile.ZipInfo) -> str:
    """A member's name. Without the mark of UTF-8 it is that all the same (macOS), or cp437 (Windows)."""
    if member.flag_bits & 0x800:
        return member.filename
    try:
        return member.filename.encode("cp437").decode()
    except UnicodeError:
        return member.filename
