"""`audio_folder`: the audio files in a folder, without texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from stentor.data.cut import UnusableRecord, cut_from_record
from stentor.data.jsonl import not_found
from stentor.data.storage import StoragePath, files_below, is_remote
from stentor.errors import DataError
from stentor.sources.base import Source

if TYPE_CHECKING:
    from lhotse.cut import Cut


class AudioFolder(Source):
    """Recordings in a folder and its folders, in any format, each a record that is named after its path."""

    type: Literal["audio_folder"] = "audio_folder"
    path: StoragePath
    """The folder."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.audio.io import AUDIO_SUFFIXES

        folder = self.path.expanduser()
        if is_remote(folder):
            files = list(files_below(folder))
        elif folder.is_dir():
            files, folder = [f.relative_to(folder).as_posix() for f in folder.rglob("*")], folder.absolute()
        else:
            raise not_found(folder)
        names = sorted(name for name in files if PurePosixPath(name).suffix.lower() in AUDIO_SUFFIXES)
        if not names:
            raise DataError(f"{folder} holds no audio file ({', '.join(AUDIO_SUFFIXES)}).")
        for name in names:
            yield cut_from_record({"id": name, "audio_path": name}, folder, str(folder / name))
