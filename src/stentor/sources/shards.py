"""`shards`: recordings, or their codec tokens, packed into tar files with labels next to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from stentor.data.codec_tokens import shape_at
from stentor.data.cut import Cut, UnusableRecord, check_text_fields, cut_with_recording, recording_of
from stentor.data.embedded_audio import encoded_duration
from stentor.data.fields import seconds_field
from stentor.data.jsonl import open_text, parse_object
from stentor.data.storage import StoragePath
from stentor.data.storage_cache import prefetch
from stentor.data.tar import index as tar_index
from stentor.data.tar import read_at
from stentor.errors import AudioError, DataError, RecordError
from stentor.sources.base import Source, divisible_shards
from stentor.sources.shard_list import TokenShard, hours_in_summary, listed_shards
from stentor.text.languages import known_code

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.shuffled_shards import ShuffledShards
    from stentor.data.tar import ByteRange, Index

STREAM_FROM = 200_000
"""Samples from which `stream: null` means a stream."""
AUDIO = (".flac", ".wav", ".mp3", ".ogg", ".opus")
"""Suffixes of members that are encoded audio."""
PROBED = 9
"""Records whose shapes decide how many codebooks the source has."""
GENERATION_KEYS = ("voice", "shar", "hub", "tar", "codes", "mixed_turn", "made_noise", "parts")
"""Keys of a label that say how to generate the audio that its member was made of."""


class Shards(Source):
    """Token shards as `stentor prepare tokens` and OmniVoice write them, or the same with audio files in them: tar
    files of `ID.npy` (int16 `[codebooks, frames]`) or `ID.flac`, each with a JSONL file of labels or, as Emilia and
    WebDataset have it, with an `ID.json` next to each recording. `data.augment` changes only audio, not codes."""

    type: Literal["shards"] = "shards"
    path: StoragePath | list[StoragePath]
    """A list of shards (`data.lst`: lines of tar file, labels, samples, seconds), a folder with one or with tar files,
    a single tar file, or several of these."""
    stream: bool | None = None
    """Stream from front to back without listing first. Null: true for more than 200,000 samples. The shards of a stream
    are read in another order in each epoch."""
    mix: int = Field(4, ge=1)
    """Number of shards of a stream that are read at the same time, with their samples in random order."""
    frame_rate: float = Field(25.0, gt=0)
    """Frames per second of the codes, for labels without `audio_duration`."""

    _listed: list[TokenShard] | None = None
    _shards: list[TokenShard] | None = None
    _rows: int | None = None
    _lane: tuple[int, int] = (0, 1)
    _order: tuple[int, int] | None = None
    """For a lane: seed and epoch."""
    _cursor: Any = None
    _reader: ShuffledShards | None = None

    @property
    def streaming(self) -> bool:  # type: ignore[override]
        if self.stream is not None:
            return self.stream
        samples = sum(s.count or 0 for s in self._all_shards())
        return (samples if self.limit is None else min(samples, self.limit)) > STREAM_FROM

    def num_shards(self, most: int) -> int:
        if not self.streaming or self.limit is not None or self.skip:  # they count from the front of the whole stream
            return 1
        return divisible_shards(len(self.shards()), most)

    def lane(self, number: int, num_lanes: int, order: tuple[int, int], cursor: Any = None) -> Shards:
        if self.limit is not None or self.skip:
            return self  # they mean the same records in every epoch
        self._codebooks()  # once, for all copies
        copy = self.model_copy()
        copy._lane, copy._order, copy._cursor = (number, num_lanes), order, cursor
        return copy

    def cursor(self) -> Any:
        return None if self._reader is None else self._reader.cursor()

    def expected(self) -> int | None:
        counts = [s.count for s in self.shards()]
        return None if None in counts else sum(n for n in counts if n)

    def contents(self) -> str:
        return "".join(f"{s.tar.name} {s.count}\n" for s in self.shards())

    @property
    def takes_hours(self) -> bool:
        return not self.filtered and all(shard.seconds is not None for shard in self._all_shards())

    def language_seconds(self) -> dict[str | None, float] | None:
        """Seconds from the list, divided among languages as in its folder's summary, else of the source's one."""
        if not self.takes_hours:
            return None
        of_folder: Counter[Path] = Counter()
        for shard in self.shards():
            of_folder[shard.folder] += shard.seconds or 0.0  # type: ignore[assignment]
        default = known_code(self.language) if self.language else None
        languages: dict[str | None, float] = {}
        for folder, seconds in of_folder.items():
            hours = hours_in_summary(folder) or ({"": 1.0} if default else {})
            if not hours:
                return None
            for name, amount in hours.items():
                language = default or (known_code(name) if name else None)
                languages[language] = languages.get(language, 0.0) + seconds * amount / sum(hours.values())
        return languages

    def shards(self) -> list[TokenShard]:
        """All shards, in the order of the lists; of a stream those for `max_hours`. Raises `DataError` without any."""
        if self._shards is None:
            shards = self._all_shards()
            if self.max_hours is not None and self.streaming and self.takes_hours:
                import numpy as np

                from stentor.data.seeding import Permutation

                order = Permutation(len(shards), "max_hours")
                count, _ = order.within(np.array([shard.seconds for shard in shards]), self.max_hours * 3600)
                shards = [shards[number] for number in sorted(order(np.arange(count)).tolist())]
            self._shards = shards
        return self._shards

    def _all_shards(self) -> list[TokenShard]:
        if self._listed is None:
            paths = self.path if isinstance(self.path, list) else [self.path]
            shards = [shard for path in paths for shard in listed_shards(path.expanduser())]
            if not any(s.tar.exists() for s in shards[:1000]):
                raise DataError(
                    f"{paths[0]}: none of its {len(shards)} shards exists, such as {shards[0].tar}. Paths in a list "
                    "are absolute, or start from the list's folder."
                )
            self._listed = shards
        return self._listed

    def records(self) -> Iterator[Cut | UnusableRecord]:
        number, num_lanes = self._lane
        shards = self.shards()[number::num_lanes]
        names: dict[str, int] | None = None if self.streaming else {}
        for record in self._in_order(shards) if self._order is None else self._shuffled(shards):
            if names is not None:  # a set of all ids would grow with a stream
                times = names[record.id] = names.get(record.id, 0) + 1
                record.id = record.id if times == 1 else f"{record.id}#{times}"
            yield record

    def _in_order(self, shards: list[TokenShard]) -> Iterator[Cut | UnusableRecord]:
        for shard, following in zip(shards, [*shards[1:], None]):
            if following is not None:
                prefetch(following.tar)
            yield from self._read(shard)

    def _shuffled(self, shards: list[TokenShard]) -> ShuffledShards:
        """The records in an order that is a function of seed, epoch and lane."""
        from stentor.data.shuffled_shards import ShuffledShards

        seed, epoch = self._order or (0, 0)
        self._reader = ShuffledShards(shards, (seed, "shards", epoch, *self._lane), self.mix, self._read, self._cursor)
        return self._reader

    def _read(self, shard: TokenShard, order: np.random.Generator | None = None) -> Iterator[Cut | UnusableRecord]:
        """The records of one shard, in the order of its labels or in a random one. Its labels and the places of its
        members are held in memory."""
        stem = shard.tar.stem
        try:
            lines = _members(shard.tar) if shard.labels == shard.tar else _lines(shard.labels)
        except DataError as error:
            reason = "unreadable" if shard.labels.exists() else "missing"
            for i in range(shard.count or 1):
                yield UnusableRecord(f"{stem}-{i}", reason, f"{shard.tar} has no labels: {error}")
            return
        try:
            contents = tar_index(shard.tar)
        except OSError as error:
            contents = None
            why = f"The shard {shard.tar} " + (
                "does not exist." if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}."
            )
        members = {} if contents is None else _by_id(contents)
        labels = [(number, _label(line, f"{shard.labels}:{number}")) for number, line in lines]
        known = Counter(label["id"] for _, label in labels if isinstance(label, dict))
        for i in range(len(lines)) if order is None else order.permutation(len(lines)):
            number, label = labels[i]
            where = f"{shard.labels}:{number}"
            if isinstance(label, DataError):
                yield UnusableRecord(f"{stem}:{number}", "unreadable", str(label))
                continue
            name = label["id"]
            if known[name] > 1:
                count = f"{known[name]} labels have the id '{name}'"
                message = f"{where}: {count}: it is unknown which one belongs to its audio."
                yield UnusableRecord(name, "duplicate_id", message)
            elif contents is None:
                yield UnusableRecord(name, "missing", f"{name}: {why}")
            elif name in members:
                yield self._record(label, shard, *members[name], where)
            elif contents.damage:
                reason = "truncated" if contents.truncated else "unreadable"
                yield UnusableRecord(name, reason, f"{name} is not in {shard.tar}, which {contents.damage}.")
            else:
                yield UnusableRecord(name, "no_member", f"{where}: {shard.tar} has no member for the label '{name}'.")
        for name in [n for n in members if n not in known]:
            yield UnusableRecord(name, "no_label", f"{shard.labels} has no label for '{name}' in {shard.tar}.")

    def _record(
        self, label: dict[str, Any], shard: TokenShard, member: str, place: ByteRange, where: str
    ) -> Cut | UnusableRecord:
        at: dict[str, Any] = {"path": str(shard.tar), "offset": place.offset, "size": place.size}
        name = f"{shard.tar}:{member}"
        codes = member.endswith(".npy")
        try:
            check_text_fields(label, where)
            if codes:
                at["codebooks"] = self._codebooks()
                label["num_tokens"] = self._frames(label, at, name)
            seconds = seconds_field(label, "audio_duration", where) or seconds_field(label, "duration", where)
            if not seconds:
                seconds = label["num_tokens"] / self.frame_rate if codes else encoded_duration(read_at(at), name)
            # The member is the whole record, wherever its audio began.
            cut = cut_with_recording(label, label["id"], recording_of(name, seconds), 0.0, seconds, where)
        except RecordError as error:
            return UnusableRecord(label["id"], error.reason, f"{where}: {str(error).removeprefix(f'{where}: ')}")
        except DataError as error:
            return UnusableRecord(label["id"], "unreadable", str(error))
        cut.custom = {k: v for k, v in (cut.custom or {}).items() if k not in GENERATION_KEYS}
        cut.custom["codes" if codes else "tar"] = at
        return cut

    def _frames(self, label: dict[str, Any], at: dict[str, Any], name: str) -> int:
        frames = label.get("num_tokens")
        if frames is None:
            shape = shape_at(at)
            if len(shape) != 2:
                raise AudioError(f"{name} is not an .npy file of [codebooks, frames].", "wrong_shape")
            return shape[1]
        if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
            raise AudioError(f"`num_tokens` must be a number of frames, got {frames!r}.", "empty")
        return frames

    def _codebooks(self) -> int | None:
        """Codebooks of most of the first records; None for audio."""
        if self._rows is None:
            shapes: list[tuple[int, ...]] = []
            for shard in self.shards():
                members: dict[str, ByteRange] = {}
                with suppress(OSError):
                    members = tar_index(shard.tar).members
                    for member in islice((m for m in members if m.endswith(".npy")), PROBED):
                        offset, size = members[member]
                        shapes.append(shape_at({"path": str(shard.tar), "offset": offset, "size": size}))
                if any(len(s) == 2 for s in shapes) or (members and not shapes):
                    break
            rows = Counter(s[0] for s in shapes if len(s) == 2).most_common(1)
            self._rows = rows[0][0] if rows else 0
        return self._rows or None


def _label(line: str | RecordError, where: str) -> dict[str, Any] | DataError:
    """The label in a line, or why there is none."""
    try:
        label = parse_object(line, where)
        if not isinstance(label.get("id"), str):
            raise DataError(f"{where} is not a JSON object with an `id`.")
    except DataError as error:
        return error
    return label


def _lines(path: Path) -> list[tuple[int, str | RecordError]]:
    """The lines of a file of labels with their numbers, or why they cannot be read."""
    with open_text(path) as lines:
        return [(number, line) for number, line in lines.numbered() if not isinstance(line, str) or line.strip()]


def _members(tar: Path) -> list[tuple[int, str | RecordError]]:
    """The JSON members of a tar file, each as a label whose id is the member's name. Raises `DataError`."""
    try:
        contents = tar_index(tar)
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}.") from None
    lines: list[tuple[int, str | RecordError]] = []
    for number, (member, place) in enumerate(contents.members.items(), 1):
        name, _, suffix = member.rpartition(".")
        if suffix == "json":
            text = read_at({"path": str(tar), "offset": place.offset, "size": place.size})
            try:
                lines.append((number, json.dumps(parse_object(text.decode(), member) | {"id": name})))
            except (DataError, UnicodeDecodeError) as error:
                lines.append((number, RecordError(f"{tar}: {member}: {error}", "unreadable")))
    return lines


def _by_id(contents: Index) -> dict[str, tuple[str, ByteRange]]:
    """Record id -> (member, its place); codes where there are codes and audio."""
    members: dict[str, tuple[str, ByteRange]] = {}
    for member, place in contents.members.items():
        name, dot, suffix = member.rpartition(".")
        if dot and (suffix == "npy" or (f".{suffix.lower()}" in AUDIO and name not in members)):
            members[name] = (member, place)
    return members
