"""Manifests: `jsonl`, one record a line in the contract's format, and `manifest`, cuts of lhotse or a Shar folder."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stentor.data.cut import Cut, UnusableRecord, set_silent
from stentor.data.fields import seconds_field
from stentor.data.jsonl import LHOTSE, FileIndex, each_line
from stentor.data.layouts.cuts import check_audio_folder, places_of, read_cuts
from stentor.data.layouts.reading import Reading
from stentor.data.storage import StoragePath, is_remote, join
from stentor.data.storage_cache import local_copy, prefetch
from stentor.errors import DataError
from stentor.sources.base import Source
from stentor.sources.lhotse_recipe import Fixing, Part
from stentor.text.field_names import Field

if TYPE_CHECKING:
    from stentor.data.record_index import RecordFilter, RecordIndex


class Jsonl(Source):
    """Recordings listed in a JSONL manifest, plain or gzipped.

    The header of an audio file is only read where a record has no `duration`. Other files are checked by listing each
    folder once, so 100,000 records with durations take seconds even on a network drive. For millions of records make an
    index first (`stentor prepare index`, docs/large_data.md): then no record is kept in memory.
    """

    type: Literal["jsonl"] = "jsonl"
    path: StoragePath
    """The manifest."""
    audio_folder: StoragePath | None = None
    """Folder that relative `audio_path`s in the manifest start from; `.` is the working directory. Null: the manifest's
    folder."""
    columns: dict[Field, str | int] = {}
    """Keys or columns that are named otherwise, as `{audio_path: file, text: words}`; a number is that of a column,
    from 1. Times whose name ends in `_ms` are milliseconds. Empty: the layout is recognised by the content."""

    _reading: Reading | None = None

    def index(self) -> RecordIndex | None:
        from stentor.data.record_index import RecordIndex, index_folder

        path, wanted = self.path.expanduser(), self.record_filter()
        if not index_folder(path, wanted).exists():
            return None
        check_audio_folder(self.reading())
        return RecordIndex(path, wanted)

    def record_filter(self) -> RecordFilter:
        """Selection of the records that an index of this source holds."""
        from stentor.data.record_index import UNFILTERED, RecordFilter

        folder = self._folder()
        if not self.filtered and folder is None and not self.columns:
            return UNFILTERED
        keys = {"where", "exclude", "skip", "limit", "language", "channel", "audio_folder", "columns"}
        settings = self.model_dump(mode="json", include=keys, exclude_defaults=True)
        wanted = self.wanted if self.where or self.exclude else None
        return RecordFilter(settings, wanted, self.skip, self.limit, folder, self.columns)

    def records(self) -> Iterator[Cut | UnusableRecord]:
        yield from read_cuts(self.reading())

    def reading(self) -> Reading:
        """The file's layout and its records."""
        from stentor.data.layouts.recognise import recognise

        self._reading = recognise(self.path.expanduser(), self.columns, self._folder())
        return self._reading

    def places(self, ids: Collection[str]) -> dict[str, str]:
        return places_of(self.reading(), ids) if ids else {}

    def notes(self) -> tuple[str, ...]:
        return () if self._reading is None else self._reading.notes

    def _folder(self) -> Path | None:
        return None if self.audio_folder is None else self.audio_folder.expanduser()


class Manifest(Source):
    """Manifests of lhotse: cuts (`*.jsonl`, `*.jsonl.gz`), a Shar folder, or recordings with the supervisions beside
    them, which are joined."""

    type: Literal["manifest"] = "manifest"
    path: StoragePath
    """The manifest of cuts, of recordings or of supervisions, or the Shar folder or the folder of manifests. Relative
    audio paths start from the working directory, as in lhotse, or from the manifest's folder."""
    utterances: bool = False
    """Make one record from each supervision (transcribed segment) instead of one from each cut."""
    empty: bool = False
    """Include cuts without supervisions, such as silent windows, as recordings without speech, for diarization."""
    stream: bool = False
    """Stream from front to back without listing first, for manifests too large for memory. Items are then only shuffled
    within a window, and a resumed run reads up to its place again."""

    _pair: tuple[Path, Path] | None = None

    @property
    def streaming(self) -> bool:  # type: ignore[override]
        return self.stream

    def records(self) -> Iterator[Cut | UnusableRecord]:
        from stentor.data.layouts.by_path import pair_of

        path = self.path.expanduser()
        if pair := pair_of(path):
            cuts = self._joined(*pair)
        else:
            cuts = _shar(path, self.stream) if path.is_dir() else self._cuts(path)
        if self.utterances:
            return split_utterances(cuts)
        return (c if isinstance(c, UnusableRecord) else set_silent(c) for c in cuts) if self.empty else cuts

    def notes(self) -> tuple[str, ...]:
        if self._pair is None:
            return ()
        each = "; `utterances: true` makes a record of each supervision" if not self.utterances else ""
        return (f"{self._pair[0].name} was joined with {self._pair[1].name}{each}.",)

    def _joined(self, recordings: Path, supervisions: Path) -> Iterator[Cut | UnusableRecord]:
        """Whole recordings with their supervisions; those that lack the other are counted."""
        from lhotse import load_manifest

        self._pair, files, fixing = (recordings, supervisions), FileIndex(), Fixing()
        try:
            left, right = fixing(load_manifest(recordings), load_manifest(supervisions))
        except (AttributeError, AssertionError, KeyError, OSError, TypeError, ValueError) as error:
            kind = f"{type(error).__name__}: {error}"
            raise DataError(f"{recordings} and {supervisions} are no recordings and supervisions ({kind}).") from None
        part = Part({"recordings": left, "supervisions": right})
        fixing.assign([part])
        for cut in part.cuts(self.empty):
            usable = not isinstance(cut, UnusableRecord)
            yield _located(cut, recordings.parent, files, str(recordings)) if usable else cut

    def _cuts(self, path: Path) -> Iterator[Cut | UnusableRecord]:
        files = FileIndex()

        def make(record: dict[str, Any], number: int, where: str) -> Cut | UnusableRecord:
            if record.get("type") not in LHOTSE:
                message = "this is not a lhotse cut; load a manifest of plain records with `type: jsonl`."
                raise DataError(f"{where}: {message}")
            return _located(deserialize(record, where), path.parent, files, where)

        yield from each_line(path, make, UnusableRecord)


def deserialize(record: dict[str, Any], where: str) -> Cut:
    """The lhotse cut of a manifest's line. Raises DataError."""
    from lhotse.serialization import deserialize_item

    try:
        cut = deserialize_item(record)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        raise DataError(f"{where}: not a valid lhotse cut ({type(error).__name__}: {error}).") from None
    for key, seconds in (("start", cut.start), ("duration", cut.duration)):
        seconds_field({key: seconds}, key, where)
    return cut


def split_utterances(cuts: Iterator[Cut | UnusableRecord]) -> Iterator[Cut | UnusableRecord]:
    """One cut for each supervision of each cut, named after the supervision; its times start from the new cut's."""
    from lhotse.cut import MixedCut, MonoCut
    from lhotse.utils import fastcopy

    for cut in cuts:
        if isinstance(cut, UnusableRecord):
            yield cut
            continue
        if isinstance(cut, MixedCut):
            yield from cut.trim_to_supervisions(keep_overlapping=False)
            continue
        for supervision in cut.supervisions:
            start, end = max(0.0, supervision.start), min(supervision.end, cut.duration)
            if end <= start:
                message = f"{supervision.id} lies outside of its recording {cut.id}."
                yield UnusableRecord(supervision.id, "empty", message)
                continue
            fields = {
                "id": supervision.id,
                "start": round(cut.start + start, 6),
                "duration": round(end - start, 6),
                "supervisions": [fastcopy(supervision, start=0.0, duration=round(end - start, 6))],
            }
            if isinstance(supervision.channel, int):
                yield MonoCut(**fields, channel=supervision.channel, recording=cut.recording, custom=cut.custom)
            elif isinstance(supervision.channel, list) and set(supervision.channel) <= set(_channels(cut)):
                yield fastcopy(cut, **fields, channel=supervision.channel)  # CHiME-6: both ears of one speaker
            else:
                yield fastcopy(cut, **fields)


def _channels(cut: Cut) -> list[int]:
    from lhotse.cut import MultiCut

    return list(cut.channel) if isinstance(cut, MultiCut) else []


def _located(cut: Cut, folder: Path, files: Any, where: str) -> Cut | UnusableRecord:
    """The cut with its audio files found: from the working directory or from the manifest's folder."""
    from lhotse.cut import MixedCut, PaddingCut

    parts = [t.cut for t in cut.tracks] if isinstance(cut, MixedCut) else [cut]
    for part in parts:
        if isinstance(part, PaddingCut) or part.recording is None:
            continue
        for i, source in enumerate(part.recording.sources):
            if source.type != "file" or files.exist(str(source.source)):
                continue
            beside = join(folder, source.source)
            if os.path.isabs(source.source) or not files.exist(str(beside)):
                return UnusableRecord(cut.id, "missing", f"{where}: the audio file {source.source} does not exist.")
            part.recording.sources[i] = replace(source, source=str(beside))
    return cut


def _shar(folder: Path, stream: bool) -> Iterator[Cut | UnusableRecord]:
    """The cuts of a Shar folder: lhotse's own sequential reader, or listed with the place of their audio."""
    from lhotse import CutSet

    shards = sorted(folder.glob("cuts.*.jsonl*"))
    if not shards:
        raise DataError(f"{folder} is not a Shar folder: it holds no cuts.*.jsonl.gz.")
    if stream and not is_remote(folder):
        yield from CutSet.from_shar(in_dir=folder)
        return
    for cuts, following in zip(shards, [*shards[1:], None]):
        if following is not None:
            prefetch(_audio_of(following))
        yield from _shard(cuts)


def _audio_of(cuts: Path) -> Path:
    return cuts.parent / f"recording.{cuts.name.split('.')[1]}.tar"


def _shard(cuts: Path) -> Iterator[Cut | UnusableRecord]:
    """The cuts of one shard; each one's recording points into the tar file, so that any cut can be read at any time."""
    audio = _audio_of(cuts)
    if not audio.exists():
        raise DataError(f"{audio} does not exist: the Shar folder has no audio for {cuts.name}.")
    places: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(local_copy(audio), "r:") as tar:
            for member in tar:
                name, _, suffix = member.name.rpartition(".")
                if suffix != "json":
                    places[name] = (member.offset_data, member.size)
    except tarfile.TarError as error:
        raise DataError(f"{audio} is not a readable tar file ({error}).") from None

    def make(record: dict[str, Any], number: int, where: str) -> Cut | UnusableRecord:
        cut = deserialize(record, where)
        if cut.id not in places:
            raise DataError(f"{audio} holds no audio of the cut '{cut.id}' that {cuts.name} lists.")
        at, size = places[cut.id]
        cut.custom = {**(cut.custom or {}), "shar": {"path": str(audio), "offset": at, "size": size}}
        return cut

    yield from each_line(cuts, make, UnusableRecord)
