"""Which samples go into which shard, from metadata alone: the same on every machine and after every kill."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from stentor.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.commands.prepare.tokens import Request
    from stentor.data.cut import UnusableRecord

GROUP_ITEMS, GROUP_SECONDS = 64, 600.0
"""Most records and most audio that a process is given at a time: what a kill can cost."""
NAMED = 20
"""Ids that an error names."""
LONGEST_NAME = 120
"""Characters of a member's name: with its ending it fits every file system."""
UNFIT = re.compile(r'[\x00-\x20\x7f\s./\\<>:"|?*]')
"""What names of members do without: what some file system refuses, spaces, and dots, because WebDataset takes what
stands before the first one for the sample's key."""
MADE = ("voice", "hub", "shar", "tar", "codes", "parts", "mixed_turn", "made_noise")
"""Keys that say how audio without a file is had again, which shards need not."""

Sample = tuple[str, "Cut"]
"""The name of its member in the tar, and the record."""


@dataclass(frozen=True)
class Group:
    """Consecutive samples of a shard that are made together."""

    shard: int
    number: int
    first: int
    """Number of its first sample in the shard."""
    samples: list[Sample]

    @property
    def id(self) -> str:
        """Says which samples of the shard it is, so that a journal of other groups is no riddle."""
        return f"{self.shard}/{self.first}+{len(self.samples)}"


@dataclass(frozen=True)
class Plan:
    """All shards, those of other machines too."""

    records: int
    """Records of the data, used or not."""
    shards: list[list[Group]]
    errors: list[dict[str, Any]]
    """Lines of errors.jsonl that are known without audio."""
    fingerprint: str
    """Changes when a record is added, taken away, or says something else."""

    def of_machine(self, request: Request) -> list[list[Group]]:
        """The shards that this machine makes: the machines take turns."""
        return self.shards[request.machine :: request.machines]


def plan(cuts: Sequence[Cut | UnusableRecord], request: Request) -> Plan:
    """Leave out what cannot or shall not be used, shuffle by the seed and divide evenly into shards.

    Raises DataError for ids that occur more than once.
    """
    from stentor.data.cut import UnusableRecord, text_of

    _refuse_duplicates(cuts)
    errors, used = [], []
    digest = hashlib.sha256()
    for cut in cuts:
        digest.update(json.dumps([cut.id] if isinstance(cut, UnusableRecord) else describe(cut), default=str).encode())
        if isinstance(cut, UnusableRecord):
            errors.append(error(cut.id, cut.reason, cut.message))
        elif not (text_of(cut) or "").strip():
            errors.append(error(cut.id, "empty_text", f"{cut.id} has no text."))
        elif request.min_seconds is not None and cut.duration < request.min_seconds:
            message = f"{cut.id} has {cut.duration:.2f} s, less than --min-seconds {request.min_seconds:g}."
            errors.append(error(cut.id, "too_short", message))
        elif request.max_seconds is not None and cut.duration > request.max_seconds:
            message = f"{cut.id} has {cut.duration:.2f} s, more than --max-seconds {request.max_seconds:g}."
            errors.append(error(cut.id, "too_long", message))
        else:
            used.append(cut)
    names = member_names([cut.id for cut in used])
    samples = [(names[cut.id], cut) for cut in used]
    random.Random(f"shards/{request.seed}").shuffle(samples)
    count = max(-(-len(samples) // request.samples_per_shard), min(request.min_shards, len(samples)))
    ends = [len(samples) * (i + 1) // count for i in range(count)]
    shards = [groups(i, samples[start:end]) for i, (start, end) in enumerate(zip([0, *ends], ends))]
    return Plan(len(cuts), shards, errors, f"{len(cuts)}:{digest.hexdigest()[:16]}")


def groups(shard: int, samples: Sequence[Sample]) -> list[Group]:
    """The samples of a shard in pieces, in order."""
    pieces: list[list[Sample]] = []
    seconds = 0.0
    for sample in samples:
        seconds += sample[1].duration
        if not pieces or len(pieces[-1]) == GROUP_ITEMS or seconds > GROUP_SECONDS:
            pieces.append([])
            seconds = sample[1].duration
        pieces[-1].append(sample)
    firsts = accumulate((len(piece) for piece in pieces), initial=0)
    return [Group(shard, i, first, piece) for i, (first, piece) in enumerate(zip(firsts, pieces))]


def error(name: str, reason: str, message: str) -> dict[str, Any]:
    """A line of errors.jsonl."""
    return {"id": name, "reason": reason, "message": message}


def describe(cut: Cut) -> dict[str, Any]:
    """The keys of a record for its label: all of the manifest's, and `language` also as OmniVoice's `language_id`."""
    from stentor.data.cut import record_from_cut

    record = record_from_cut(cut)
    if record["audio_path"] is None:
        record = {k: v for k, v in record.items() if k != "audio_path" and k not in MADE}
    if "language" in record:
        record["language_id"] = record["language"]
    return record


def member_names(ids: Sequence[str]) -> dict[str, str]:
    """Of each id, a name for a file that no other has: the id itself where it is one."""
    plain = {name: UNFIT.sub("_", name)[:LONGEST_NAME] for name in ids}
    taken = Counter(plain.values())
    return {
        name: fit if fit == name or taken[fit] == 1 else f"{fit}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
        for name, fit in plain.items()
    }


def _refuse_duplicates(cuts: Sequence[Cut | UnusableRecord]) -> None:
    places: dict[str, list[int]] = {}
    for number, cut in enumerate(cuts, 1):
        places.setdefault(cut.id, []).append(number)
    twice = [(name, at) for name, at in places.items() if len(at) > 1]
    if twice:
        first = [f"'{name}': records {', '.join(map(str, at[:5]))}" for name, at in twice[:NAMED]]
        more = f"\n  ... and {len(twice) - NAMED:,} more" if len(twice) > NAMED else ""
        raise DataError(
            f"{len(twice):,} id(s) occur more than once; a sample of a shard is found by its id, so give each record "
            "its own `id`:\n  " + "\n  ".join(first) + more
        )
