"""Audio hashes: of a sample of records, so that a run which goes on notices that the audio behind them was changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.data.cut import audio_path
from stentor.data.storage import is_remote

if TYPE_CHECKING:
    from lhotse.cut import Cut

SAMPLE = 100
"""Records that are hashed, spread evenly: a data set that was made anew shows in any, and each costs a few reads."""
BLOCK = 65536
"""Bytes that are read at the beginning, in the middle and at the end of a file."""


def audio_hashes(cuts: Sequence[Cut]) -> dict[str, str]:
    """Hash of size and three blocks of the audio file, by the id of the record. Records whose audio is in no file of
    its own (shards, parquet, made by a voice) or at an address have none."""
    hashes = {}
    for cut in cuts:
        path = audio_path(cut)
        if path is not None and not is_remote(path) and (digest := _hash(Path(path))):
            hashes[cut.id] = digest
    return hashes


def _hash(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.blake2b(str(size).encode(), digest_size=16)
            for start in (0, (size - BLOCK) // 2, size - BLOCK):
                file.seek(max(0, start))
                digest.update(file.read(BLOCK))
    except (OSError, ValueError):  # said where the record is read
        return None
    return digest.hexdigest()
