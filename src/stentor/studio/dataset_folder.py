"""A data set: a folder of recordings with their texts, kept on disk as they are made.

    FOLDER/{audio/*.wav, manifest.jsonl, dataset.json}
    FOLDER/{train,held_out}.jsonl           the division, see train_test_split.py
    FOLDER/removed.jsonl                    what can still be put back; its files stay in audio/

A trimmed recording has a new file, and the `untrimmed` fields of its record name the old one (dataset/trimming.py).

A recording is a WAV file that is on the disk before the manifest names it; a change of the manifest is one appended
line or one renamed file. So whatever is killed in the middle, the data set is as before or as after.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.errors import ConfigError, StentorError
from stentor.studio import train_test_split
from stentor.studio.files import (
    Record,
    append_line,
    clean_text,
    files_of,
    inside,
    label,
    locked,
    new_id,
    read_json,
    read_records,
    record_line,
    record_lines,
    write_bytes,
    write_json,
)

MOST_RECORDS = 50_000
"""Records of the largest data set; larger ones are trained on from their own manifests."""
RATES = (4000, 192_000)
"""Sampling rates in Hz of recordings that are taken."""
REMOVED_FOR = 30 * 24 * 3600.0
"""Seconds for which a removed recording can be put back."""
OWN_KEYS = frozenset({"prompt", "draft", "untrimmed"})
"""Keys of a record that mean something in the studio only."""
MACHINE = frozenset({"label_source", "round", "confidence", "agreement", "labelled_by"})
"""Keys of a record whose text a recogniser wrote."""


class DataSet:
    """A folder of recordings. Every method reads the disk: any number of pages and processes may use it at once."""

    def __init__(self, folder: Path):
        self.folder, self.name = folder, folder.name
        self.manifest = folder / "manifest.jsonl"

    @property
    def about(self) -> dict[str, Any]:
        """Content of `dataset.json`: `name`, `language`, `created` and what was added by `describe`."""
        return read_json(self.folder / "dataset.json")

    def describe(self, **facts: Any) -> None:
        """Add facts (plain data) to `dataset.json`."""
        with locked(self.folder):
            write_json(self.folder / "dataset.json", {**self.about, **facts})

    def records(self) -> list[Record]:
        """The manifest's records in order. A last line that a killed process left unfinished is left out.

        Raises StentorError for another line that is not a record, with its number.
        """
        if not self.manifest.exists():
            return []
        lines = self.manifest.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("audio_path"), str):
                records.append({**record, "id": str(record.get("id") or Path(record["audio_path"]).stem)})
            elif number < len(lines):
                raise StentorError(f"{self.name}/manifest.jsonl:{number}: this is no record with an audio_path.")
        return records

    def record(self, id: str) -> Record:
        """One record. Raises ConfigError when it is not there."""
        for record in self.records():
            if record["id"] == id:
                return record
        raise ConfigError(f"The recording {str(id)[:80]!r} is not in {self.name}: it may have been removed.")

    def audio(self, record: Record) -> Path:
        """The file of a record: always one below the data set's own `audio`. Raises ConfigError for another path (a
        manifest may have been written by hand)."""
        return inside(self.folder, "audio", str(record["audio_path"]).removeprefix("audio/"))

    def add(
        self,
        audio: np.ndarray,
        rate: int,
        text: str,
        language: str | None = None,
        speaker: str | None = None,
        prompt: str | None = None,
        **more: Any,
    ) -> Record:
        """Save a recording, float32 mono [samples] at `rate` Hz, as 16-bit WAV at that rate, and its record.

        `prompt` is the id of the phrase that was read; `more` are further keys of the record. On the disk when this
        returns. Raises AudioError for audio that cannot be kept, ConfigError for a text that is too long, StentorError
        when the disk is full (then nothing has changed).
        """
        record = {
            **more,
            "id": new_id(),
            "audio_path": "",
            "text": clean_text(text),
            "language": label(language or self.about.get("language")),
            "speaker": label(speaker),
            "prompt": label(prompt),
        }
        with locked(self.folder):
            if self.manifest.exists() and self.manifest.read_bytes().count(b"\n") >= MOST_RECORDS:
                raise ConfigError(f"The data set {self.name} holds {MOST_RECORDS} recordings: begin another one.")
            with self.saved(record, audio, rate) as record:
                append_line(self.manifest, record_line(record))
        return record

    def redo(self, id: str, audio: np.ndarray, rate: int) -> Record:
        """Replace the audio of a record; its text stays, and what was measured or guessed of the old audio goes. Raises
        as `add` and `record`."""
        with locked(self.folder):
            old = self.record(id)
            fields = {k: v for k, v in old.items() if k not in ("words", "segments", "start", "duration", "untrimmed")}
            with self.saved(fields, audio, rate) as new:
                self.rewrite(lambda r: new if r["id"] == id else r)
            self.forget([old])
        return new

    def edit(self, id: str, **fields: Any) -> Record:
        """Change `text`, `language` or `speaker` of a record. A text that a person gave, even if unchanged, is no
        longer a draft and no machine's label any more; a new one has no word times. Raises as `record`."""
        return self.edit_all({id: fields})[0]

    def edit_all(self, changes: Mapping[str, Mapping[str, Any]]) -> list[Record]:
        """As `edit`, for many records by id, written once."""
        with locked(self.folder):
            old = {r["id"]: r for r in self.records() if r["id"] in changes}
            new = {id: _edited(old.get(id) or self.record(id), fields) for id, fields in changes.items()}
            if new:
                self.rewrite(lambda r: new.get(r["id"], r))
        return list(new.values())

    def suggest(self, labels: Mapping[str, Mapping[str, Any]]) -> int:
        """Write machines' labels, records by id, as drafts; a text that a person gave stays. Answers how many."""
        with locked(self.folder):
            open_ids = {r["id"] for r in self.records() if r.get("draft") or not r.get("text")} & labels.keys()
            drafts = {id: {k: labels[id][k] for k in ("text", *MACHINE) if k in labels[id]} for id in open_ids}
            self.rewrite(lambda r: {**r, **drafts[r["id"]], "draft": True} if r["id"] in drafts else r)
        return len(drafts)

    def remove(self, ids: Iterable[str]) -> None:
        """Take recordings out of the data set. `put_back` undoes it within 30 days; then their files are deleted."""
        requested, now = set(ids), time.time()
        with locked(self.folder):
            records = self._with_removed()
            expired = [r for r in records if "removed" in r and r["removed"] < now - REMOVED_FOR]
            removed = [r for r in records if r["id"] in requested and "removed" not in r]
            if removed:
                records = [{**r, "removed": now} if r in removed else r for r in records if r not in expired]
                self._keep_removed(records)
                self.rewrite(lambda r: None if r["id"] in requested else r)
                self.forget(expired)

    def removed(self) -> list[Record]:
        """The recordings that can be put back, the one that was removed last first."""
        return sorted((r for r in self._with_removed() if "removed" in r), key=lambda r: -r["removed"])

    def put_back(self, ids: Iterable[str]) -> None:
        """Undo `remove`, each recording at its place. Raises ConfigError for one whose file is gone."""
        requested = set(ids)
        with locked(self.folder):
            records = self._with_removed()
            restored = [r for r in records if r["id"] in requested and "removed" in r]
            for record in restored:
                path = self.audio(record)
                earlier = inside(self.folder, "removed", path.name)  # where versions before moved such files to
                if not path.is_file() and earlier.is_file():
                    earlier.rename(path)
                if not path.is_file():
                    raise ConfigError(f"The recording {record['id']} cannot be put back: its file is gone.")
            if restored:
                records = [{k: v for k, v in r.items() if k != "removed"} if r in restored else r for r in records]
                write_bytes(self.manifest, record_lines([r for r in records if "removed" not in r]))
                self._keep_removed(records)

    def forget_removed(self) -> None:
        """Delete what was removed, for good."""
        with locked(self.folder):
            removed = self.removed()
            write_bytes(self._bin, b"")
            self.forget(removed)

    def split(self, share: float = train_test_split.SHARE, by: str = "text") -> dict[str, Path]:
        """Split again: write `train.jsonl` and `held_out.jsonl` beside the manifest and remember the choice; answers
        both paths.

        By `text` no sentence, by `speaker` no voice is on both sides. About `share` of the recordings are held out,
        those that hash lowest. Records without text, and those whose text is a machine's label that no one has looked
        at, are on neither side. Raises ConfigError where one side would be empty.
        """
        train_test_split.check(share, by)
        with locked(self.folder):
            records = self.usable()
            sides = train_test_split.drawn(records, share, by)
            write_json(self.folder / "dataset.json", {**self.about, "split": {"by": by, "share": share}})
            return self._divide(records, sides)

    def parts(self) -> dict[str, Path]:
        """The files `train` and `held_out` of the division, as a run reads them: made on first use (as `division`
        says), afterwards brought up to date when recordings came, went or were corrected. Every recording stays on its
        side, and a new one joins the recordings of its text (or speaker). Raises ConfigError where one side would be
        empty."""
        with locked(self.folder):
            share, by = self.division()
            records, sides = self._placed()
            if not self.about.get("split"):  # or a speaker who is named later would change the split
                write_json(self.folder / "dataset.json", {**self.about, "split": {"by": by, "share": share}})
            return self._divide(records, sides)

    def division(self) -> tuple[float, str]:
        """The share that is held out, and what is kept together (`text` or `speaker`), as chosen or by default."""
        share, by = train_test_split.chosen(self.about)
        if self.about.get("split") or self._known():
            return share, by
        return share, train_test_split.suggested(self.usable())

    def sides(self) -> dict[str, str]:
        """`train` or `held_out` by id, as `parts` would write them now; empty before the first division. Records
        without text are left out."""
        if not self._known():
            return {}
        try:
            return self._placed()[1]
        except ConfigError:  # too few are left to be divided
            return {}

    def move(self, id: str, side: str) -> list[str]:
        """Put a recording on the side `train` or `held_out`, with all that must stay with it (the same text, or the
        same speaker); answers their ids. Raises ConfigError when it has no text and when it is all that a side has."""
        if side not in train_test_split.SIDES:
            raise ConfigError(f"A recording is moved to train or held_out, not to {side!r}.")
        with locked(self.folder):
            self.record(id)
            records, sides = self._placed()
            if id not in sides:
                raise ConfigError(
                    "A recording without a text is neither trained on nor held out: write its text first."
                )
            groups = train_test_split.grouped(records, self.division()[1])
            ids = next(ids for ids in groups.values() if id in ids)
            moved = {**sides, **dict.fromkeys(ids, side)}
            if len(set(moved.values())) < 2:
                raise ConfigError("It is all that this side has: put another recording there first.")
            self._divide(records, moved)
        return ids

    def usable(self) -> list[Record]:
        """Whether a record can be used for training and evaluation: it has a text that is no machine's label, and names
        a file of this data set (a manifest may have been written by hand, and a run reads whatever it names)."""
        records = [r for r in self.records() if isinstance(r.get("text"), str) and r["text"].strip()]
        return [r for r in records if r.get("label_source") != "pseudo" and self._has_audio_inside(r)]

    def _has_audio_inside(self, record: Record) -> bool:
        with contextlib.suppress(ConfigError):
            inside_audio = self.audio(record).is_relative_to(self.folder / "audio")
            return inside_audio and not Path(record["audio_path"]).is_absolute()
        return False

    def _known(self) -> dict[str, str]:
        """Sides as the two files say. A half-written change, which left a record in both, is taken as not made."""
        return {r["id"]: side for side in train_test_split.SIDES for r in read_records(self.folder / f"{side}.jsonl")}

    def _placed(self) -> tuple[list[Record], dict[str, str]]:
        records, known, choice = self.usable(), self._known(), self.division()
        if known:
            return records, train_test_split.updated(records, *choice, known)
        return records, train_test_split.drawn(records, *choice)

    def _divide(self, records: Sequence[Record], sides: Mapping[str, str]) -> dict[str, Path]:
        """Write the two files where they say something else."""
        paths = {side: inside(self.folder, f"{side}.jsonl") for side in train_test_split.SIDES}
        for side, path in paths.items():
            data = record_lines([r for r in records if sides[r["id"]] == side])
            if not path.is_file() or path.read_bytes() != data:
                write_bytes(path, data)
        return paths

    @contextlib.contextmanager
    def saved(self, record: Record, audio: np.ndarray, rate: int) -> Iterator[Record]:
        """The record with its audio in a new file, which goes again if the manifest cannot be made to name it."""
        from stentor.audio.io import encode

        if not RATES[0] <= rate <= RATES[1]:
            raise ConfigError(f"Recordings are kept at {RATES[0]} to {RATES[1]} Hz, not at {rate}.")
        data = encode(audio, rate, "the recording", "wav")
        name = f"{record['id']}-{secrets.token_hex(2)}.wav"
        write_bytes(inside(self.folder / "audio", name), data)
        full = {**record, "audio_path": f"audio/{name}", "duration": round(len(audio) / rate, 4)}
        try:
            yield {k: v for k, v in full.items() if v is not None}
        except BaseException:
            self.forget([full])
            raise

    def rewrite(self, change: Callable[[Record], Record | None]) -> None:
        """The manifest with every record as `change` answers it; None removes it."""
        write_bytes(self.manifest, record_lines([new for r in self.records() if (new := change(r)) is not None]))

    def forget(self, records: Iterable[Record]) -> None:
        """Delete the files of records that are gone, where no other record, also a removed one, names the same file."""
        named = {name for record in self._with_removed() for name in files_of(record)}
        for name in {name for record in records for name in files_of(record)} - named:
            with contextlib.suppress(ConfigError):  # a path that leads out: not ours to touch
                self.audio({"audio_path": name}).unlink(missing_ok=True)

    @property
    def _bin(self) -> Path:
        return self.folder / "removed.jsonl"

    def _with_removed(self) -> list[Record]:
        """The records, and at their places those that were removed, with the time of it in `removed`."""
        records = self.records()
        listed = {r["id"] for r in records}
        for record in read_records(self._bin):
            removal = record.get("removed")
            if record["id"] not in listed and isinstance(removal, dict) and removal.keys() >= {"time", "place"}:
                records.insert(removal["place"], {**record, "removed": removal["time"]})
        return records

    def _keep_removed(self, records: Sequence[Record]) -> None:
        removed = [(i, r) for i, r in enumerate(records) if "removed" in r]
        write_bytes(self._bin, record_lines({**r, "removed": {"time": r["removed"], "place": i}} for i, r in removed))


def _edited(old: Record, fields: Mapping[str, Any]) -> Record:
    if unknown := fields.keys() - {"text", "language", "speaker"}:
        raise ConfigError(f"{', '.join(sorted(unknown))} of a recording cannot be edited.")
    changed = {k: clean_text(v) if k == "text" else label(v) for k, v in fields.items()}
    stale = {"draft", *MACHINE} if "text" in changed else set()
    stale |= {"words"} if changed.get("text", old.get("text")) != old.get("text") else set()
    return {k: v for k, v in {**old, **changed}.items() if k not in stale}
