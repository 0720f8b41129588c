"""Shard files: tars and their labels, in OmniVoice's format and the layout of WebDataset; resumed after a kill."""

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.commands.prepare.tokens.plan import SampleGroup
from stentor.commands.prepare.tokens.worker import Member
from stentor.data.cut import UnusableRecord
from stentor.data.storage import is_remote, upload
from stentor.pipeline.journal import Journal, work_path, write_jsonl
from stentor.pipeline.runner import Writer


class Shard:
    """One tar, written member by member under a temporary name; its bytes depend on nothing but its contents."""

    def __init__(self, folder: Path, number: int):
        self.tar = folder / f"shard-{number:06d}.tar"
        self.labels = self.tar.with_suffix(".jsonl")
        self.part = work_path(self.tar)

    def size(self) -> int:
        """Bytes of the unfinished tar. One for an address is made again: another machine may have continued."""
        return self.part.stat().st_size if self.part.is_file() and not is_remote(self.tar) else 0

    def resume_at(self, end: int) -> None:
        """Open the unfinished tar after `end` bytes; what a kill left behind them is cut off."""
        self.file = self.part.open("r+b" if self.part.exists() else "w+b")
        self.file.truncate(end)
        self.file.seek(end)

    def add(self, name: str, data: bytes) -> None:
        """Append a member, without owner and time."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        self.file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self.file.write(data)
        self.file.write(bytes(-len(data) % tarfile.BLOCKSIZE))

    def flush(self) -> int:
        """Hand all that was written to the system; the size so far."""
        self.file.flush()
        return self.file.tell()

    def finish(self, labels: Sequence[dict[str, Any]]) -> None:
        """End the tar and give both files their names: the labels first. A shard without samples leaves no files."""
        if not labels:
            self.close()
            self.part.unlink()
            return
        self.file.write(bytes(2 * tarfile.BLOCKSIZE))
        self.file.write(bytes(-self.file.tell() % tarfile.RECORDSIZE))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.close()
        write_jsonl(self.labels, labels)
        if is_remote(self.tar):
            upload(self.part, self.tar)
            self.part.unlink()
        else:
            self.part.replace(self.tar)

    def close(self) -> None:
        self.file.close()


class ShardWriter(Writer):
    """Writer of the shards, one after the other.

    The journal gets a line for each group after its members are in the tar: where the tar ends then (`end`, in bytes),
    the `labels`, and the `errors`, which are lines of errors.jsonl.
    """

    def __init__(self, folder: Path, shards: Sequence[Sequence[SampleGroup]], journal: Journal):
        self.folder, self.journal = folder, journal
        self.shards = {shard[0].shard: shard for shard in shards}
        self.files = {path.name for path in folder.iterdir()}
        self.current: Shard | None = None

    def remaining(self, groups: Sequence[SampleGroup]) -> list[SampleGroup]:
        return [group for shard in self.shards.values() for group in self._remaining(shard)]

    def _remaining(self, shard: Sequence[SampleGroup]) -> Sequence[SampleGroup]:
        """The groups of a shard that are still to be made; a shard whose groups are all made gets its files here."""
        files = Shard(self.folder, shard[0].shard)
        if shard[-1].id in self.journal and {files.tar.name, files.labels.name} <= self.files:
            return []
        size, end, count = files.size(), 0, 0
        for outcome in self.journal.lines(group.id for group in shard if group.id in self.journal):
            if outcome["id"] != shard[count].id or outcome["end"] > size:
                break
            end, count = outcome["end"], count + 1
        if count == len(shard):
            files.resume_at(end)
            self._finish(files, shard)
        return shard[count:]

    def write(self, group: SampleGroup, outputs: list[Member], rejects: list[UnusableRecord]) -> None:
        shard = self.shards[group.shard]
        if self.current is None:
            before = [] if group.number == 0 else [shard[group.number - 1].id]
            files = Shard(self.folder, group.shard)
            files.resume_at(sum(outcome["end"] for outcome in self.journal.lines(before)))
            self.current = files
        for name, data, _ in outputs:
            self.current.add(name, data)
        labels = [label for _, _, label in outputs]
        errors = [vars(reject) for reject in rejects]
        self.journal.add([{"id": group.id, "end": self.current.flush(), "labels": labels, "errors": errors}])
        if group.id == shard[-1].id:
            self._finish(self.current, shard)
            self.current = None
            self.journal.publish()

    def _finish(self, files: Shard, shard: Sequence[SampleGroup]) -> None:
        files.finish([label for line in self.journal.lines(group.id for group in shard) for label in line["labels"]])

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
