"""`jsonl`: a manifest in the contract's format, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from stentor.data.jsonl import read_cuts
from stentor.data.storage import StoragePath
from stentor.sources.base import Source

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord
    from stentor.data.record_index import RecordFilter, RecordIndex


class Jsonl(Source):
    """Recordings listed in a JSONL manifest, plain or gzipped.

    The header of an audio file is opened only where a record has no `duration`; whether the others exist is looked up
    by listing each folder once, so 100,000 records with durations take seconds even on a network drive. For millions
    of records make an index first (`stentor prepare index`, docs/large_data.md): then none is held in memory.
    """

    type: Literal["jsonl"] = "jsonl"
    path: StoragePath
    """The manifest. Relative `audio_path`s in it start from its folder."""

    def index(self) -> RecordIndex | None:
        from stentor.data.record_index import RecordIndex, index_folder

        path, wanted = self.path.expanduser(), self.record_filter()
        return RecordIndex(path, wanted) if index_folder(path, wanted).exists() else None

    def record_filter(self) -> RecordFilter:
        """Which records an index of this source holds."""
        from stentor.data.record_index import UNFILTERED, RecordFilter

        if not self.filtered:
            return UNFILTERED
        keys = {"where", "exclude", "skip", "limit", "language", "channel"}
        settings = self.model_dump(mode="json", include=keys, exclude_defaults=True)
        return RecordFilter(settings, self.wanted if self.where or self.exclude else None, self.skip, self.limit)

    def records(self) -> Iterator[Cut | UnusableRecord]:
        yield from read_cuts(self.path.expanduser())
