"""Train and test split of a data set, so that what was learned is measured on what was not read.

The two files beside the manifest, `train.jsonl` and `held_out.jsonl`, are the division; `dataset.json` remembers how it
was chosen (`split: {by, share}`). A recording stays on its side until a person moves it or divides anew.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stentor.errors import ConfigError
from stentor.text.normalize import plain_text

SIDES = ("train", "held_out")
BY = ("text", "speaker")
"""What is kept on one side: all recordings of a sentence, or all of a voice."""
SHARE = 0.1
"""Share of the recordings that is held out unless a person chooses another."""
Record = dict[str, Any]


def checked(share: float, by: str) -> tuple[float, str]:
    """The choice as it is. Raises ConfigError for one that divides nothing."""
    if by not in BY:
        raise ConfigError(f"A data set is split by text or by speaker, not by {by!r}.")
    if not 0 < share < 1:
        raise ConfigError(f"The held-out share must lie between 0 and 1, not {share}.")
    return share, by


def chosen(about: Mapping[str, Any]) -> tuple[float, str]:
    """Share and kind of a data set's division, from its `dataset.json`; the default where that says none."""
    split = about.get("split")
    share, by = (split.get("share"), split.get("by")) if isinstance(split, dict) else (None, None)
    return (float(share) if isinstance(share, int | float) and 0 < share < 1 else SHARE, by if by in BY else BY[0])


def drawn(records: Sequence[Record], share: float, by: str) -> dict[str, str]:
    """Side by id: about `share` of the records are held out, whole groups, those whose names hash lowest; at least one
    group and never all. Raises ConfigError where there is only one group."""
    groups = grouped(records, by)
    _require_two(groups, by)
    held: set[str] = set()
    for key in sorted(groups, key=_hashed)[:-1]:
        if held and len(held) + len(groups[key]) / 2 > share * len(records):
            break
        held.update(groups[key])
    return {record["id"]: SIDES[record["id"] in held] for record in records}


def updated(records: Sequence[Record], share: float, by: str, known: Mapping[str, str]) -> dict[str, str]:
    """Side by id, where `known` says the sides that there were: a group stays where most of it was, a new one is held
    out if its name hashes below `share`. A side that lost its last group gets one again. Raises as `drawn`."""
    groups = grouped(records, by)
    _require_two(groups, by)
    sides: dict[str, str] = {}
    for key, ids in groups.items():
        votes = Counter(known[id] for id in ids if id in known).most_common(1)
        sides[key] = votes[0][0] if votes else SIDES[_hashed(key) < share]
    order = sorted(groups, key=_hashed)
    if "held_out" not in sides.values():
        sides[order[0]] = "held_out"
    if "train" not in sides.values():
        sides[order[-1]] = "train"
    return {id: sides[key] for key, ids in groups.items() for id in ids}


def grouped(records: Sequence[Record], by: str) -> dict[str, list[str]]:
    """Ids by what must stay together: the words of a text, however they are spelt with capitals and commas, or the
    speaker."""
    groups: dict[str, list[str]] = {}
    for record in records:
        key = plain_text(record["text"]) or record["text"] if by == "text" else str(record.get("speaker") or "")
        groups.setdefault(key, []).append(record["id"])
    return groups


def _hashed(key: str) -> float:
    """0 to 1, the same for a key in every data set."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) / 2**64


def _require_two(groups: Mapping[str, Any], by: str) -> None:
    if len(groups) < 2:
        more = "recordings of other texts" if by == "text" else "another speaker, or divide by text"
        raise ConfigError(
            f"It cannot be divided: training and the held-out part need at least one {by} each, and there is "
            f"{'only one' if groups else 'none'} (recordings without a text do not count). Add {more}."
        )
