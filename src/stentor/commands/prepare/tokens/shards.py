"""Files of token shards: the tar and its labels, in OmniVoice's format and the layout of WebDataset."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.words.journal import replace

if TYPE_CHECKING:
    import numpy as np


class Shard:
    """One tar, written member by member under a temporary name; nothing but its contents shows in its bytes."""

    def __init__(self, folder: Path, number: int):
        self.tar = folder / f"shard-{number:06d}.tar"
        self.labels = self.tar.with_suffix(".jsonl")
        self.part = self.tar.with_name(f".{self.tar.name}.part")

    def size(self) -> int:
        """Bytes of the unfinished tar."""
        return self.part.stat().st_size if self.part.is_file() else 0

    def go_on(self, end: int) -> None:
        """Go on after `end` bytes; what a kill left behind them is cut off."""
        self.file = open(self.part, "r+b" if self.part.exists() else "w+b")  # noqa: SIM115  # until `close`
        self.file.truncate(end)
        self.file.seek(end)

    def add(self, name: str, data: bytes) -> None:
        """Append a member. The same bytes whoever writes it, and when."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        self.file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self.file.write(data)
        self.file.write(bytes(-len(data) % tarfile.BLOCKSIZE))

    def flushed(self) -> int:
        """The size so far, all of it handed to the system."""
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
        replace(self.labels, "".join(json.dumps(label, ensure_ascii=False) + "\n" for label in labels))
        self.part.replace(self.tar)

    def close(self) -> None:
        self.file.close()


def npy(codes: np.ndarray) -> bytes:
    """An array as the contents of an .npy file."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, codes, allow_pickle=False)
    return file.getvalue()
