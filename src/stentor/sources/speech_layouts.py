"""Corpora of transcribed utterances whose lhotse recipe does not read the publisher's folders: where their tables of
texts lie, and the audio of each row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.layouts.cuts import read_cuts
from stentor.errors import ConfigError, DataError, MissingData
from stentor.sources.layouts import Parts


@dataclass(frozen=True)
class Table:
    """Layout of a corpus: `layout(folder)` gives its parts by name, `SPLIT` or `LANGUAGE/SPLIT`.

    In formats, `{name}` stands for a column of the row, a named group of `path`, or one of `within`.
    """

    files: tuple[str, ...]
    """Patterns of the tables below the folder; the first one that fits is taken."""
    path: str
    """Regular expression on the path of a table."""
    audio: tuple[str, ...]
    """Formats of the places where the audio of a row may be, from the table's folder, without its ending."""
    record: Mapping[str, str]
    """Format of each field of the record."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a table without a header line; a single one is the whole text of the file."""
    within: tuple[str, str] | None = None
    """A column, and a regular expression whose named groups are parts of it."""
    separator: str | None = "\t"
    """Separator of columns. None: white space, and the last column is the rest of the line."""
    more: Callable[[Path, Mapping[str, str]], dict[str, Any] | None] = lambda file, row: {}
    """Further fields of the record, for a row of a table. Its answer None leaves the row out. Raises `ValueError` for a
    row that cannot be read."""

    def __call__(self, folder: Path) -> Parts:
        """The parts that are there. Raises `DataError` when there is no table."""
        for pattern in self.files:
            tables_of: dict[str, list[tuple[Path, dict[str, str]]]] = {}
            for file in sorted(folder.glob(pattern)):
                if match := re.search(self.path, file.as_posix()):
                    groups = match.groupdict()
                    part = "/".join(groups[key] for key in ("language", "split") if key in groups)
                    tables_of.setdefault(part or "all", []).append((file, groups))
            if tables_of:
                return {part: partial(self._records, tables) for part, tables in tables_of.items()}
        raise DataError(f"there are no texts in {folder} (looked for {', '.join(self.files)})")

    def _records(self, tables: list[tuple[Path, dict[str, str]]]) -> Iterator[Cut | UnusableRecord]:
        find = AudioFinder()
        entries = (self._entry(*row, find) for file, groups in tables for row in self._rows(file, groups))
        with ThreadPoolExecutor(8) as pool:  # reads the headers of audio files
            while some := list(islice(filter(None, entries), AT_ONCE)):
                yield from pool.map(
                    lambda entry: entry if isinstance(entry, UnusableRecord) else found_cut(*entry), some
                )

    def _entry(
        self, file: Path, number: int, row: dict[str, str] | None, find: AudioFinder
    ) -> tuple[dict[str, Any], Path, str] | UnusableRecord | None:
        """The record of a row, its audio, and where the row is."""
        where = f"{file}:{number}"
        try:
            if row is None:
                raise ValueError(f"this line does not have the {len(self.columns) or 'header'} columns")
            if self.within:
                column, pattern = self.within
                if (match := re.match(pattern, row[column])) is None:
                    raise ValueError(f"the {column} {row[column]!r} does not fit {pattern}")
                row |= match.groupdict()
            more = self.more(file, row)
        except ValueError as error:
            return UnusableRecord(f"{file.stem}:{number}", "unreadable", f"{where}: {error}.")
        if more is None:
            return None
        audio = find([file.parent / place.format_map(row) for place in self.audio])
        fields = {key: text.format_map(row).strip() or None for key, text in self.record.items()} | more
        return {"id": audio.stem} | {k: v for k, v in fields.items() if v is not None}, audio, where

    def _rows(self, file: Path, groups: dict[str, str]) -> Iterator[tuple[Path, int, dict[str, str] | None]]:
        """The rows of a table by column, with their line numbers. None: a line of another number of columns."""
        if len(self.columns) == 1:
            yield file, 1, groups | {self.columns[0]: file.read_text(encoding="utf-8")}
            return
        columns = self.columns
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                cells = line.rstrip("\r\n").split(self.separator, -1 if self.separator else len(columns) - 1)
                if not columns:
                    columns = tuple(cells)
                elif line.strip():
                    row = groups | {"index": str(number - 1)} | dict(zip(columns, cells))
                    yield file, number, row if len(cells) == len(columns) else None


AT_ONCE = 256
"""Rows whose audio is looked at together."""


class AudioFinder:
    """Finds audio by its path without ending; the endings that fitted last are tried first."""

    def __init__(self) -> None:
        from stentor.audio.suffixes import AUDIO_SUFFIXES

        self.endings = ["", *AUDIO_SUFFIXES]

    def __call__(self, places: list[Path]) -> Path:
        """The first of the places that is there, else the first one."""
        for place in places:
            for ending in self.endings:
                if (path := place.with_name(place.name + ending)).is_file():
                    self.endings.remove(ending)
                    self.endings.insert(0, ending)
                    return path
        return places[0]


def found_cut(record: dict[str, Any], audio: Path, where: str) -> Cut | UnusableRecord:
    """The cut of a record, or that its audio is missing."""
    if not audio.is_file():
        return UnusableRecord(record["id"], "missing", f"{where}: there is no audio {audio} (any ending).")
    return cut_from_record({**record, "audio_path": str(audio)}, audio.parent, where)


COMMON_VOICE = Table(
    files=("*/*.tsv", "*/*/*.tsv", "*.tsv"),
    path=r"/(?P<language>[\w-]+)/(?P<split>train|dev|test|validated|invalidated|other)\.tsv$",
    audio=("clips/{path}",),
    record={
        "text": "{sentence}",
        "speaker": "{client_id}",
        "language": "{language}",
        "gender": "{gender}",
        "age": "{age}",
    },
)
FLEURS = Table(
    files=("*/*.tsv", "*.tsv", "data/*/*.tsv", "metadata/*/*.tsv", "*/*/*.tsv"),
    path=r"/(?P<language>\w+)/(?P<split>train|dev|test)\.tsv$",
    columns=("sentence", "file", "raw", "text", "characters", "samples", "gender"),
    audio=("audio/{split}/{file}", "{split}/{file}", "../../{language}/{split}/{file}", "../../{split}/{file}"),
    record={"text": "{raw}", "language": "{language}", "gender": "{gender}", "normalized_text": "{text}"},
)
VOXPOPULI = Table(
    files=("asr_*.tsv", "*/asr_*.tsv", "*/*/asr_*.tsv"),
    path=r"/(?P<language>\w+)/asr_(?P<split>train|dev|test)\.tsv$",
    audio=("{id:.4}/{id}", "{split}/{id}", "{id}"),
    record={
        "text": "{raw_text}",
        "normalized_text": "{normalized_text}",
        "speaker": "{speaker_id}",
        "gender": "{gender}",
        "language": "{language}",
    },
)
MLS = Table(
    files=("*/*/transcripts.txt", "*/transcripts.txt", "transcripts.txt"),
    path=r"/mls_(?P<language>[a-z]+)(?:_opus)?/(?P<split>train|dev|test)/transcripts\.txt$",
    columns=("id", "text"),
    within=("id", r"(?P<speaker>\d+)_(?P<book>\d+)_"),
    audio=("audio/{speaker}/{book}/{id}",),
    record={"text": "{text}", "speaker": "{speaker}", "language": "{language}"},
)
LIBRITTS = Table(
    files=tuple(f"{'*/' * depth}*.trans.tsv" for depth in (3, 4, 2)),
    path=r"/(?P<split>(?:train|dev|test)-(?:clean|other)(?:-\d+)?)/(?P<speaker>\d+)/\d+/\d\w+\.trans\.tsv$",
    columns=("id", "original", "normalized"),
    audio=("{id}",),
    record={"text": "{normalized}", "original_text": "{original}", "speaker": "{speaker}", "language": "en"},
)
VCTK = Table(
    files=("txt/*/*.txt", "*/txt/*/*.txt"),
    path=r"/txt/(?P<speaker>[ps]\d+)/(?P<stem>[ps]\d+_\d+)\.txt$",
    columns=("text",),
    audio=tuple(
        f"../../{folder}/{{speaker}}/{{stem}}{end}"
        for folder, end in (("wav48_silence_trimmed", "_mic2"), ("wav48_silence_trimmed", "_mic1"), ("wav48", ""))
    ),
    record={"text": "{text}", "speaker": "{speaker}", "language": "en"},
)


LIBRISPEECH = Table(
    files=("*/*/*/*.trans.txt",),
    path=r"/(?P<split>[^/]+)/[^/]+/[^/]+/[^/]+$",
    columns=("id", "text"),
    separator=None,
    within=("id", r"(?P<speaker>[^-]+)-(?P<chapter>[^-]+)-[^-]+$"),
    audio=("{id}",),
    record={"text": "{text}", "speaker": "{speaker}", "chapter": "{chapter}", "language": "en"},
)


def librispeech(
    folder: Path, split: str | None = None, normalize_text: str = "none", alignments_dir: str | None = None
) -> Parts:
    """LibriSpeech as `folder/LibriSpeech`, or that folder itself; `split` is named where it is missing. Options:
    `normalize_text: lower` and `alignments_dir` (LibriSpeech-Alignments, for word times), as in lhotse's recipe. Raises
    `DataError` that says how the folders should lie, and `ConfigError`."""
    if normalize_text not in ("none", "lower"):
        options = "`normalize_text: none|lower` and `alignments_dir`"
        raise ConfigError(f"The options of the librispeech corpus are {options}; got normalize_text: {normalize_text}.")
    root = folder if folder.name == "LibriSpeech" else folder / "LibriSpeech"
    if not root.is_dir():
        misplaced = [p.name for p in sorted(folder.iterdir()) if p.is_dir() and re.match("(dev|test|train)-", p.name)]
        shown = misplaced or [split or "train-clean-100"]
        lines = ["Data not found: the LibriSpeech folder is missing. Should be:", *(f"  {root}/{n}/" for n in shown)]
        if misplaced:
            lines += ["NOT:", *(f"  {folder}/{name}/  (missing LibriSpeech folder)" for name in shown)]
            lines += [f"Fix: mkdir {root} && mv {' '.join(str(folder / name) for name in shown)} {root}/"]
        else:
            lines += ["Unpack the archives of https://www.openslr.org/12 there, or set `download: true`."]
        raise MissingData("\n".join(lines), folder)
    genders, times_of = _genders(root / "SPEAKERS.TXT"), lru_cache(1)(_word_times)

    def more(file: Path, row: Mapping[str, str]) -> dict[str, Any]:
        times = times_of(Path(alignments_dir), file) if alignments_dir else {}
        fields: dict[str, Any] = {"gender": genders.get(row["speaker"]), "words": times.get(row["id"])}
        if normalize_text == "lower":
            fields["text"] = row["text"].strip().lower()
            fields["words"] = fields["words"] and [{**w, "word": w["word"].lower()} for w in fields["words"]]
        return fields

    def read(part: Path) -> Iterator[Cut | UnusableRecord]:
        files = f"{part.name}/*/*/*.trans.txt"
        if not any(root.glob(files)):
            raise DataError(f"{part} holds no *.trans.txt files; unpack the whole archive of the split.")
        yield from replace(LIBRISPEECH, files=(files,), more=more)(root)[part.name]()

    return {part.name: partial(read, part) for part in sorted(root.iterdir()) if part.is_dir()}


def _genders(file: Path) -> dict[str, str]:
    """`{"84": "F"}` from SPEAKERS.TXT (`ID | SEX | SUBSET | MINUTES | NAME`); empty when the file is not there."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else ()
    rows = [line.split("|") for line in lines if not line.startswith(";")]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}


def _word_times(folder: Path, transcript: Path) -> dict[str, list[dict[str, Any]]]:
    """Word times of one chapter from LibriSpeech-Alignments: `id ",GO,,DO," "0.490,0.890,..."`, ends of the words and
    of the silences (empty words) between them."""
    inner = Path(*transcript.parts[-4:-1], transcript.name.replace(".trans.txt", ".alignment.txt"))
    file = next((f for f in (folder / inner, folder / "LibriSpeech" / inner) if f.exists()), None)
    times = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file else ():
        utterance, words, ends = line.replace('"', "").split(" ")
        edges = [0.0, *map(float, ends.split(","))]
        spans = zip(words.split(","), edges, edges[1:])
        times[utterance] = [{"word": word, "start": start, "end": end} for word, start, end in spans if word]
    return times


def emilia(folder: Path) -> Parts:
    """Emilia as lists of JSON lines next to folders of mp3 files; one part for each language. Raises `DataError` when
    there are none."""
    lists = sorted({*folder.glob("*_B*.jsonl"), *folder.glob("*/*_B*.jsonl"), *folder.glob("*/*/*_B*.jsonl")})
    if not lists:
        tar = next(folder.glob("**/*.tar"), None)
        instead = f"; its tar files are read by `type: shards, path: {tar.parent}`" if tar else ""
        raise DataError(f"there are no lists such as DE/DE_B00000.jsonl in {folder}{instead}")

    languages = sorted({file.name[:2].lower() for file in lists})
    return {code: partial(_listed, [f for f in lists if f.name[:2].lower() == code]) for code in languages}


def granary(folder: Path, audio_folder: str | None = None) -> Parts:
    """Granary's manifests, as NeMo has them; a part for each file. `audio_folder`: folder that their paths start from.
    Null: the manifest's. Raises `DataError` when there are none."""
    lists = sorted(folder.glob("**/*.jsonl"))
    if not lists:
        raise DataError(f"there are no manifests (*.jsonl) in {folder}")
    audio = None if audio_folder is None else Path(audio_folder).expanduser()
    return {file.relative_to(folder).with_suffix("").as_posix(): partial(_listed, [file], audio) for file in lists}


def _listed(files: list[Path], audio_folder: Path | None = None) -> Iterator[Cut | UnusableRecord]:
    """The records of lists of JSON lines."""
    from stentor.data.layouts.recognise import recognise

    for file in files:
        yield from read_cuts(recognise(file, folder=audio_folder))


FILLER = re.compile(r"\{\w+\}|<unk>|<sil>")
"""Marks of TED-LIUM for sounds that are not words."""


def _spoken(file: Path, row: Mapping[str, str]) -> dict[str, Any] | None:
    """The times and words of a line of an STM file."""
    if row["text"].strip() == "ignore_time_segment_in_scoring":
        return None
    text = " ".join(word for word in row["text"].split() if not FILLER.fullmatch(word))
    start = float(row["start"])
    return {"text": re.sub(r" (?='\w)|\(\d\)", "", text), "start": start, "duration": float(row["end"]) - start}


TEDLIUM = Table(
    files=("**/stm/*.stm",),
    path=r"/(?P<split>[^/]+)/stm/(?P<stem>[^/]+)\.stm$",
    columns=("talk", "channel", "speaker", "start", "end", "label", "text"),
    separator=None,
    audio=("../sph/{stem}",),
    record={"id": "{stem}-{index}", "speaker": "{speaker}", "language": "en"},
    more=_spoken,
)
MARKS = {"<COMMA>": ",", "<PERIOD>": ".", "<QUESTIONMARK>": "?", "<EXCLAMATIONPOINT>": "!"}
NO_SPEECH = {"<SIL>", "<MUSIC>", "<NOISE>", "<OTHER>"}


def gigaspeech(folder: Path) -> Parts:
    """GigaSpeech by GigaSpeech.json; its subsets are the parts. Marks such as <COMMA> become punctuation. Raises
    `DataError` when the file is missing or not as published."""
    file = folder / "GigaSpeech.json"
    try:
        audios = json.loads(file.read_bytes())["audios"]
    except OSError:
        raise DataError(f"there is no {file}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not as GigaSpeech publishes it ({type(error).__name__}: {error})") from None

    def records(subset: str) -> Iterator[Cut | UnusableRecord]:
        for audio in audios:
            for segment in audio["segments"]:
                if subset in segment["subsets"]:
                    yield _segment(folder / audio["path"], segment, f"{file}: {segment['sid']}")

    subsets = sorted({s for audio in audios for segment in audio["segments"] for s in segment["subsets"]})
    return {subset.strip("{}"): partial(records, subset) for subset in subsets}


def _segment(audio: Path, segment: dict[str, Any], where: str) -> Cut | UnusableRecord:
    words = [MARKS.get(word, word) for word in segment["text_tn"].split()]
    if NO_SPEECH & set(words):
        return UnusableRecord(segment["sid"], "no_speech", f"{where}: marked as {' '.join(words)}.")
    text = re.sub(r" (?=[,.?!])", "", " ".join(words))
    start, end = segment["begin_time"], segment["end_time"]
    record = {"id": segment["sid"], "text": text, "language": "en", "start": start, "duration": end - start}
    return found_cut(record | ({"speaker": s} if (s := segment["speaker"]) != "N/A" else {}), audio, where)
