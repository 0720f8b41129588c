"""`audio_folder`: the audio files in a folder, with the texts that lie beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.jsonl import not_found
from stentor.data.storage import StoragePath, files_below, is_remote, name_of, read_whole
from stentor.errors import DataError
from stentor.sources.base import Source


class AudioFolder(Source):
    """Recordings in a folder and its folders, in any format, each a record that is named after its path. The text file
    beside one, `a.lab` or `a.txt` of `a.wav` as the Montreal Forced Aligner has them, is the text of the record."""

    type: Literal["audio_folder"] = "audio_folder"
    path: StoragePath
    """The folder."""
    text_suffixes: list[str] = [".lab", ".txt"]
    """Suffixes of the text files (UTF-8) that lie beside recordings; of several the first one counts. An empty list:
    no texts are read."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.audio.io import AUDIO_SUFFIXES

        folder = self.path.expanduser()
        if is_remote(folder):
            files = set(files_below(folder))
        elif folder.is_dir():
            files, folder = {f.relative_to(folder).as_posix() for f in folder.rglob("*")}, folder.absolute()
        else:
            raise not_found(folder)
        names = sorted(name for name in files if PurePosixPath(name).suffix.lower() in AUDIO_SUFFIXES)
        if not names:
            raise DataError(f"{folder} holds no audio file ({', '.join(AUDIO_SUFFIXES)}).")
        for name in names:
            record: dict[str, Any] = {"id": name, "audio_path": name}
            texts = (f"{PurePosixPath(name).with_suffix('')}{suffix}" for suffix in self.text_suffixes)
            if (text := next((text for text in texts if text in files), None)) is not None:
                try:
                    record["text"] = _text(folder / text)
                except DataError as error:
                    yield UnusableRecord(name, "unreadable", str(error))
                    continue
            yield cut_from_record(record, folder, str(folder / name))


def _text(path: Path) -> str:
    """Content of a text file, as one line. Raises DataError."""
    try:
        return " ".join(str(read_whole(path), "utf-8-sig").split())
    except UnicodeDecodeError as error:
        raise DataError(f"{name_of(path)} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise DataError(f"{name_of(path)} cannot be read ({error}).") from None
