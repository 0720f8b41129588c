"""The type of source for a path, by what lies there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

from stentor.data.jsonl import LHOTSE, open_text, parse_object
from stentor.data.layouts.recognise import TABLES, first_lines, first_record, is_table, tables_in, unknown
from stentor.data.storage import is_remote, name_of
from stentor.errors import DataError

PATTERNS = {
    "manifest": ("cuts.*.jsonl*",),
    "hub": ("dataset_dict.json", "state.json", "*.parquet", "data/*.parquet", "*.arrow"),
    "jsonl": ("wav.scp",),
    "shards": ("data.lst", "*.tar"),
}
"""Files by which the type of a folder is known, the first that is there."""
SUFFIXES = {".lst": "shards", ".tar": "shards", ".rttm": "rttm", ".txt": "text", ".parquet": "hub", ".arrow": "hub"}
TRANSCRIPTS = ".trans.txt"
"""The end of LibriSpeech's files of transcripts."""
FOLDERS = (
    "recordings, each with its text beside it (a.wav and a.txt or a.lab, or *.trans.txt); a table beside recordings "
    "(metadata.csv or another); Kaldi data folders (wav.scp); lhotse manifests (recordings and supervisions, or cuts) "
    "and Shar folders; Hugging Face data sets (save_to_disk, parquet, Arrow); tar files; RTTM files with their audio"
)
"""The folders that are known, for messages."""

TEXT_KEYS = {
    *("id", "text", "language", "language_id", "language_name"),
    *("speaker", "voice", "instruct", "duration", "speed"),
}
"""Keys that JSON lines may have, besides those of a reference and its recording."""


def type_of(path: Path) -> str:
    """The type of source for a path. Raises `DataError` for a folder of no known layout."""
    if list_format(path):
        return "speech_list"
    if path.is_dir():
        return _type_of_folder(path)
    suffix = Path(name_of(path)).suffix.lower()
    if suffix in SUFFIXES:
        return "jsonl" if suffix in (".txt", ".lst") and is_table(path) else SUFFIXES[suffix]
    if pair_of(path):
        return "manifest"
    first = first_record(path) if not is_remote(path) and path.is_file() else None
    if first is None:
        return "jsonl" if suffix in (".jsonl", ".json", ".csv", ".tsv", ".psv", ".list") else "manifest"
    return "manifest" if first.get("type") in LHOTSE else "jsonl"


def _type_of_folder(folder: Path) -> str:
    from stentor.audio.suffixes import is_audio

    remote = is_remote(folder)
    packed = (
        {} if not remote and _pairs(file.name for file in folder.iterdir()) else PATTERNS
    )  # shards beside such pairs are copies
    for kind, patterns in packed.items():
        if any(next(folder.glob(pattern), None) for pattern in patterns):
            return kind
    if remote:
        return "audio_folder"
    if pair_of(folder):
        return "manifest"
    files = sorted(folder.rglob("*"))
    names = [file.relative_to(folder).as_posix() for file in files]
    stems = {PurePath(name).stem for name in names if is_audio(PurePath(name))}
    if _pairs(names):
        return "audio_folder"
    if tables_in(folder):
        return "jsonl"
    if inside := sorted({f.parent for f in files if f.name == "wav.scp"} | {f.parent for f in files if _has_table(f)}):
        given = ", ".join(map(str, inside[:9]))
        raise DataError(f"{folder}: the texts are in folders within it, each a data set: give one of {given}.")
    if any(file.suffix == ".rttm" for file in files):
        return "rttm"
    if unread := next((file for file in files if _names_audio(file, stems)), None):
        alone = f"Or read the recordings without texts: type=audio_folder,path={folder}."
        raise DataError(f"{unknown(unread, first_lines(unread)[0])} {alone}")
    if stems:
        return "audio_folder"
    found = ", ".join(names[:5]) or "nothing"
    raise DataError(f"{folder} is no folder of a known layout. It holds: {found}. Known are: {FOLDERS}.")


def _pairs(files: Iterable[str]) -> bool:
    """Whether texts lie beside recordings: each in a file of the same name, or as in LibriSpeech."""
    from stentor.audio.suffixes import is_audio

    names = set(files)
    audio = [name.rpartition(".")[0] for name in names if is_audio(PurePath(name))]
    spoken = any(name.endswith(TRANSCRIPTS) for name in names)
    return bool(audio) and (spoken or any(f"{stem}{end}" in names for stem in audio for end in (".txt", ".lab")))


def _has_table(file: Path) -> bool:
    return file.suffix.lower() in TABLES and first_record(file) is not None


def _names_audio(file: Path, stems: set[str]) -> bool:
    """Whether lines of a text file name recordings of these stems."""
    if file.suffix.lower() not in TABLES or file.stem in stems or not file.is_file():
        return False
    lines = [re.split(r'[\t,;|"]+', line.strip()) for line in first_lines(file)]
    named = [any(PurePath(cell.strip().replace("\\", "/")).stem in stems for cell in cells) for cells in lines]
    return sum(named) * 2 > len(named)


def list_format(path: Path) -> str | None:
    """The format of an evaluation list by its first line; None for other files, tables of recordings among them."""
    if path.suffix not in (".lst", ".txt", ".tsv", ".jsonl", ".json") or not path.is_file():
        return None
    try:
        with open_text(path) as lines:
            line = next((line for line in lines if line.strip()), "")
    except DataError:
        return None
    if path.suffix in (".jsonl", ".json"):
        return "jsonl" if _is_to_speak(line) else None
    if is_table(path):
        return None
    if "|" in line:
        beside = line.count("|") == 1 and (path.absolute().parent.parent / "speaker").is_dir()
        return "minimax" if beside else "seed_tts"
    columns = line.split("\t")
    if len(columns) == 1 or columns[0].endswith(".tar"):
        return None
    return "librispeech_pc" if len(columns) > 4 else "tsv"


def _is_to_speak(line: str) -> bool:
    """Whether a JSON line is of an evaluation list: no record of a manifest, which names a recording."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    if not isinstance(record, dict) or record.get("type") in LHOTSE or "text" not in record:
        return False
    named = any(isinstance(record.get(key), str) for key in ("reference", "ref_audio"))
    if "audio_path" in record:
        return named and bool({"reference_text", "ref_text"} & record.keys())
    return named or ("id" in record and {k for k, v in record.items() if v is not None} <= TEXT_KEYS)


def pair_of(path: Path) -> tuple[Path, Path] | None:
    """The recordings and the supervisions that a folder holds, or of which a file is one; None where there are none.
    Raises `DataError` where it is not clear which belong together."""
    if is_remote(path):
        return None
    if path.is_dir():
        found = [file for file in sorted(path.glob("*recordings*.jsonl*")) if _part_of(file) == "recordings"]
        if len(found) > 1:
            raise DataError(f"{path} holds several manifests: give one of {', '.join(file.name for file in found)}.")
        return pair_of(found[0]) if found else None
    if (kind := _part_of(path)) is None:
        return None
    recordings, supervisions = (path.with_name(path.name.replace(kind, k)) for k in ("recordings", "supervisions"))
    if recordings == supervisions or not recordings.exists() or not supervisions.exists():
        other = "supervisions" if kind == "recordings" else "recordings"
        expected = (
            f"{other}.jsonl.gz beside {kind}.jsonl.gz" if kind not in path.name else path.name.replace(kind, other)
        )
        raise DataError(f"{path} holds {kind}, and its {other} are not beside it: expected {expected}.")
    return recordings, supervisions


def _part_of(path: Path) -> str | None:
    """Whether a file holds recordings or supervisions of lhotse, by its first line; None for others."""
    if ".jsonl" not in path.name or not path.is_file():
        return None
    with open_text(path) as lines, suppress(DataError):
        record = parse_object(next(lines, ""), "")
        if "sources" in record and "sampling_rate" in record:
            return "recordings"
        return "supervisions" if {"id", "recording_id", "start"} <= record.keys() and "type" not in record else None
    return None
