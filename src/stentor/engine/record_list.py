"""Record list: ids of the training records of a run (of a stage), to say later what has changed in them."""

import gzip
import zlib
from pathlib import Path

from stentor.data.atomic_write import atomic_path
from stentor.data.cut import text_of
from stentor.dataloading.train_dataset import TrainDataset
from stentor.models.contracts import Processor

RECORDS = "records.txt.gz"
MOST = 1_000_000
"""Largest number of records that are listed."""


def write_records(folder: Path, data: TrainDataset) -> None:
    """Write the list, unless it is there or the records are not known."""
    if (folder / RECORDS).exists() or not 0 < data.all_records <= MOST:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / RECORDS) as part:
        lines = "".join(f"{name}\t{facts}\n" for name, facts in _records(data).items())
        part.write_bytes(gzip.compress(lines.encode("utf-8", "surrogatepass"), 1, mtime=0))


def changed_records(folder: Path, data: TrainDataset, processor: Processor, same: bool = False) -> str:
    """Describe how the records differ from those in the list of `folder`; those that are the `same`, but for their
    texts, with examples and the signs that the model leaves out."""
    if same and data.streams:
        return "files of streams, whose texts are not compared"
    try:
        lines = gzip.decompress((folder / RECORDS).read_bytes()).decode("utf-8", "surrogatepass").splitlines()
    except (OSError, EOFError, ValueError, zlib.error):
        return "texts" if same else "the earlier records are not known one by one"
    before = dict(line.rsplit("\t", 1) for line in lines if "\t" in line)
    if not 0 < data.all_records <= MOST:
        return f"{len(before):,} records before; those of now are not listed"
    now = _records(data)
    changed = {name for name in now if name in before and before[name] != now[name]}
    if same and not changed:
        return "the texts are those of the start of the run again"
    if same:
        texts = {c.id: text_of(c) or "" for c in data.cuts() if c.id in changed}
        examples = [f'{name}: "{text}"' for name, text in texts.items()][:2] + ["..."] * (len(texts) > 2)
        signs = {c for c in set("".join(texts.values())) if c.isprintable() and c != " " and not processor.written(c)}
        left_out = f", without {' '.join(sorted(signs))}, which the model cannot write" if signs else ""
        return f"the texts of {len(changed):,} of {len(now):,} records ({'; '.join(examples)}){left_out}"
    parts = []
    for what, names in (
        ("added", now.keys() - before),
        ("removed", before.keys() - now),
        ("changed in text or length", changed),
    ):
        some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        parts += [f"{len(names):,} records {what} ({some})"] if names else []
    return "; ".join(parts) or f"the same {len(now):,} records in other batches"


def _records(data: TrainDataset) -> dict[str, str]:
    """Length and text of each record, hashed, by its id."""
    return {c.id: f"{zlib.crc32(f'{c.duration:.6f} {text_of(c)}'.encode()):08x}" for c in data.cuts()}
