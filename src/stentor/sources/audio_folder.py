"""`audio_folder`: the audio files in a folder, without texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stentor.data.cut import UnusableRecord, cut_from_record
from stentor.data.jsonl import not_found
from stentor.errors import DataError
from stentor.sources.base import Source

if TYPE_CHECKING:
    from lhotse.cut import Cut


class AudioFolder(Source):
    """Recordings in a folder and its folders, in any format, each a record that is named after its path."""

    type: Literal["audio_folder"] = "audio_folder"
    path: Path
    """The folder."""

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.audio.io import AUDIO_SUFFIXES

        folder = self.path.expanduser()
        if not folder.is_dir():
            raise not_found(folder)
        names = sorted(
            f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.suffix.lower() in AUDIO_SUFFIXES
        )
        if not names:
            raise DataError(f"{folder} holds no audio file ({', '.join(AUDIO_SUFFIXES)}).")
        for name in names:
            yield cut_from_record({"id": name, "audio_path": name}, folder.absolute(), str(folder / name))
