"""Shard plan: which samples go into which shard, from metadata alone; the same after a kill."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.journal import fingerprint
from stentor.commands.prepare.pipeline import NAMED
from stentor.data.cut import UnusableRecord, record_from_cut, text_of
from stentor.data.fields import channel_of
from stentor.errors import DataError
from stentor.sources.shards import GENERATION_KEYS

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.cli.prepare import TokensOptions

GROUP_ITEMS, GROUP_SECONDS = 64, 600.0
"""Most records and most audio that a process is given at a time: what a kill can cost."""
LONGEST_NAME = 120
"""Characters of a member's name: with its ending it fits every file system."""
UNFIT = re.compile(r'[\x00-\x20\x7f\s./\\<>:"|?*]')
"""What names of members do without: what some file system refuses, spaces, and dots, because WebDataset takes what
stands before the first one for the sample's key."""

Sample = tuple[str, "Cut"]
"""The name of its member in the tar, and the record."""


@dataclass(frozen=True)
class SampleGroup:
    """Consecutive samples of a shard that are made together."""

    shard: int
    number: int
    first: int
    """Number of its first sample in the shard."""
    samples: list[Sample]

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


def plan_shards(records: Sequence[Cut | UnusableRecord], options: TokensOptions) -> ShardPlan:
    """Leave out what cannot or shall not be used, shuffle by the seed and divide evenly into shards. Raises DataError
    for ids that occur more than once."""
    _refuse_duplicates(records)
    rejects: list[UnusableRecord] = []
    cuts: list[Cut] = []
    for record in records:
        problem = _problem(record, options)
        if problem is not None:
            rejects.append(UnusableRecord(record.id, *problem))
        elif not isinstance(record, UnusableRecord):
            cuts.append(record)
    names = member_names([cut.id for cut in cuts])
    samples = [(names[cut.id], cut) for cut in cuts]
    random.Random(f"shards/{options.seed}").shuffle(samples)
    count = max(-(-len(samples) // options.samples_per_shard), min(options.min_shards, len(samples)))
    ends = [len(samples) * (i + 1) // count for i in range(count)]
    shards = [split_groups(i, samples[start:end]) for i, (start, end) in enumerate(zip([0, *ends], ends))]
    digest = fingerprint([r.id] if isinstance(r, UnusableRecord) else describe(r) for r in records)
    return ShardPlan(len(records), shards, rejects, digest)


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


def split_groups(shard: int, samples: Sequence[Sample]) -> list[SampleGroup]:
    """The samples of a shard in groups, in order."""
    groups: list[list[Sample]] = []
    seconds = 0.0
    for sample in samples:
        seconds += sample[1].duration
        if not groups or len(groups[-1]) == GROUP_ITEMS or seconds > GROUP_SECONDS:
            groups.append([])
            seconds = sample[1].duration
        groups[-1].append(sample)
    firsts = accumulate((len(group) for group in groups), initial=0)
    return [SampleGroup(shard, i, first, group) for i, (first, group) in enumerate(zip(firsts, groups))]


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


def member_names(ids: Sequence[str]) -> dict[str, str]:
    """Of each id, a name for a file that no other has: the id itself where it is one."""
    stems = {name: UNFIT.sub("_", name)[:LONGEST_NAME] for name in ids}
    counts = Counter(stems.values())
    return {
        name: stem if stem == name or counts[stem] == 1 else f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        for name, stem in stems.items()
    }


def _refuse_duplicates(records: Sequence[Cut | UnusableRecord]) -> None:
    numbers: dict[str, list[int]] = {}
    for number, record in enumerate(records, 1):
        numbers.setdefault(record.id, []).append(number)
    duplicates = [(name, at) for name, at in numbers.items() if len(at) > 1]
    if duplicates:
        lines = [f"'{name}': records {', '.join(map(str, at[:5]))}" for name, at in duplicates[:NAMED]]
        more = f"\n  ... and {len(duplicates) - NAMED:,} more" if len(duplicates) > NAMED else ""
        raise DataError(
            f"{len(duplicates):,} id(s) occur more than once; a sample of a shard is found by its id, so give each "
            "record its own `id`:\n  " + "\n  ".join(lines) + more
        )
