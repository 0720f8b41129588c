"""Reading token shards: ours, shuffled, beside plain `tarfile` and `json` in arrival order and beside webdataset.

    python benchmarks/shards.py [--shards 8] [--samples 1000] [--rounds 3]

Prints samples per second of one core's time (median over rounds in which all ways take turns; the files are in the page
cache), the ratio to plain reading, and the memory that an open shard of a stream takes. "labels" is what the training
process does, to plan batches and to come to its place again when a run is resumed; "codes" is what the loader workers
do; "both" is one after the other in a single process, which is what plain reading does. webdataset, where it is
installed, reads as in OmniVoice's training: decoded, through a buffer of 1000 samples to shuffle in, labels beside it.
"""

import argparse
import importlib.util
import io
import json
import statistics
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import results

from stentor.data.codec_tokens import load_codes
from stentor.sources.shards import Shards

FRAMES = 25  # per second, as OmniVoice's codec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1000, help="in each shard")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total = make(Path(folder), args.shards, args.samples)
        print(
            f"{args.shards} shards of {args.samples} samples, 8 codebooks, {total / 1e6:.0f} MB, {args.rounds} rounds\n"
        )
        rows = compare(Path(folder), args.shards, args.samples, args.rounds)
        memory = held(Path(folder))
    print(f"\nopen shards of a stream (4): {memory:.2f} MB each at most")
    results.write("shards", rows, shards=args.shards, samples=args.samples, bytes=total, mb_per_open_shard=memory)


def make(folder: Path, shards: int, samples: int) -> int:
    """Shards as OmniVoice's, with lengths as in read and spontaneous speech; answers their bytes."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(shards):
        tar, labels = folder / f"shard-{number:06d}.tar", folder / f"shard-{number:06d}.jsonl"
        with tarfile.open(tar, "w") as file, labels.open("w") as text:
            for i in range(samples):
                frames = int(np.clip(rng.gamma(2.2, 3.8) + 1.5, 1, 30) * FRAMES)
                data = io.BytesIO()
                np.save(data, rng.integers(0, 1024, (8, frames)).astype(np.int16))
                member = tarfile.TarInfo(name := f"speaker{i % 97:03d}_{number:06d}_{i:06d}.npy")
                member.size = len(data.getvalue())
                file.addfile(member, io.BytesIO(data.getvalue()))
                label = {
                    "id": name[:-4],
                    "audio_path": f"/data/audio/{name[:-4]}.flac",
                    "language_id": "en",
                    "text": "the quick brown fox jumps over the lazy dog " * (1 + frames // 90),
                    "num_tokens": frames,
                    "audio_duration": frames / FRAMES,
                }
                text.write(json.dumps(label) + "\n")
        lines.append(f"{tar} {labels} {samples} 0.0\n")
    (folder / "data.lst").write_text("".join(lines))
    return sum(f.stat().st_size for f in folder.glob("*.tar"))


def compare(folder: Path, shards: int, samples: int, rounds: int) -> list[dict[str, Any]]:
    stream = Shards(type="shards", path=folder, stream=True).lane(0, 1, (0, 0))
    cuts: list[Any] = list(stream.cuts())
    ways: dict[str, Callable[[], int]] = {
        "plain: tarfile + json, arrival order": lambda: sum(codes.shape[1] for _, codes in plain(folder)),
        "ours: labels, shuffled": lambda: sum(cut.custom["num_tokens"] for cut in stream.cuts()),
        "ours: codes, shuffled": lambda: sum(load_codes(cut, 8, 1024).shape[1] for cut in cuts),
        "ours: both, shuffled": lambda: sum(load_codes(cut, 8, 1024).shape[1] for cut in stream.cuts()),
    }
    if importlib.util.find_spec("webdataset"):
        ways["webdataset: both, shuffled"] = lambda: sum(codes.shape[1] for _, codes in with_webdataset(folder))
    times: dict[str, list[float]] = {name: [] for name in ways}
    results = set()
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            results.add(way())
            times[name].append(time.process_time() - began)
    assert len(results) == 1, "all ways read the same"
    rows = []
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(next(iter(times.values())), seconds))
        rate = shards * samples / statistics.median(seconds)
        row = {"way": name, "samples_per_second": round(rate), "ratio_to_plain": round(ratio, 2)}
        rows.append(row | {"shards_per_second": round(shards / statistics.median(seconds), 2)})
        print(f"{name:40} {rate:10,.0f} samples/s {rows[-1]['shards_per_second']:8.2f} shards/s {ratio:6.2f}x")
    return rows


def plain(folder: Path) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Labels and codes in the order of the files, as one would write it down."""
    for line in (folder / "data.lst").read_text().splitlines():
        tar, labels, _, _ = line.split()
        with open(labels) as lines:
            known = {label["id"]: label for label in map(json.loads, lines)}
        with tarfile.open(tar) as file:
            for member in file:
                yield known[member.name[:-4]], np.load(io.BytesIO(file.extractfile(member).read()))


def with_webdataset(folder: Path) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Labels and codes as webdataset gives them."""
    import webdataset

    tars, labels = zip(*(line.split()[:2] for line in (folder / "data.lst").read_text().splitlines()))
    known: dict[str, dict[str, Any]] = {}
    for name in labels:
        with open(name) as lines:
            known |= {label["id"]: label for label in map(json.loads, lines)}
    for sample in webdataset.WebDataset(list(tars), shardshuffle=False).decode().shuffle(1000, seed=0):
        yield known[sample["__key__"]], sample["npy"]


def held(folder: Path) -> float:
    """MB that a shard takes while its records are read, at most: of a stream that is read to its end."""
    stream = Shards(type="shards", path=folder, stream=True, mix=4).lane(0, 1, (0, 1))
    for _ in stream.cuts():  # what is kept for good does not count
        pass
    tracemalloc.start()
    for _ in stream.cuts():
        pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 4 / 1e6


if __name__ == "__main__":
    main()
