"""LibriSpeech's folder layout, with FLAC as published or any other audio format in its place.

The `corpus` source uses this instead of lhotse's recipe, which takes FLAC only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.cut import Cut, cut_from_record
from stentor.errors import ConfigError, DataError, MissingData

if TYPE_CHECKING:
    from stentor.data.cut import UnusableRecord

SUFFIXES = (".flac", ".mp3", ".wav", ".ogg", ".opus")
SPLITS = tuple(
    [f"{part}-{kind}" for kind in ("clean", "other") for part in ("dev", "test")]
    + ["train-clean-100", "train-clean-360", "train-other-500", "train-clean-5", "dev-clean-2"]
)


def librispeech(
    folder: Path, split: str | None, **options: Any
) -> dict[str, Callable[[], Iterator[Cut | UnusableRecord]]]:
    """The splits by name; calling one lists its utterances, chapter by chapter.

    `folder` holds `LibriSpeech/<split>/<speaker>/<chapter>/*.trans.txt`, or is that `LibriSpeech` folder; `split` is
    named where it is missing. Options: `normalize_text: lower` and `alignments_dir` (LibriSpeech-Alignments, for word
    times), as in lhotse's recipe. Raises `DataError` that says how the folders should lie, and `ConfigError`.
    """
    case, alignments = options.pop("normalize_text", "none"), options.pop("alignments_dir", None)
    if options or case not in ("none", "lower"):
        raise ConfigError(
            "The options of the librispeech corpus are `normalize_text: none|lower` and `alignments_dir`; got "
            + (", ".join(sorted(options)) or f"normalize_text: {case}")
            + "."
        )
    root = folder if folder.name == "LibriSpeech" else folder / "LibriSpeech"
    if not root.is_dir():
        misplaced = [name for name in SPLITS if (folder / name).is_dir()]
        shown = misplaced or [split or "train-clean-100"]
        lines = ["Data not found: the LibriSpeech folder is missing. Should be:"]
        lines += [f"  {root}/{name}/" for name in shown]
        if misplaced:
            lines += ["NOT:", *(f"  {folder}/{name}/  (missing LibriSpeech folder)" for name in shown)]
            lines += [f"Fix: mkdir {root} && mv {' '.join(str(folder / name) for name in shown)} {root}/"]
        else:
            lines += ["Unpack the archives of https://www.openslr.org/12 there, or set `download: true`."]
        raise MissingData("\n".join(lines), folder)
    genders = _genders(root / "SPEAKERS.TXT")
    parts = sorted(path for path in root.iterdir() if path.is_dir())
    return {part.name: partial(_split, part, case == "lower", alignments, genders) for part in parts}


def _split(part: Path, lower: bool, alignments: str | None, genders: dict[str, str]) -> Iterator[Cut | UnusableRecord]:
    transcripts = sorted(part.rglob("*.trans.txt"))
    if not transcripts:
        raise DataError(f"{part} holds no *.trans.txt files; unpack the whole archive of the split.")
    with ThreadPoolExecutor(8) as pool:
        for transcript in transcripts:
            times = _alignments(Path(alignments), part, transcript) if alignments else {}
            records = _records(transcript, lower, genders, times)
            yield from pool.map(partial(cut_from_record, folder=transcript.parent, where=str(transcript)), records)


def _records(transcript: Path, lower: bool, genders: dict[str, str], times: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Manifest records of one chapter."""
    files = {Path(name).stem: name for name in sorted(os.listdir(transcript.parent)) if name.endswith(SUFFIXES)}
    for number, line in enumerate(transcript.read_text(encoding="utf-8").splitlines(), 1):
        name, _, text = line.strip().partition(" ")
        if not name:
            continue
        if len(ids := name.split("-")) != 3:
            raise DataError(f"{transcript}:{number}: expected `speaker-chapter-utterance TEXT`, got {line[:40]!r}.")
        speaker, chapter, _ = ids
        record: dict[str, Any] = {
            "id": name,
            "audio_path": files.get(name, f"{name}.flac"),
            "text": text.lower() if lower else text,
            "language": "en",
            "speaker": speaker,
            "chapter": chapter,
        }
        if speaker in genders:
            record["gender"] = genders[speaker]
        if name in times:
            record["words"] = [{**w, "word": w["word"].lower()} for w in times[name]] if lower else times[name]
        yield record


def _genders(file: Path) -> dict[str, str]:
    """`{"84": "F"}` from SPEAKERS.TXT (`ID | SEX | SUBSET | MINUTES | NAME`); empty when the file is not there."""
    if not file.exists():
        return {}
    rows = [line.split("|") for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith(";")]
    return {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}


def _alignments(folder: Path, part: Path, transcript: Path) -> dict[str, list[dict[str, Any]]]:
    """Word times of one chapter from LibriSpeech-Alignments: `id ",GO,,DO," "0.490,0.890,..."`, ends of the words and
    of the silences (empty words) between them."""
    name = transcript.name.replace(".trans.txt", ".alignment.txt")
    inner = transcript.parent.relative_to(part.parent) / name
    file = next((f for f in (folder / inner, folder / "LibriSpeech" / inner) if f.exists()), None)
    times = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file else ():
        utterance, words, ends = line.replace('"', "").split(" ")
        edges = [0.0, *map(float, ends.split(","))]
        times[utterance] = [
            {"word": word, "start": start, "end": end}
            for word, start, end in zip(words.split(","), edges, edges[1:])
            if word
        ]
    return times
