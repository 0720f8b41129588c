"""`audio_folder`: the audio files in a folder, with the texts that lie next to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.jsonl import not_found
from stentor.data.layouts.by_path import TRANSCRIPTS
from stentor.data.layouts.transcripts import text_lines
from stentor.data.storage import StoragePath, files_below, is_remote, name_of, read_whole
from stentor.errors import DataError
from stentor.sources.base import Source


class AudioFolder(Source):
    """Recordings in a folder and its subfolders, in any format. Each is a record, named after its path. A text file
    next to a recording (`a.lab` or `a.txt` for `a.wav`, in any case, as for the Montreal Forced Aligner) is its text,
    or its line in a `*.trans.txt` of its folder, as in LibriSpeech; one without a recording is reported."""

    type: Literal["audio_folder"] = "audio_folder"
    path: StoragePath
    """The folder."""
    text_suffixes: list[str] = [".lab", ".txt"]
    """Suffixes of the text files next to recordings (UTF-8, or UTF-16 with its mark; `.srt`, `.vtt` and `.TextGrid` are
    read as such); the first one that exists is read. An empty list: none."""

    _unread: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        return self._unread

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.audio.suffixes import is_audio
        from stentor.data.layouts.recognise import tables_in

        folder = self.path.expanduser()
        if is_remote(folder):
            files = set(files_below(folder))
        elif folder.is_dir():
            files, folder = {f.relative_to(folder).as_posix() for f in folder.rglob("*")}, folder.absolute()
        else:
            raise not_found(folder)
        if not is_remote(folder) and (tables := tables_in(folder)):
            read = f"`type: jsonl` and `path: {tables[0]}` read it instead"
            self._unread = (f"The texts in {tables[0].name} are not read: {read}.",)
        names = sorted(name for name in files if is_audio(PurePosixPath(name)))
        if not names:
            raise DataError(f"{folder} holds no file with a suffix of audio or video.")
        any_case = {file.lower(): file for file in sorted(files)}
        stems = {_stem(name).lower() for name in names}
        for lab in sorted(f for f in files if f.lower().endswith(".lab") and _stem(f).lower() not in stems):
            if ".lab" in self.text_suffixes:
                yield UnusableRecord(lab, "no_audio", f"{folder / lab} has no recording of the same name next to it.")
        spoken = self._spoken(folder, files)
        for name in spoken.keys() - {_stem(name) for name in names}:
            yield UnusableRecord(name, "no_audio", f"{folder / name}: its transcript has no recording.")
        for name in names:
            record: dict[str, Any] = {"id": name, "audio_path": name}
            if _stem(name) in spoken:
                record["text"] = spoken[_stem(name)]
            texts = [_stem(name) + suffix for suffix in self.text_suffixes]
            found = (text if text in files else any_case.get(text.lower()) for text in texts)
            if text := next(filter(None, found), None):
                try:
                    lines = _lines(folder / text)
                except (DataError, OSError) as error:
                    yield UnusableRecord(name, "unreadable", f"{error}")
                    continue
                record |= {"text": " ".join(lines), **({"text_lines": lines} if len(lines) > 1 else {})}
            yield cut_from_record(record, folder, str(folder / name))

    def _spoken(self, folder: StoragePath, files: Iterable[str]) -> dict[str, str]:
        """The texts of LibriSpeech's files of transcripts, by the paths of the recordings without their endings."""
        tables = sorted(file for file in files if file.endswith(TRANSCRIPTS) and ".txt" in self.text_suffixes)
        lines = [(PurePosixPath(t).parent, *line.partition(" ")) for t in tables for line in _lines(folder / t)]
        return {str(home / name): text.strip() for home, name, _, text in lines if name}


def _lines(file: StoragePath) -> list[str]:
    return text_lines(name_of(file), read_whole(file))


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))
