"""Storage: token shards, shards of audio at an address, checkpoints."""

import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import soundfile
import torch
import torch.multiprocessing
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks import harness
from benchmarks.harness import FOLDER, RATE, Result, Row, Rows, Table, benchmark
from stentor.data import storage_cache
from stentor.data.codec_tokens import load_codes
from stentor.data.load_audio import load_audio
from stentor.data.storage import as_path
from stentor.data.storage_cache import local_copy, prefetch
from stentor.data.tar import index
from stentor.engine.checkpoint_writer import CheckpointWriter, PendingCheckpoint
from stentor.engine.device import Communicator, give_back_memory
from stentor.engine.ema import trained_tensors
from stentor.engine.optim import optimizer_state
from stentor.engine.sharding import own_shards
from stentor.models.pretrained.weights import write_weights
from stentor.sources.shards import Shards

# Token shards


@benchmark
def shards(shards: int = 8, samples: Annotated[int, "In each shard."] = 1000, rounds: int = 3) -> Result:
    """Reading token shards: ours, shuffled, beside plain `tarfile` and `json` in arrival order and beside webdataset.

    Samples per second of one core's time (median over rounds in which all ways take turns; the files are in the page
    cache), the ratio to plain reading, and the memory that an open shard of a stream takes. "labels" is what the
    training process does, to plan batches and to find its place again when a run resumes; "codes" is what the loader
    workers do; "both" is one after the other in a single process, which is what plain reading does. webdataset, where
    it is installed, reads as in OmniVoice's training: decoded, through a buffer of 1000 samples to shuffle in, labels
    beside it.
    """
    with tempfile.TemporaryDirectory() as folder:
        total = write_token_shards(Path(folder), shards, samples)
        rows = _read_token_shards(Path(folder), shards, samples, rounds)
        held = _held_by_a_shard(Path(folder))
    print(f"\nopen shards of a stream (4): {held:.2f} MB each at most")
    return rows, {"shards": shards, "samples": samples, "bytes": total, "mb_per_open_shard": held}


def _write_shard(folder: Path, number: int, members: Iterable[tuple[str, bytes, Row]]) -> tuple[Path, Path]:
    """A tar of named members with a file of their labels beside it."""
    tar, labels = folder / f"shard-{number:06d}.tar", folder / f"shard-{number:06d}.jsonl"
    rows = []
    with tarfile.open(tar, "w") as file:
        for name, data, label in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
            rows.append({"id": name.rpartition(".")[0], **label})
    return tar, harness.write_lines(labels, rows)


def write_token_shards(folder: Path, shards: int, samples: int) -> int:
    """Shards as OmniVoice's, with lengths as in read and spontaneous speech; returns their bytes."""
    rng = np.random.default_rng(0)

    def members(number: int) -> Iterator[tuple[str, bytes, Row]]:
        for i in range(samples):
            frames = int(np.clip(rng.gamma(2.2, 3.8) + 1.5, 1, 30) * 25)  # 25 a second, as OmniVoice's codec
            data = io.BytesIO()
            np.save(data, rng.integers(0, 1024, (8, frames)).astype(np.int16))
            name = f"speaker{i % 97:03d}_{number:06d}_{i:06d}"
            text = "the quick brown fox jumps over the lazy dog " * (1 + frames // 90)
            label = {"audio_path": f"/data/audio/{name}.flac", "language_id": "en", "text": text}
            yield f"{name}.npy", data.getvalue(), label | {"num_tokens": frames, "audio_duration": frames / 25}

    pairs = [_write_shard(folder, number, members(number)) for number in range(shards)]
    (folder / "data.lst").write_text("".join(f"{tar} {labels} {samples} 0.0\n" for tar, labels in pairs))
    return sum(tar.stat().st_size for tar, _ in pairs)


def _read_token_shards(folder: Path, shards: int, samples: int, rounds: int) -> Rows:
    stream = Shards(type="shards", path=folder, stream=True).lane(0, 1, (0, 0))
    cuts: list[Any] = list(stream.cuts())
    ways: dict[str, Callable[[], int]] = {
        "plain: tarfile + json, arrival order": lambda: sum(codes.shape[1] for _, codes in _plain(folder)),
        "ours: labels, shuffled": lambda: sum(cut.custom["num_tokens"] for cut in stream.cuts()),
        "ours: codes, shuffled": lambda: sum(load_codes(cut, 8, 1024).shape[1] for cut in cuts),
        "ours: both, shuffled": lambda: sum(load_codes(cut, 8, 1024).shape[1] for cut in stream.cuts()),
    }
    if importlib.util.find_spec("webdataset"):
        ways["webdataset: both, shuffled"] = lambda: sum(codes.shape[1] for _, codes in _with_webdataset(folder))
    read: set[int] = set()
    taken = harness.in_turns({name: lambda way=way: read.add(way()) for name, way in ways.items()}, rounds)
    assert len(read) == 1, "all ways read the same"
    table, plain = Table(), taken["plain: tarfile + json, arrival order"]
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        row = {"way": name, "samples_per_second": round(shards * samples / middle)}
        row |= {"ratio_to_plain": round(harness.ratio(plain, seconds), 2)}
        table.add(row | {"shards_per_second": round(shards / middle, 2)})
    return table


def _known(folder: Path) -> Iterator[tuple[str, dict[str, Row]]]:
    """Each tar with its labels by their id."""
    for line in (folder / "data.lst").read_text().splitlines():
        tar, labels, _, _ = line.split()
        with open(labels) as lines:
            yield tar, {label["id"]: label for label in map(json.loads, lines)}


def _plain(folder: Path) -> Iterator[tuple[Row, np.ndarray]]:
    """Labels and codes in the order of the files, as one would write it down."""
    for tar, known in _known(folder):
        with tarfile.open(tar) as file:
            for member in file:
                yield known[member.name[:-4]], np.load(io.BytesIO(file.extractfile(member).read()))


def _with_webdataset(folder: Path) -> Iterator[tuple[Row, np.ndarray]]:
    """Labels and codes as webdataset gives them."""
    import webdataset

    labels = dict(_known(folder))
    known = {key: label for part in labels.values() for key, label in part.items()}
    for sample in webdataset.WebDataset(list(labels), shardshuffle=False).decode().shuffle(1000, seed=0):
        yield known[sample["__key__"]], sample["npy"]


def _held_by_a_shard(folder: Path) -> float:
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


# Shards of audio at an address

SECONDS = 12.0


@benchmark
def storage(shards: int = 12, minutes: Annotated[float, "Of audio in each shard."] = 30.0, rounds: int = 3) -> Result:
    """Reading shards of audio at an address beside the same shards on local disk, and with connections that are cut.

    Megabytes per second of the clock (median over rounds in which all ways take turns, the cache empty each time).
    "bytes" brings the shards and reads every member, also with boto3; "decoded" does what the loader does: labels,
    index, FLAC to float32. The servers are processes of their own on this machine: moto's (the stand-in for S3 that the
    tests use, in Python), a web server that answers ranges by `sendfile`, and that one behind a proxy that cuts all
    connections every second.
    """
    with tempfile.TemporaryDirectory() as folder:
        total = _audio_shards(Path(folder) / "data", shards, minutes)
        print(f"{shards} shards, {minutes * shards / 60:.1f} h of FLAC, {total / 1e6:.0f} MB")
        with _servers(Path(folder) / "data") as (addresses, cuts):
            rows = _read_audio_shards(addresses, Path(folder), total, rounds)
            facts = {"shards": shards, "bytes": total, "rounds": rounds, "connections_cut": cuts.value}
    print(f"\nconnections cut: {facts['connections_cut']}; every byte of every round is the same")
    return rows, facts


def _audio_shards(folder: Path, shards: int, minutes: float) -> int:
    """Shards of FLAC with labels: noise through a slow envelope, which is coded about as speech is."""
    folder.mkdir()
    rng, voices = np.random.default_rng(0), []
    at, count = np.arange(round(SECONDS * RATE)) / RATE, round(minutes * 60 / SECONDS)
    for _ in range(16):
        noise = np.convolve(rng.standard_normal(len(at)), np.hanning(9), "same")
        voices.append((0.02 * noise * (1.1 + np.sin(2 * np.pi * 3 * at + rng.uniform(0, 6)))).astype(np.float32))

    def members(number: int) -> Iterator[tuple[str, bytes, Row]]:
        for i in range(count):
            data = io.BytesIO()
            soundfile.write(data, np.roll(voices[i % 16], i * 997), RATE, "PCM_16", format="FLAC")
            yield f"{number:06d}_{i:06d}.flac", data.getvalue(), {"audio_duration": SECONDS}

    pairs = [_write_shard(folder, number, members(number)) for number in range(shards)]
    lines = (f"{tar.name} {labels.name} {count} {count * SECONDS}\n" for tar, labels in pairs)
    (folder / "data.lst").write_text("".join(lines))
    return sum(tar.stat().st_size for tar, _ in pairs)


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[dict[str, str], Any]]:
    """Addresses of the folder, by the way it is read, and how many connections were cut."""
    spawn = multiprocessing.get_context("spawn")
    answers, cuts = spawn.Queue(), spawn.Value("i", 0)
    processes = []

    def start(target: Callable[..., None], *arguments: Any) -> Any:
        processes.append(spawn.Process(target=target, args=(*arguments, answers), daemon=True))
        processes[-1].start()
        return answers.get(timeout=120)

    environment, bucket = start(_serve_s3, folder)
    os.environ.update(environment)
    web = start(_serve_web, folder)
    cutting = start(_cut_connections, web, cuts)
    addresses = {"local disk": str(folder), "S3 stand-in (moto)": bucket, "web server": f"http://127.0.0.1:{web}"}
    yield {**addresses, "web server, a cut each second": f"http://127.0.0.1:{cutting}"}, cuts
    for process in processes:
        process.terminate()
        process.join()


def stand_ins() -> Any:
    """The servers of the tests."""
    sys.path.append(str(FOLDER.parent / "tests"))
    import s3_stand_in

    return s3_stand_in


def _serve_s3(folder: Path, answers: Any) -> None:
    server = stand_ins().StandIn()
    answers.put((server.environment(), stand_ins().Folder(server, "shards").put_folder("data", folder)))
    time.sleep(3600)


def _serve_web(folder: Path, answers: Any) -> None:
    answers.put(stand_ins().WebServer(folder, ranges=True).port)
    time.sleep(3600)


def _cut_connections(port: int, cuts: Any, answers: Any) -> None:
    proxy = stand_ins().CuttingProxy("127.0.0.1", port, cut_every=1.0)
    answers.put(proxy.port)
    while True:
        time.sleep(0.2)
        cuts.value = proxy.cuts


def _read_audio_shards(addresses: dict[str, str], folder: Path, total: int, rounds: int) -> Rows:
    os.environ["STENTOR_CACHE_GB"] = str(4 * total / 1e9)
    local, moto = "local disk", "S3 stand-in (moto)"
    ways: list[tuple[str, str, str, Callable[[str], Any]]] = [
        *((name, "bytes", address, _read_bytes) for name, address in addresses.items()),
        ("S3 stand-in, plain boto3", "bytes", addresses[moto], _with_boto3),
        *((name, "decoded", address, _decoded) for name, address in addresses.items()),
    ]
    times: dict[tuple[str, str], list[float]] = {(name, what): [] for name, what, _, _ in ways}
    sums: dict[str, set[Any]] = {"bytes": set(), "decoded": set()}
    for number in range(rounds):
        for place, (name, what, address, read) in enumerate(ways):
            os.environ["STENTOR_CACHE"] = str(folder / f"cache{number}-{place}")
            storage_cache._known.clear()
            began = time.perf_counter()
            sums[what].add(read(address))
            times[name, what].append(time.perf_counter() - began)
    assert all(len(known) == 1 for known in sums.values()), "all ways read the same"
    table = Table()
    for (name, what), seconds in times.items():
        rate = round(total / 1e6 / statistics.median(seconds), 1)
        ratio = round(harness.ratio(times[local, what], seconds), 2)
        table.add({"way": name, "what": what, "mb_per_second": rate, "ratio_to_local": ratio})
    return table


def _read_bytes(address: str) -> str:
    """Every member of every shard, in order; a hash of all."""
    digest = hashlib.blake2b()
    tars = [as_path(address) / f"shard-{i:06d}.tar" for i in range(_count_of(address))]
    for tar, following in zip(tars, [*tars[1:], None], strict=True):
        if following is not None:
            prefetch(following)
        _add(digest, local_copy(tar))
    return digest.hexdigest()


def _with_boto3(address: str) -> str:
    """As `_read_bytes`, each shard downloaded by Amazon's own client before it is read."""
    import boto3

    digest, folder = hashlib.blake2b(), Path(os.environ["STENTOR_CACHE"])
    folder.mkdir()
    client = boto3.client("s3")
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    for i in range(_count_of(address)):
        client.download_file(bucket, f"{prefix}/shard-{i:06d}.tar", str(folder / "shard.tar"))
        _add(digest, folder / "shard.tar")
    return digest.hexdigest()


def _add(digest: Any, tar: Path) -> None:
    members = index(tar).members
    with tar.open("rb") as file:
        for offset, size in members.values():
            file.seek(offset)
            digest.update(file.read(size))


def _count_of(address: str) -> int:
    return len((as_path(address) / "data.lst").read_text().splitlines())


def _decoded(address: str) -> float:
    """The stream as training reads it; the sum of all samples."""
    stream = Shards(type="shards", path=as_path(address) / "data.lst", stream=True, mix=1)
    return float(sum(np.abs(load_audio(cut, RATE)).sum(dtype=np.float64) for cut in stream.cuts()))


# Checkpoints

WIDTH = 1024
TARGETS = {"blocked_per_gib": 0.1, "memory_of_share": 1.2}


@benchmark
def checkpoints(
    processes: int = 2,
    gib: float = 1.0,
    rounds: int = 3,
    folder: Annotated[Path | None, "Where to write; by default a temporary folder."] = None,
) -> Result:
    """Checkpoints: how long training is blocked and what rank 0 holds, beside gathering everything on rank 0.

    A model of equal layers is trained with AdamW under FSDP2 over gloo, one thread a process. `gib` is what a
    checkpoint holds in resume/ (weights and two moments, float32). Each round saves once in each way, with steps in
    between:

    beside    as Stentor does: every rank copies its rows while the next forward and backward run, and writes them; the
              main one assembles the export (`blocked`: what a step waits for, until the weights may change)
    alone     the same without a forward and backward in between: what copying takes
    gathered  as Stentor did until 0.5: rank 0 gathers weights and moments, writes, hashes and flushes them and the
              export, while all wait

    `share` is what rank 0 writes of resume/, `memory` what its process holds at most above what it held before
    (anonymous pages, read from /proc every 5 ms; pages of mapped files, which the system takes back when it needs them,
    are not among them); that of `beside` includes what the steps take. Steps that were taken while a checkpoint was
    written are counted.
    """
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        torch.multiprocessing.spawn(_rank, (processes, gib, rounds, Path(place), queue.put), nprocs=processes)
        found = queue.get()
    share = found[0]["beside"]["share"]
    size = share * processes / 2**30
    table = Table()
    for way in ("gathered", "alone", "beside"):
        values = harness.medians({key: [r[way][key] for r in found] for key in found[0][way]})
        row: Row = {"way": way, "blocked": round(values["blocked"], 3)}
        row |= {"blocked_per_gib": round(values["blocked"] / size, 4), "memory_mib": round(values["memory"] / 2**20)}
        row |= {"share_mib": round(share / 2**20), "memory_of_share": round(values["memory"] / share, 2)}
        if way == "beside":
            row |= {k: round(values[k], 3) for k in ("until_written", "steps_meanwhile", "step_meanwhile")}
        table.add(row | {"step": round(statistics.median(r["step"] for r in found), 3)})
    harness.verdict("seconds blocked a GiB", table[2]["blocked_per_gib"], most=TARGETS["blocked_per_gib"])
    harness.verdict("rank 0's memory by its share", table[1]["memory_of_share"], most=TARGETS["memory_of_share"])
    return table, {"gib": round(size, 3), "processes": processes, "targets": TARGETS}


class Peak:
    """The most anonymous memory inside the block, above what there was at its beginning."""

    def __enter__(self) -> "Peak":
        give_back_memory()  # freed memory would be taken again unseen
        self.before, self.most, self.done = harness.memory("RssAnon"), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, harness.memory("RssAnon") - self.before)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


class ShardedRun:
    """A sharded model in training, and the two ways to save it."""

    def __init__(self, gib: float, folder: Path):
        torch.manual_seed(0)
        world, layers = distributed.get_world_size(), max(1, round(gib * 2**30 / 3 / (4 * WIDTH * WIDTH)))
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
        mesh = init_device_mesh("cpu", (world,))
        for module in [*self.model, self.model]:
            fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.folder, self.communicator, self.main = folder, Communicator(world), distributed.get_rank() == 0
        self.writer = CheckpointWriter(self.communicator, folder / "beside", torch.device("cpu"))
        self.number = 0

    def backward(self) -> None:
        self.model(torch.randn(256, WIDTH)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> float:
        started = time.perf_counter()
        self.backward()
        self.update()
        return time.perf_counter() - started

    def tensors(self) -> dict[str, Any]:
        moments = optimizer_state([self.optimizer], self.model)[0]
        return {"weights": trained_tensors(self.model), "optimizer": moments}

    def beside(self, covered: bool = True) -> Row:
        self.number += 1
        with Peak() as peak:
            started = time.perf_counter()
            shards = {kind: own_shards(tensors) for kind, tensors in self.tensors().items()}
            share = sum(s.data.nbytes for kind in shards.values() for s in kind.values())
            pending = PendingCheckpoint(self.number, "{}", shards, {}, {}, _export, lambda _: None)
            self.writer.start(pending)
            del shards, pending
            blocked = time.perf_counter() - started
            if covered:
                self.backward()
            waiting = time.perf_counter()
            self.writer.wait_for_copy()
            waited = time.perf_counter() - waiting
            if covered:
                self.update()
            steps = []
            while covered and self.communicator.sum([float(self.writer.finished)])[0] < self.communicator.world:
                steps.append(self.step())
            self.writer.wait()
            written = time.perf_counter() - started
        if self.main:
            shutil.rmtree(self.folder / "beside")
        row = {"blocked": blocked + waited, "until_written": written, "memory": peak.most, "share": share}
        slower = statistics.median(steps) if steps else 0.0
        return row | {"steps_meanwhile": covered + len(steps), "step_meanwhile": slower}

    def gathered(self) -> Row:
        target = self.folder / "gathered"
        with Peak() as peak:
            started = time.perf_counter()
            kept: dict[str, dict[str, Any]] = {"weights": {}, "optimizer": {}}
            for kind, tensors in self.tensors().items():
                for name, tensor in tensors.items():
                    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                    if self.main:
                        kept[kind][name] = whole.detach().clone()
            if self.main:
                _write_gathered(target, kept)
            self.communicator.barrier()
            blocked = time.perf_counter() - started
        if self.main:
            shutil.rmtree(target)
        return {"blocked": blocked, "memory": peak.most}


def _export(folder: Path, tensors: dict[str, Any]) -> None:
    write_weights(tensors, folder)


def _write_gathered(target: Path, kept: dict[str, dict[str, Any]]) -> None:
    """The former `engine.checkpoint.write`."""
    temporary = target.with_name("temporary")
    (temporary / "export").mkdir(parents=True)
    for kind, tensors in kept.items():
        save_file(tensors, temporary / f"{kind}.safetensors")
    write_weights(kept["weights"], temporary / "export")
    files = [p for p in temporary.rglob("*") if p.is_file()]
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))  # type: ignore[arg-type]
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    temporary.rename(target)


def _rank(rank: int, world: int, gib: float, rounds: int, folder: Path, answer: Callable[[Any], None]) -> None:
    harness.set_threads(1)
    store = distributed.FileStore(str(folder / "store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(minutes=10))
    run = ShardedRun(gib, folder)
    run.step()  # the moments come with it
    found = []
    for _ in range(rounds):
        alone = statistics.median(run.step() for _ in range(3))
        found.append({"step": alone, "gathered": run.gathered(), "beside": run.beside(), "alone": run.beside(False)})
    if rank == 0:
        answer(found)
    distributed.destroy_process_group()
