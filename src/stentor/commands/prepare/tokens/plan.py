"""Shard plan: which samples go into which shard, from metadata alone; the same after a kill."""

import hashlib
import random
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stentor.commands.prepare_options import TokensOptions
from stentor.data.cut import Cut, UnusableRecord, record_from_cut, text_of
from stentor.data.fields import channel_of
from stentor.data.record_table import RecordTable, Selection
from stentor.errors import DataError
from stentor.pipeline.journal import Fingerprint
from stentor.pipeline.runner import NAMED
from stentor.sources.shards import GENERATION_KEYS

GROUP_ITEMS, GROUP_SECONDS = 64, 600.0
"""Most records and most audio that a process is given at a time: what a kill can cost."""
LONGEST_NAME = 120
"""Characters of a member's name: with its ending it fits every file system."""
UNFIT = re.compile(r'[\x00-\x20\x7f\s./\\<>:"|?*]')
"""Characters that names of members avoid: those that some file system refuses, spaces, and dots, because WebDataset
takes what stands before the first one for the sample's key."""

Sample = tuple[str, "Cut"]
"""The name of its member in the tar, and the record."""


@dataclass(frozen=True)
class SampleGroup:
    """Consecutive samples of a shard that are made together."""

    shard: int
    number: int
    first: int
    """Number of its first sample in the shard."""
    samples: Sequence[Sample]

    @property
    def id(self) -> str:
        """Shard, first sample and number of samples: another one for groups of another size."""
        return f"{self.shard}/{self.first}+{len(self.samples)}"

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class ShardPlan:
    """All shards."""

    records: int
    """Records of the data, used or not."""
    shards: list[list[SampleGroup]]
    rejects: list[UnusableRecord]
    """Records that are left out already without their audio."""
    fingerprint: str
    """Another one when a record is added, taken away or changed."""


def plan_shards(records: Iterable[Cut | UnusableRecord], options: TokensOptions) -> ShardPlan:
    """Leave out what cannot or shall not be used, shuffle by the seed and divide evenly into shards. Raises DataError
    for ids that occur more than once."""
    digest = Fingerprint(lambda r: [r.id] if isinstance(r, UnusableRecord) else describe(r))
    table: RecordTable[Cut | UnusableRecord] = RecordTable()
    rejects: list[UnusableRecord] = []
    ids, stems, seconds, rows = array("Q"), array("Q"), array("d"), array("Q")
    for number, record in enumerate(digest.through(records)):
        table.append(record)
        ids.append(_hash(record.id))
        problem = _problem(record, options)
        if problem is not None:
            rejects.append(UnusableRecord(record.id, *problem))
            seconds.append(0.0)
        elif not isinstance(record, UnusableRecord):
            stems.append(_hash(member_stem(record.id)))
            seconds.append(record.duration)
            rows.append(number)
    _refuse_duplicates(table, ids)
    names = MemberNames(stems)

    def sample(row: int) -> Sample:
        cut: Any = table[row]
        return names.of(cut.id), cut

    random.Random(f"shards/{options.seed}").shuffle(rows)
    count = max(-(-len(rows) // options.samples_per_shard), min(options.min_shards, len(rows)))
    ends = [len(rows) * (i + 1) // count for i in range(count)]
    shards = [
        split_groups(i, Selection(sample, rows[start:end]), [seconds[row] for row in rows[start:end]])
        for i, (start, end) in enumerate(pairwise([0, *ends]))
    ]
    return ShardPlan(len(table), shards, rejects, str(digest))


def _hash(text: str) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _problem(record: Cut | UnusableRecord, options: TokensOptions) -> tuple[str, str] | None:
    """Reason and message for a record that is left out."""
    if isinstance(record, UnusableRecord):
        return record.reason, record.message
    if not (text_of(record) or "").strip():
        return "empty_text", f"{record.id} has no text."
    length = f"{record.id} has {record.duration:.2f} s,"
    if options.min_seconds is not None and record.duration < options.min_seconds:
        return "too_short", f"{length} less than --min-seconds {options.min_seconds:g}."
    if options.max_seconds is not None and record.duration > options.max_seconds:
        return "too_long", f"{length} more than --max-seconds {options.max_seconds:g}."
    return None


def split_groups(shard: int, samples: Sequence[Sample], seconds: Sequence[float]) -> list[SampleGroup]:
    """The samples of a shard, of so many seconds each, in groups, in order."""
    firsts: list[int] = []
    total = 0.0
    for number, length in enumerate(seconds):
        total += length
        if not firsts or number - firsts[-1] == GROUP_ITEMS or total > GROUP_SECONDS:
            firsts.append(number)
            total = length
    groups = enumerate(pairwise([*firsts, len(seconds)]))
    return [SampleGroup(shard, i, first, samples[first:end]) for i, (first, end) in groups]


def describe(cut: Cut) -> dict[str, Any]:
    """The keys of a record for its label: all of the manifest's, and `language` also as OmniVoice's `language_id`."""
    record = record_from_cut(cut)
    if record["audio_path"] is None:
        record = {k: v for k, v in record.items() if k != "audio_path" and k not in GENERATION_KEYS}
    if channel_of(record) is not None:
        del record["channel"]  # what is written is mono
    if "language" in record:
        record["language_id"] = record["language"]
    return record


def member_stem(name: str) -> str:
    """An id as the name of a file; the id itself where it is one."""
    return UNFIT.sub("_", name)[:LONGEST_NAME]


class MemberNames:
    """Names of files for ids that no two share. `stems`: hashes of the `member_stem` of each id."""

    def __init__(self, stems: Sequence[int]):
        hashes, counts = np.unique(np.asarray(stems, np.uint64), return_counts=True)
        self.shared = set(hashes[counts > 1].tolist())

    def of(self, name: str) -> str:
        stem = member_stem(name)
        if stem == name or _hash(stem) not in self.shared:
            return stem
        return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def _refuse_duplicates(records: RecordTable[Cut | UnusableRecord], ids: Sequence[int]) -> None:
    """`ids`: a hash of the id of each record. Raises DataError."""
    all_hashes = np.asarray(ids, np.uint64)
    hashes, counts = np.unique(all_hashes, return_counts=True)
    numbers: dict[str, list[int]] = {}
    for row in np.flatnonzero(np.isin(all_hashes, hashes[counts > 1])).tolist():
        numbers.setdefault(records[row].id, []).append(row + 1)
    duplicates = [(name, at) for name, at in numbers.items() if len(at) > 1]
    if duplicates:
        lines = [f"'{name}': records {', '.join(map(str, at[:5]))}" for name, at in duplicates[:NAMED]]
        more = f"\n  ... and {len(duplicates) - NAMED:,} more" if len(duplicates) > NAMED else ""
        raise DataError(
            f"{len(duplicates):,} id(s) occur more than once; a sample of a shard is found by its id, so give each "
            "record its own `id`:\n  " + "\n  ".join(lines) + more
        )
