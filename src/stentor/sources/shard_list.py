"""Shard list: the tar files and labels that a path of the source `shards` stands for."""

import json
import re
import tarfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stentor.data.jsonl import FileIndex, not_found, open_text
from stentor.data.storage import as_path, is_remote
from stentor.errors import DataError

LINE = re.compile(
    r"(?P<tar>.+\.tar)\s+(?P<labels>.+\.jsonl(?:\.gz)?)(?:\s+(?P<count>\d+)(?:\s+(?P<seconds>\d+(?:\.\d*)?(?:[eE]\+?\d+)?))?)?"
)
LABELS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class TokenShard:
    """One tar file with its labels."""

    tar: Path
    labels: Path
    """A file of JSON lines; the tar file itself if it has a JSON member for each recording."""
    folder: Path
    """Folder of the list that names it."""
    count: int | None = None
    """Samples, as the list says."""
    seconds: float | None = None
    """Seconds of all its samples, as the list says."""


def listed_shards(path: Path) -> list[TokenShard]:
    """The shards that a list, a folder or a tar file stands for."""
    if not path.exists():
        raise not_found(path)
    if path.is_dir():
        lists = [path / "data.lst"] if (path / "data.lst").exists() else sorted(path.glob("*.lst"))
        if len(lists) > 1:
            raise DataError(f"{path} holds several lists: name one of {', '.join(p.name for p in lists)}.")
        if lists:
            return listed_shards(lists[0])
        tars = sorted(path.glob("*.tar"))
        if not tars:
            raise DataError(f"{path} holds neither a list of shards (data.lst) nor tar files.")
        return [_alone(tar) for tar in tars]
    return [_alone(path)] if path.suffix == ".tar" else _lines_of_list(path)


def hours_in_summary(folder: Path) -> dict[str, float] | None:
    """Hours of each language of a folder of shards, where `stentor prepare tokens` wrote them."""
    try:
        hours = json.loads((folder / "summary.json").read_bytes())["languages"]
        return {str(language): float(amount) for language, amount in hours.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _alone(tar: Path) -> TokenShard:
    """A tar file with its labels: next to it, or in OmniVoice's neighbouring folder `txts`."""
    for folder in (tar.parent, tar.parent.parent / "txts"):
        for suffix in LABELS:
            if (labels := folder / (tar.stem + suffix)).exists():
                return TokenShard(tar, labels, tar.parent)
    if is_remote(tar) or _labels_inside(tar):
        return TokenShard(tar, tar, tar.parent)
    raise DataError(f"{tar} has no labels: {tar.stem}.jsonl is expected next to it, or ID.json in it for each ID.mp3.")


def _labels_inside(tar: Path) -> bool:
    """Whether the tar file has labels as members, as WebDataset has it: ID.json next to ID.mp3."""
    try:
        with tarfile.open(tar) as file:
            return any(member.name.endswith(".json") for member in islice(file, 8))
    except (OSError, tarfile.TarError):
        return False


def _lines_of_list(path: Path) -> list[TokenShard]:
    shards, wrong = [], []
    files = FileIndex()
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if (match := LINE.fullmatch(line.strip())) is None:
                wrong.append(f"{path}:{number}: {line.strip()[:80]}")
                continue
            tar, labels = (_place(match[key], path.parent, files) for key in ("tar", "labels"))
            count, seconds = match["count"], match["seconds"]
            figures = int(count) if count else None, float(seconds) if seconds else None
            shards.append(TokenShard(tar, labels, path.parent, *figures))
    if wrong:
        raise DataError(
            f"{path} is not a list of shards: each line must be `TAR LABELS.jsonl SAMPLES SECONDS`. Wrong lines:\n  "
            + "\n  ".join(wrong[:5])
        )
    if not shards:
        raise DataError(f"{path} lists no shards.")
    return shards


def _place(written: str, folder: Path, files: Any) -> Path:
    """Where a file of a list lies: as it is written, from the list's folder, from the working directory, or, when the
    whole has been moved, as deep below the list's folder as its last names say."""
    if is_remote(written):
        return as_path(written)
    path = Path(written)
    parts = path.parts
    places = [folder / written, path]
    if is_remote(folder):  # its list names nothing on this machine
        places = [] if path.is_absolute() else places[:1]
    for place in (*places, *(folder.joinpath(*parts[-n:]) for n in (3, 2, 1) if len(parts) > n)):
        if files.exist(str(place)):
            return place
    return folder / written
