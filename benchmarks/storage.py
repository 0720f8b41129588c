"""Reading shards of audio at an address beside the same shards on local disk, and with connections that are cut.

    python benchmarks/storage.py [--shards 12] [--minutes 30] [--rounds 3]

Prints megabytes per second of the clock (median over rounds in which all ways take turns, the cache empty each time).
"bytes" brings the shards and reads every member, also with boto3; "decoded" does what the loader does: labels, index,
FLAC to float32. The servers are processes of their own on this machine: moto's (the stand-in for S3 that the tests use,
in Python), a web server that answers ranges by `sendfile`, and that one behind a proxy that cuts all connections every
second.
"""

import argparse
import hashlib
import io
import multiprocessing
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import results
import soundfile

from stentor.data import storage_cache
from stentor.data.load_audio import load_audio
from stentor.data.storage import as_path
from stentor.data.storage_cache import local_copy, prefetch
from stentor.data.tar import index
from stentor.sources.shards import Shards

sys.path.append(str(Path(__file__).parent.parent / "tests"))
RATE, SECONDS = 16000, 12.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=30.0, help="of audio in each shard")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total = make(Path(folder) / "data", args.shards, args.minutes)
        print(f"{args.shards} shards, {args.minutes * args.shards / 60:.1f} h of FLAC, {total / 1e6:.0f} MB\n")
        with servers(Path(folder) / "data") as (addresses, cuts):
            rows = compare(addresses, Path(folder), total, args.rounds)
            cut = cuts.value
    print(f"\nconnections cut: {cut}; every byte of every round is the same")
    results.write("storage", rows, shards=args.shards, bytes=total, rounds=args.rounds, connections_cut=cut)


def make(folder: Path, shards: int, minutes: float) -> int:
    """Shards of FLAC with labels: noise through a slow envelope, which is coded about as speech is."""
    folder.mkdir()
    rng, lines = np.random.default_rng(0), []
    time_ = np.arange(round(SECONDS * RATE)) / RATE
    voices = []
    for _ in range(16):
        noise = np.convolve(rng.standard_normal(len(time_)), np.hanning(9), "same")
        voices.append((0.02 * noise * (1.1 + np.sin(2 * np.pi * 3 * time_ + rng.uniform(0, 6)))).astype(np.float32))
    for number in range(shards):
        tar, labels = folder / f"shard-{number:06d}.tar", folder / f"shard-{number:06d}.jsonl"
        count = round(minutes * 60 / SECONDS)
        with tarfile.open(tar, "w") as file, labels.open("w") as text:
            for i in range(count):
                data = io.BytesIO()
                soundfile.write(data, np.roll(voices[i % 16], i * 997), RATE, "PCM_16", format="FLAC")
                member = tarfile.TarInfo(f"{number:06d}_{i:06d}.flac")
                member.size = len(data.getvalue())
                file.addfile(member, io.BytesIO(data.getvalue()))
                text.write(f'{{"id": "{number:06d}_{i:06d}", "audio_duration": {SECONDS}}}\n')
        lines.append(f"{tar.name} {labels.name} {count} {count * SECONDS}\n")
    (folder / "data.lst").write_text("".join(lines))
    return sum(f.stat().st_size for f in folder.glob("*.tar"))


@contextmanager
def servers(folder: Path) -> Iterator[tuple[dict[str, str], Any]]:
    """Addresses of the folder, by the way it is read, and how many connections were cut."""
    spawn = multiprocessing.get_context("spawn")
    answers, cuts = spawn.Queue(), spawn.Value("i", 0)
    processes = []

    def start(target: Callable[..., None], *arguments: Any) -> Any:
        processes.append(spawn.Process(target=target, args=(*arguments, answers), daemon=True))
        processes[-1].start()
        return answers.get(timeout=120)

    environment, bucket = start(serve_s3, folder)
    os.environ.update(environment)
    web = start(serve_web, folder)
    proxy = start(cut_connections, web, cuts)
    yield (
        {
            "local disk": str(folder),
            "S3 stand-in (moto)": bucket,
            "web server": f"http://127.0.0.1:{web}",
            "web server, a cut each second": f"http://127.0.0.1:{proxy}",
        },
        cuts,
    )
    for process in processes:
        process.terminate()
        process.join()


def serve_s3(folder: Path, answers: Any) -> None:
    from s3_stand_in import Folder, StandIn

    server = StandIn()
    answers.put((server.environment(), Folder(server, "shards").put_folder("data", folder)))
    time.sleep(3600)


def serve_web(folder: Path, answers: Any) -> None:
    from s3_stand_in import WebServer

    answers.put(WebServer(folder, ranges=True).port)
    time.sleep(3600)


def cut_connections(port: int, cuts: Any, answers: Any) -> None:
    from s3_stand_in import CuttingProxy

    proxy = CuttingProxy("127.0.0.1", port, cut_every=1.0)
    answers.put(proxy.port)
    while True:
        time.sleep(0.2)
        cuts.value = proxy.cuts


def compare(addresses: dict[str, str], folder: Path, total: int, rounds: int) -> list[dict[str, Any]]:
    os.environ["STENTOR_CACHE_GB"] = str(4 * total / 1e9)
    ways: list[tuple[str, str, Callable[[str], Any]]] = [
        *((name, address, read_bytes) for name, address in addresses.items()),
        ("S3 stand-in, plain boto3", addresses["S3 stand-in (moto)"], with_boto3),
        *((name, address, decoded) for name, address in addresses.items()),
    ]
    times: dict[tuple[str, str], list[float]] = {(name, KINDS[what]): [] for name, _, what in ways}
    sums: dict[str, set[Any]] = {}
    for number in range(rounds):
        for place, (name, address, what) in enumerate(ways):
            os.environ["STENTOR_CACHE"] = str(folder / f"cache{number}-{place}")
            storage_cache._known.clear()
            began = time.perf_counter()
            sums.setdefault(KINDS[what], set()).add(what(address))
            times[name, KINDS[what]].append(time.perf_counter() - began)
    assert all(len(known) == 1 for known in sums.values()), "all ways read the same"
    rows = []
    for (name, what), seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(times["local disk", what], seconds, strict=True))
        rate = total / 1e6 / statistics.median(seconds)
        rows.append({"way": name, "what": what, "mb_per_second": round(rate, 1), "ratio_to_local": round(ratio, 2)})
        print(f"{what:12} {name:32} {rate:8.1f} MB/s {ratio:6.2f}x")
    return rows


def read_bytes(address: str) -> str:
    """Every member of every shard, in order; a hash of all."""
    digest = hashlib.blake2b()
    tars = [as_path(address) / f"shard-{i:06d}.tar" for i in range(count_of(address))]
    for tar, following in zip(tars, [*tars[1:], None], strict=True):
        if following is not None:
            prefetch(following)
        add(digest, local_copy(tar))
    return digest.hexdigest()


def with_boto3(address: str) -> str:
    """As `read_bytes`, each shard downloaded by Amazon's own client before it is read."""
    import boto3

    digest, folder = hashlib.blake2b(), as_path(os.environ["STENTOR_CACHE"])
    folder.mkdir()
    client = boto3.client("s3")
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    for i in range(count_of(address)):
        client.download_file(bucket, f"{prefix}/shard-{i:06d}.tar", str(folder / "shard.tar"))
        add(digest, folder / "shard.tar")
    return digest.hexdigest()


def add(digest: Any, tar: Path) -> None:
    members = index(tar).members
    with tar.open("rb") as file:
        for offset, size in members.values():
            file.seek(offset)
            digest.update(file.read(size))


def count_of(address: str) -> int:
    return len((as_path(address) / "data.lst").read_text().splitlines())


def decoded(address: str) -> float:
    """The stream as training reads it; the sum of all samples."""
    stream = Shards(type="shards", path=as_path(address) / "data.lst", stream=True, mix=1)
    return float(sum(np.abs(load_audio(cut, RATE)).sum(dtype=np.float64) for cut in stream.cuts()))


KINDS: dict[Callable[[str], Any], str] = {read_bytes: "bytes", with_boto3: "bytes", decoded: "decoded"}


if __name__ == "__main__":
    main()
