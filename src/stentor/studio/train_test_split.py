"""Train and test split of a data set, so that what was learned is measured on what was not read.

The two files beside the manifest, `train.jsonl` and `held_out.jsonl`, are the division; `dataset.json` remembers how it
was chosen (`split: {by, share}`). A recording stays on its side until a person moves it or splits again.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stentor.errors import ConfigError
from stentor.studio.files import Record
from stentor.text.normalize import plain_text

SIDES = ("train", "held_out")
BY = ("text", "speaker")
"""Unit that stays on one side: all recordings of a sentence, or all of a voice."""
SHARE = 0.1
"""Share of the recordings that is held out unless a person chooses another."""
FEW_TEXTS = 40
"""So many texts, read at least 1.5 times each on average, are a list of commands or digits: a model that has not
learned one of them cannot be measured by it."""
FEW_SPEAKERS = 3
"""With fewer voices, holding one out takes too much of the training away."""
LEAST_WORDS = 60
"""Held-out words below which a score says next to nothing: without any error among them, up to 3 / 60 = 5 % of all
words may be wrong (the rule of three, at 95 %)."""


def check(share: float, by: str) -> None:
    """Raises ConfigError for a choice that divides nothing."""
    if by not in BY:
        raise ConfigError(f"A data set is split by text or by speaker, not by {by!r}.")
    if not 0 < share < 1:
        raise ConfigError(f"The held-out share must lie between 0 and 1, not {share}.")


def chosen(about: Mapping[str, Any]) -> tuple[float, str]:
    """Share and kind of a data set's division, from its `dataset.json`; the default where that says none."""
    split = about.get("split")
    share, by = (split.get("share"), split.get("by")) if isinstance(split, dict) else (None, None)
    return (float(share) if isinstance(share, int | float) and 0 < share < 1 else SHARE, by if by in BY else BY[0])


def suggested(records: Sequence[Record]) -> str:
    """Default unit that is kept together: voices where all are named and one can be spared, or texts."""
    speakers = {str(record.get("speaker") or "") for record in records}
    return "speaker" if "" not in speakers and len(speakers) >= FEW_SPEAKERS else "text"


def words(records: Iterable[Record]) -> int:
    """About how many words the texts of records have; where words are not divided by spaces, six letters are one."""
    return sum(max(len(r["text"].split()), len(r["text"]) // 6) for r in records)


class _TextsInTraining:
    """Number of training recordings of each text, where texts are few."""

    def __init__(self, records: Sequence[Record]):
        self.text_of = {record["id"]: _text(record) for record in records}
        self.counts = Counter(self.text_of.values())
        self.few = len(self.counts) <= FEW_TEXTS and 2 * len(records) >= 3 * len(self.counts)

    def can_spare(self, ids: Sequence[str]) -> bool:
        """Whether each text of these recordings is trained on without them, too."""
        texts = Counter(self.text_of[id] for id in ids)
        return not self.few or all(count < self.counts[text] for text, count in texts.items())

    def hold_out(self, ids: Sequence[str]) -> None:
        self.counts.subtract(self.text_of[id] for id in ids)


def drawn(records: Sequence[Record], share: float, by: str) -> dict[str, str]:
    """Side by id: about `share` of the records are held out, whole groups, those whose names hash lowest and that do
    not take the last recording of one of few texts; at least one group and never all. Raises ConfigError where there is
    only one group."""
    groups, training = grouped(records, by), _TextsInTraining(records)
    _require_two(groups, by)
    held: set[str] = set()
    order = sorted(groups, key=_hashed)
    for key in order[:-1]:
        if len(held) + len(groups[key]) / 2 <= share * len(records) and training.can_spare(groups[key]):
            training.hold_out(groups[key])
            held.update(groups[key])
    if not held:
        held.update(min((groups[key] for key in order), key=lambda ids: (not training.can_spare(ids), len(ids))))
    return {record["id"]: SIDES[record["id"] in held] for record in records}


def updated(records: Sequence[Record], share: float, by: str, known: Mapping[str, str]) -> dict[str, str]:
    """Side by id, where `known` says the sides that there were: a group stays held out if all of it was, a new one is
    held out if its name hashes below `share`. A side that lost its last group gets one again. Raises as `drawn`."""
    groups, training = grouped(records, by), _TextsInTraining(records)
    _require_two(groups, by)
    sides: dict[str, str] = {}
    for key, ids in groups.items():
        if before := {known[id] for id in ids if id in known}:
            sides[key] = "held_out" if before == {"held_out"} else "train"
            if sides[key] == "held_out":
                training.hold_out(ids)
    for key in groups.keys() - sides:
        if held := _hashed(key) < share and training.can_spare(groups[key]):
            training.hold_out(groups[key])
        sides[key] = SIDES[held]
    order = sorted(groups, key=lambda key: (not training.can_spare(groups[key]), _hashed(key)))
    if "held_out" not in sides.values():
        sides[order[0]] = "held_out"
    if "train" not in sides.values():
        sides[order[-1]] = "train"
    return {id: sides[key] for key, ids in groups.items() for id in ids}


def grouped(records: Sequence[Record], by: str) -> dict[str, list[str]]:
    """Ids by what must stay together: the words of a text, however they are spelt with capitals and commas, or the
    speaker. Of few texts each must be on both sides: by text, each recording is then a group of its own."""
    few = _TextsInTraining(records).few
    groups: dict[str, list[str]] = {}
    for record in records:
        key = str(record.get("speaker") or "") if by == "speaker" else record["id"] if few else _text(record)
        groups.setdefault(key, []).append(record["id"])
    return groups


def _text(record: Record) -> str:
    return plain_text(record["text"]) or str(record["text"])


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
