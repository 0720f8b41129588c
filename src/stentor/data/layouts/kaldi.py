"""Data folders of Kaldi: wav.scp, and beside it segments, text, utt2spk, utt2lang and durations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.data.jsonl import open_text
from stentor.data.layouts.reading import Reading
from stentor.data.layouts.records import Converter
from stentor.errors import DataError, RecordError

TABLES = {"text": "text", "utt2spk": "speaker", "utt2lang": "language", "utt2dur": "duration"}
"""Files of utterances, and the field that each gives."""


@dataclass
class _Utterances:
    """The utterances of a folder: rows of `segments`, or of wav.scp where there is none."""

    folder: Path
    main: Path
    zipped = damaged = False

    def numbered(self) -> Iterator[tuple[int, Any]]:
        tables = {field: _table(self.folder / name) for name, field in TABLES.items()}
        scp, lengths = _table(self.folder / "wav.scp"), _table(self.folder / "reco2dur")
        used, last = set(), 0
        for last, name, rest in _rows(self.main):
            used.add(name)
            record: dict[str, Any] = {field: rows[name] for field, rows in tables.items() if name in rows}
            if self.main.name == "wav.scp":
                yield last, {"duration": lengths.get(name)} | record | {"id": name, "audio_path": rest or None}
                continue
            recording, *times = rest.split() or [name]
            spans = {"start": times[0], "end": times[1]} if len(times) == 2 else {}
            if spans.get("end") == "-1":  # to the end of the recording
                del spans["end"]
            yield last, record | {"id": name, "audio_path": scp.get(recording), "recording": recording} | spans
        for number, name in enumerate(tables["text"].keys() - used, last + 1):
            yield number, RecordError(f"{self.folder / 'text'}: '{name}' is not in {self.main.name}.", "no_audio")


def read_kaldi(folder: Path, base: Path | None = None) -> Reading:
    """The reading of a folder with a wav.scp. `base`: where its relative paths start from. None: the folder, the
    working directory or a folder above, whichever has the first file."""
    main = folder / ("segments" if (folder / "segments").is_file() else "wav.scp")
    first = next((Path(rest) for _, _, rest in _rows(folder / "wav.scp") if not rest.endswith("|")), Path())
    places = [folder, Path(), *folder.absolute().parents[:3]] if base is None else [base]
    base = next((place for place in places if (place / first).is_file()), places[0])

    @contextmanager
    def rows() -> Iterator[_Utterances]:
        yield _Utterances(folder, main)

    names = ", ".join(name for name in ("wav.scp", "segments", *TABLES, "reco2dur") if (folder / name).is_file())
    reading = Reading(f"Kaldi data folder ({names})", main, base, rows, _parsed)
    if base != folder and not first.is_absolute():
        reading.remarks = (f"Paths in wav.scp start from {base}.",)
    if others := [name for name in ("reco2file_and_channel", "vad.scp") if (folder / name).is_file()]:
        reading.remarks += (f"Not read: {', '.join(others)}.",)
    if not (folder / "text").is_file():
        reading.remarks += ("It has no file `text`: the records have no transcripts.",)
    return reading


def _parsed(row: Any, where: str) -> dict[str, Any]:
    """The record of an utterance."""
    if isinstance(row, RecordError):
        raise row
    if (path := row.get("audio_path")) is None:
        raise RecordError(f"{where}: the recording '{row['recording']}' is not in wav.scp.", "no_audio")
    if path.endswith("|"):
        raise DataError(
            f"{where}: wav.scp has a command for '{row['id']}' (`{path[:60]}`), and commands are not run: write its "
            "output to a WAV file, and the file's path into wav.scp."
        )
    if "recording" in row and "start" not in row:
        raise DataError(f"{where}: expected UTTERANCE RECORDING START END, got another number of words.")
    return Converter(find=str, written=True)({key: value for key, value in row.items() if value is not None}, where)


def _table(path: Path) -> dict[str, str]:
    """The rest of each line by its first word; empty where there is no such file."""
    return {name: rest for _, name, rest in _rows(path)} if path.is_file() else {}


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number, first word and rest of each line. Raises `RecordError` for a line that is no UTF-8 text."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            name, _, rest = line.strip().replace("\t", " ").partition(" ")
            if name:
                yield number, name, rest.strip()
