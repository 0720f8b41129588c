"""Checkpoints: how long training is blocked and what rank 0 holds, beside gathering everything on rank 0; in one run.

    python benchmarks/checkpoints.py [--processes 2] [--gib 1.0] [--rounds 3] [--folder FOLDER]

A model of equal layers is trained with AdamW under FSDP2 over gloo, one thread a process. `gib` is what a checkpoint
holds in resume/ (weights and two moments, float32). Each round saves once in both ways, with steps in between:

beside    as Stentor does: every rank copies its rows while the next forward and backward run, and writes them; the main
          one assembles the export (`blocked`: what a step waits for, until the weights may change)
alone     the same without a forward and backward in between: what copying takes
gathered  as Stentor did until 0.5: rank 0 gathers weights and moments, writes, hashes and flushes them and the export,
          while all wait

`share` is what rank 0 writes of resume/, `memory` what its process holds at most above what it held before (anonymous
pages, read from /proc every 5 ms; pages of mapped files, which the system takes back when it needs them, are not among
them); that of `beside` includes what the steps take. Steps that were taken while a checkpoint was written are counted.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import results
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stentor.engine.checkpoint_writer import CheckpointWriter, PendingCheckpoint
from stentor.engine.device import Communicator, give_back_memory
from stentor.engine.ema import trained_tensors
from stentor.engine.optim import optimizer_state
from stentor.engine.sharding import own_shards
from stentor.models.pretrained.weights import write_weights

WIDTH = 1024
ROWS = 256
"""Items of a batch."""
TARGETS = {"blocked_per_gib": 0.1, "memory_of_share": 1.2}


def anonymous() -> int:
    """Bytes of this process that lie in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not say how much memory a process holds")


class Peak:
    """The most anonymous memory inside the block, above what there was at its beginning."""

    def __enter__(self) -> "Peak":
        give_back_memory()  # freed memory would be taken again unseen
        self.before, self.most, self.done = anonymous(), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, anonymous() - self.before)

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()


class Run:
    """A sharded model in training, and the two ways to save it."""

    def __init__(self, gib: float, folder: Path):
        torch.manual_seed(0)
        layers = max(1, round(gib * 2**30 / 3 / (4 * WIDTH * WIDTH)))
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for module in [*self.model, self.model]:
            fully_shard(module, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.folder, self.communicator = folder, Communicator(dist.get_world_size())
        self.writer = CheckpointWriter(self.communicator, folder / "beside", torch.device("cpu"))
        self.number = 0

    def backward(self) -> None:
        self.model(torch.randn(ROWS, WIDTH)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> float:
        started = time.perf_counter()
        self.backward()
        self.update()
        return time.perf_counter() - started

    def beside(self, covered: bool = True) -> dict[str, float]:
        self.number += 1
        with Peak() as peak:
            started = time.perf_counter()
            shards = {
                "weights": own_shards(trained_tensors(self.model)),
                "optimizer": own_shards(optimizer_state([self.optimizer], self.model)[0]),
            }
            share = sum(s.data.nbytes for kind in shards.values() for s in kind.values())
            pending = PendingCheckpoint(
                self.number,
                "{}",
                shards,
                {},
                {},
                lambda folder, tensors: write_weights(tensors, folder),
                lambda _: None,
            )
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
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder / "beside")
        slower = statistics.median(steps) if steps else 0.0
        return {
            "blocked": blocked + waited,
            "until_written": written,
            "memory": peak.most,
            "share": share,
            "steps_meanwhile": covered + len(steps),
            "step_meanwhile": slower,
        }

    def gathered(self) -> dict[str, float]:
        main, target = dist.get_rank() == 0, self.folder / "gathered"
        with Peak() as peak:
            started = time.perf_counter()
            weights, moments = {}, {}
            for tensors, kept in (
                (trained_tensors(self.model), weights),
                (optimizer_state([self.optimizer], self.model)[0], moments),
            ):
                for name, tensor in tensors.items():
                    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                    if main:
                        kept[name] = whole.detach().clone()
            if main:
                write_gathered(target, weights, moments)
            self.communicator.barrier()
            blocked = time.perf_counter() - started
        if main:
            shutil.rmtree(target)
        return {"blocked": blocked, "memory": peak.most}


def write_gathered(target: Path, weights: dict[str, Any], moments: dict[str, Any]) -> None:
    """What `engine.checkpoint.write` did until 0.5."""
    from safetensors.torch import save_file

    temporary = target.with_name("temporary")
    (temporary / "export").mkdir(parents=True)
    save_file(weights, temporary / "weights.safetensors")
    save_file(moments, temporary / "optimizer.safetensors")
    write_weights(weights, temporary / "export")
    files = [p for p in temporary.rglob("*") if p.is_file()]
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))  # type: ignore[arg-type]
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    temporary.rename(target)


def work(rank: int, arguments: argparse.Namespace, folder: Path, answer: Callable[[Any], None]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), arguments.processes)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=arguments.processes, timeout=timedelta(minutes=10)
    )
    run = Run(arguments.gib, folder)
    run.step()  # the moments come with it
    rounds = []
    for _ in range(arguments.rounds):
        alone = statistics.median(run.step() for _ in range(3))
        rounds.append({"step": alone, "gathered": run.gathered(), "beside": run.beside(), "alone": run.beside(False)})
    if rank == 0:
        answer(rounds)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    arguments = parser.parse_args()
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        torch.multiprocessing.spawn(work, (arguments, Path(folder), queue.put), nprocs=arguments.processes)
        rounds = queue.get()
    gib = rounds[0]["beside"]["share"] * arguments.processes / 2**30
    rows = []
    for way in ("gathered", "alone", "beside"):
        values = {k: statistics.median(r[way][k] for r in rounds) for k in rounds[0][way]}
        share = rounds[0]["beside"]["share"]
        row = {
            "way": way,
            "blocked": round(values["blocked"], 3),
            "blocked_per_gib": round(values["blocked"] / gib, 4),
            "memory_mib": round(values["memory"] / 2**20),
            "share_mib": round(share / 2**20),
            "memory_of_share": round(values["memory"] / share, 2),
        }
        if way == "beside":
            row |= {k: round(values[k], 3) for k in ("until_written", "steps_meanwhile", "step_meanwhile")}
        row["step"] = round(statistics.median(r["step"] for r in rounds), 3)
        rows.append(row)
        print("  ".join(f"{k} {v}" for k, v in row.items()))
    gathered, alone, beside = rows
    print(
        f"\nA checkpoint of {gib:.2f} GiB over {arguments.processes} processes blocks training for "
        f"{beside['blocked_per_gib']:.3f} s a GiB (target {TARGETS['blocked_per_gib']}; "
        f"{alone['blocked_per_gib']:.3f} without a forward and backward in between), gathered for "
        f"{gathered['blocked_per_gib']:.2f}; rank 0 holds {alone['memory_of_share']:.2f} times its share (target "
        f"{TARGETS['memory_of_share']}), gathered {gathered['memory_of_share']:.2f}."
    )
    results.write("checkpoints", rows, gib=round(gib, 3), processes=arguments.processes, targets=TARGETS)


if __name__ == "__main__":
    main()
