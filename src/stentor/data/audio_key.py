"""Keys and hashes of a cut's audio: what was made of it is found again, and a change of it is noticed."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.cut import audio_path
from stentor.data.storage import is_remote
from stentor.version import __version__

if TYPE_CHECKING:
    from lhotse.cut import Cut

LABELS = {"text", "context", "segments", "words", "uem"}
"""Custom keys of cuts that are not about their audio."""


def audio_key(cut: Cut) -> str:
    """Key of a cut's audio: a digest of its id, and everything that its samples depend on, down to the size and the
    time of change of its files. Other labels, or another folder, give the same key."""
    digest = hashlib.blake2b(digest_size=16)
    for fact in _facts(cut):
        digest.update(repr(fact).encode() + b"\0")
    return digest.hexdigest()


def _facts(cut: Cut) -> Iterator[Any]:
    from lhotse.cut import MixedCut, PaddingCut

    yield cut.id, round(cut.duration, 6)
    if isinstance(cut, PaddingCut):
        return
    if isinstance(cut, MixedCut):
        yield cut.transforms
        for track in cut.tracks:
            yield round(track.offset, 6), track.snr, track.mute, track.is_snr_reference
            yield from _facts(track.cut)
        return
    yield round(cut.start, 6), cut.channel
    yield sorted((k, v) for k, v in (cut.custom or {}).items() if k not in LABELS)
    if cut.recording is None:
        return
    yield cut.recording.transforms
    if not cut.recording.sources:  # generated, perhaps in another way by another version
        yield cut.recording.id, __version__
    for source in cut.recording.sources:
        if source.type == "file":
            path = str(source.source)
            try:
                status = os.stat(path)
                yield os.path.basename(path), status.st_size, status.st_mtime_ns
            except OSError:  # `load` says what is wrong with it
                yield path, None
        elif source.type == "memory":
            yield zlib.crc32(source.source), len(source.source)
        else:
            yield source.type, str(source.source)


SAMPLE = 100
"""Records that are hashed, spread evenly: a data set that was made again shows in any, and each costs a few reads."""
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
