"""The folder that a published data set is: audio and `metadata.jsonl` in the Hub's AudioFolder layout, and a card.

    README.md                        the data card; its metadata names the splits, licence and languages
    data/SPLIT/metadata.jsonl        a line for each record: `file_name`, then the manifest's keys
    data/SPLIT/0000/000000-ID.flac   audio, 5,000 files a folder

The Hub's viewer plays the audio, `datasets` loads it, and Stentor trains on it with `type: hub`.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.audio.io import probe
from stentor.data.fields import channel_of, seconds_field
from stentor.data.jsonl import MAX_PROBLEMS, each_line
from stentor.data.layouts.cuts import check_audio_folder
from stentor.data.layouts.recognise import recognise
from stentor.data.storage import as_path, join
from stentor.data.storage_cache import local_copy
from stentor.errors import AudioError, DataError, MissingData
from stentor.metrics.format import duration
from stentor.publish.card import plain, table
from stentor.publish.files import link_or_copy
from stentor.text.languages import known_code

PLAYED = (".wav", ".flac", ".mp3", ".ogg", ".opus")
"""Files that the Hub's viewer and `datasets` read as they are; others become FLAC."""
FOLDER = 5_000
"""Files in one folder: the Hub takes at most 10,000."""
FIRST = ("file_name", "id", "text", "language", "speaker", "duration")
"""Columns in this order, before the others in alphabetical order."""
DROPPED = ("audio_path", "start", "split", "language_id", "audio_filepath", "audio")
"""Keys that say where the audio was, or that other columns say."""
PATH = re.compile(r"(?:/|~/|[A-Za-z]:[\\/]|(?:s3|gs)://)")
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass
class SplitFacts:
    """Content of one split, for the card."""

    records: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    with_text: int = 0
    speakers: Counter[str] = field(default_factory=Counter)
    """Seconds by speaker."""
    languages: Counter[str] = field(default_factory=Counter)
    """Seconds by language."""
    rates: Counter[int] = field(default_factory=Counter)
    """Records by sample rate in Hz."""
    columns: set[str] = field(default_factory=set)


def build(
    data: Sequence[str],
    to: Path,
    repo: str | None = None,
    licence: str | None = None,
    card: Path | None = None,
    name: str | None = None,
    flac: bool = False,
    link: bool = False,
) -> list[str]:
    """Write a data set into the folder `to`; answers remarks.

    `data`: manifests, or `SPLIT=MANIFEST`, also with `,audio_folder=DIR` behind them; without a name the record's
    key `split` decides, else it is `train`. A folder means its `manifest.jsonl`. Records that are a whole file in a
    format that the Hub plays are copied byte by byte (all become FLAC with `flac`); parts of files are cut out,
    without resampling, as FLAC. The same data make the same bytes, so that a second upload sends nothing twice.
    `link`: whole files are hard links where the disk allows it, for a folder that is only read. `card` is taken
    instead of the written one. Raises DataError with a list of the records whose audio cannot be had.
    """
    splits: dict[str, list[tuple[dict[str, Any], Path, str]]] = {}
    for argument in data:
        split, manifest, audio_folder = split_and_manifest(argument)
        for record, folder, where in _records(manifest, audio_folder):
            splits.setdefault(_split(split or record.get("split") or "train", where), []).append(
                (record, folder, where)
            )
    written = {split: _write(records, to / "data" / split, flac, link) for split, records in splits.items()}
    remarks = _write_metadata({split: rows for split, (_, rows) in written.items()}, to / "data")
    facts = {split: split_facts for split, (split_facts, _) in written.items()}
    for split_facts in facts.values():
        split_facts.columns &= set(next(iter(written.values()))[1][0])
    readme = to / "README.md"
    title = name or (repo or "").rpartition("/")[2] or manifest_of(data[0]).parent.name
    if card is not None:
        shutil.copyfile(card, readme)
    else:
        readme.write_text(write_card(title, repo, licence, facts), "utf-8")
    if licence is None and card is None:
        remarks.append(
            "The card states no licence, so no one else may use the data: choose one (--license), for example "
            "cc-by-4.0."
        )
    if any(split.speakers for split in facts.values()):
        remarks.append("The speakers' names of the manifest are in it: everyone who can read it can read them.")
    return remarks


def manifest_of(text: str) -> Path:
    """The manifest of `SPLIT=MANIFEST`, `MANIFEST` or a folder with one. Raises DataError for a folder without."""
    return split_and_manifest(text)[1]


def split_and_manifest(text: str) -> tuple[str | None, Path, Path | None]:
    """(split, manifest, audio folder) of `SPLIT=MANIFEST,audio_folder=DIR`, `SPLIT=MANIFEST` or `MANIFEST`."""
    text, comma, folder = text.partition(",audio_folder=")
    split, equal, path = text.partition("=")
    if not equal or "/" in split or as_path(text).exists():
        split, path = "", text
    manifest = as_path(path).expanduser()
    if manifest.is_dir():
        if not (manifest / "manifest.jsonl").is_file():
            raise DataError(f"{manifest} has no manifest.jsonl: name the manifest itself.")
        manifest /= "manifest.jsonl"
    return split or None, manifest, as_path(folder).expanduser() if comma else None


def _split(name: Any, where: str) -> str:
    """The name as `datasets` allows it."""
    if not isinstance(name, str) or not re.fullmatch(r"\w+(?:\.\w+)*", name.replace("-", "_")):
        raise DataError(f"{where}: a split is named by letters, digits and `_`, such as train or test, not {name!r}.")
    return name.replace("-", "_")


def _records(manifest: Path, audio_folder: Path | None) -> Iterator[tuple[dict[str, Any], Path, str]]:
    def make(record: dict[str, Any], number: int, where: str) -> tuple[dict[str, Any], Path, str]:
        if not isinstance(record.get("audio_path"), str) or not record["audio_path"]:
            raise DataError(f"{where}: the record has no `audio_path`.")
        for key in ("start", "duration"):
            seconds_field(record, key, where)
        return record, audio_folder or manifest.parent, where

    reading = recognise(manifest, folder=audio_folder)
    check_audio_folder(reading)
    yield from each_line(manifest, make, reading=reading)


# Audio and metadata ---------------------------------------------------------------------------------------------------


def _write(
    records: Sequence[tuple[dict[str, Any], Path, str]], folder: Path, flac: bool, link: bool
) -> tuple[SplitFacts, list[dict[str, Any]]]:
    """The audio of one split; what is in it, and its rows. Raises DataError with the records whose audio is unusable
    (the first 20)."""
    facts, rows, problems = SplitFacts(), [], []
    seen: set[str] = set()
    for number, (record, base, where) in enumerate(records):
        name = str(record.get("id") or Path(record["audio_path"]).stem)
        if name in seen:
            name = f"{name}-{number}"
        seen.add(name)
        # Nothing of a record reaches a path but these characters: an id cannot lead out of the folder.
        file = Path(f"{number // FOLDER:04d}") / f"{number:06d}-{_slug(name)}"
        try:
            file, seconds, rate = _put(local_copy(join(base, record["audio_path"])), folder, file, record, flac, link)
        except (AudioError, MissingData) as error:
            problems.append(f"{where}: {error}")
            if len(problems) == MAX_PROBLEMS:
                break
            continue
        row = {
            **{k: v for k, v in record.items() if k not in DROPPED and not _is_place(k, v)},
            "file_name": file.as_posix(),
            "id": name,
            "duration": round(seconds, 3),
        }
        if channel_of(record) is not None:
            del row["channel"]  # the file has this one alone
        if language := record.get("language") or record.get("language_id"):
            row["language"] = language
            facts.languages[known_code(str(language))] += seconds  # type: ignore[assignment]
        if record.get("speaker"):
            facts.speakers[str(record["speaker"])] += seconds  # type: ignore[assignment]
        facts.records += 1
        facts.seconds += seconds
        facts.longest = max(facts.longest, seconds)
        facts.with_text += bool(record.get("text"))
        facts.rates[rate] += 1
        facts.columns |= set(row)
        rows.append(row)
    if problems:
        more = " (perhaps more: reading stopped there)" if len(problems) == MAX_PROBLEMS else ""
        raise DataError(
            f"{len(problems)} records cannot be published{more}; fix or remove them:\n  " + "\n  ".join(problems)
        )
    return facts, rows


def _write_metadata(splits: Mapping[str, list[dict[str, Any]]], folder: Path) -> list[str]:
    """Complete the rows and write them; answers remarks.

    `datasets` wants the same columns of the same types in every line of every split, and a column of nulls has no type:
    where a split lacks a column of strings they are empty, and other columns that a split lacks are left out.
    """
    values: dict[str, dict[str, Any]] = {split: {} for split in splits}  # one of each column that is not null
    for split, rows in splits.items():
        for row in rows:
            values[split].update({c: v for c, v in row.items() if v is not None})
    columns = {c for of in values.values() for c, value in of.items() if value is not None}
    lacking = {c for c in columns if any(of.get(c) is None for of in values.values())}
    strings = {c for c in lacking if all(isinstance(of.get(c) or "", str) for of in values.values())}
    left_out = lacking - strings
    order = [c for c in FIRST if c in columns - left_out] + sorted(columns - left_out - set(FIRST))
    for split, rows in splits.items():
        for row in rows:
            complete = {c: row.get(c) for c in order}
            row.clear()
            row.update({c: "" if v is None and values[split].get(c) is None else v for c, v in complete.items()})
        with (folder / split / "metadata.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return [f"Left out, because not every split has it: {c}." for c in sorted(left_out)]


def _put(
    source: Path, folder: Path, file: Path, record: Mapping[str, Any], flac: bool, link: bool
) -> tuple[Path, float, int]:
    """Link, copy or cut the audio of a record to `folder / file` with an ending; (file, seconds, Hz). Raises
    AudioError."""
    info = probe(source)
    start = float(record.get("start") or 0.0)
    seconds = float(info.duration - start if record.get("duration") is None else record["duration"])
    is_whole_file = start == 0 and abs(seconds - info.duration) < 0.02
    if seconds <= 0:
        raise AudioError(f"{source} has no audio from {start:g} s on.", "empty")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    channel = channel_of(record)
    if is_whole_file and channel is None and not flac and source.suffix.lower() in PLAYED:
        file = file.with_name(file.name + source.suffix.lower())
        (link_or_copy if link else shutil.copyfile)(source, folder / file)
        return file, info.duration, info.sample_rate
    file = file.with_name(file.name + ".flac")
    from stentor.audio.io import read, write
    from stentor.audio.selection import Selection

    audio = read(source, info.sample_rate, start, None if is_whole_file else seconds, False, Selection(channel))
    write(folder / file, audio, info.sample_rate)
    return file, len(audio) / info.sample_rate, info.sample_rate


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[-60:] or "record"


def _is_place(key: str, value: Any) -> bool:
    """Whether a key of a record is about files of the machine that it was made on."""
    return key.endswith(("_path", "_file")) or (isinstance(value, str) and bool(PATH.match(value)) and key != "text")


# The card -------------------------------------------------------------------------------------------------------------


def write_card(name: str, repo: str | None, licence: str | None, splits: Mapping[str, SplitFacts]) -> str:
    """README.md of a data set: what is in it, as counted, and how it is loaded."""
    records = sum(s.records for s in splits.values())
    texts = sum(s.with_text for s in splits.values())
    languages = sum((s.languages for s in splits.values()), Counter())
    rates = sum((s.rates for s in splits.values()), Counter())
    speakers = {name for s in splits.values() for name in s.speakers}
    parts = [
        f"# {plain(name)}",
        f"{records:,} recordings of speech, {duration(sum(s.seconds for s in splits.values()))}"
        + (f", by {len(speakers):,} speaker{'s' if len(speakers) != 1 else ''}" if speakers else "")
        + (f", {texts:,} of them with a transcript." if texts < records else ", all with a transcript."),
        _table(splits),
    ]
    if len(languages) > 1:
        lines = [f"* {plain(c)}: {duration(seconds)}" for c, seconds in sorted(languages.items())]
        parts += ["## Languages", "\n".join(lines)]
    columns = set().union(*(s.columns for s in splits.values()))
    parts += [
        "## What is in a record",
        "\n".join(
            [f"* `{c}`: {MEANINGS[c]}" for c in MEANINGS if c in columns]
            + [f"* `{plain(c)}`: from the manifest" for c in sorted(columns - set(MEANINGS))]
        ),
        "Sample rates: " + ", ".join(f"{rate:,} Hz ({n:,})" for rate, n in sorted(rates.items())) + ".",
    ]
    if repo is not None:
        first = next(iter(splits))
        parts += [
            "## How to use",
            f'```python\nfrom datasets import load_dataset\ndata = load_dataset("{repo}", split="{first}")\n```',
            "To train on it with Stentor:",
            f"```yaml\ndata:\n  train: [{{type: hub, name: {repo}, split: {first}}}]\n```",
        ]
    limits = ["Figures are counted from the files; no transcript was checked by a person."]
    splits_of_speaker = Counter(speaker for s in splits.values() for speaker in s.speakers)
    if shared := sum(count > 1 for count in splits_of_speaker.values()):
        limits.append(
            f"{shared} speaker{'s are' if shared > 1 else ' is'} in more than one split, so that scores on these say "
            "nothing of new voices."
        )
    limits.append(f"Licence: {licence}." if licence else "No licence is stated, so that all rights are reserved.")
    parts += ["## Limits", "\n".join(f"* {line}" for line in limits)]
    return f"---\n{_card_data(name, licence, splits)}\n---\n\n" + "\n\n".join(parts) + "\n"


def _card_data(name: str, licence: str | None, splits: Mapping[str, SplitFacts]) -> str:
    """The YAML at the head of the card, as the Hub reads it."""
    from huggingface_hub import DatasetCardData

    records = sum(s.records for s in splits.values())
    codes = {code for s in splits.values() for code in s.languages}
    texts = any(s.with_text for s in splits.values())
    return DatasetCardData(
        pretty_name=name,
        license=licence,
        language=sorted({c.split("-")[0] for c in codes if re.fullmatch(r"[a-z]{2,3}(-\w+)?", c)}) or None,
        task_categories=["automatic-speech-recognition"] if texts else ["audio-classification"],
        size_categories=[next((label for most, label in SIZES if records < most), "n>1M")],
        tags=["audio", "speech", "stentor"],
        configs=[
            {
                "config_name": "default",
                "default": True,
                "data_files": [{"split": split, "path": f"data/{split}/**"} for split in splits],
            }
        ],
    ).to_yaml()


def _table(splits: Mapping[str, SplitFacts]) -> str:
    """A row for each split, in Markdown."""
    rows = []
    for split, s in splits.items():
        languages = ", ".join(plain(c) for c in sorted(s.languages)) or "not declared"
        speakers = f"{len(s.speakers):,}" if s.speakers else "not declared"
        rows.append((split, f"{s.records:,}", duration(s.seconds), f"{s.longest:.1f} s", speakers, languages))
    return table(("split", "records", "audio", "longest", "speakers", "languages"), rows)


MEANINGS = {
    "file_name": "the audio (as `audio` in `datasets` and in the viewer)",
    "id": "name of the record",
    "text": "what is said",
    "language": "language code",
    "speaker": "who speaks",
    "duration": "seconds of audio",
    "words": "when each word was said: `word`, `start`, `end` in seconds",
    "segments": "speaker segments: `speaker`, `start`, `end` in seconds",
    "instruct": "the voice in words",
}
