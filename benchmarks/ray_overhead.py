"""`stentor prepare tokens` on Ray beside local processes of the same number, on one machine, in turns.

    python benchmarks/ray_overhead.py [--hours 2] [--jobs 2] [--rounds 3]

Speech of the built-in voice is encoded by a small fitted codec (mel_rvq). CPU time counts all processes: the command,
its workers and the cluster (GCS, raylet, agents), which is there for both ways. The cluster is started once before the
rounds, as where people have one; what its start takes is told apart. Both ways must give the same bytes.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import results

from stentor.audio.io import write
from stentor.audio.synth import RATE, say
from stentor.models.codecs.mel_rvq.config import MelRVQ

SENTENCES = ("the quick brown fox jumps over the lazy dog", "a cold wind came down from the hills that night")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seconds = make(folder, args.hours * 3600)
        began = time.perf_counter()
        with cluster(args.jobs) as (address, processes):
            start = time.perf_counter() - began
            print(f"{seconds / 3600:.2f} hours, {args.jobs} workers; the cluster starts in {start:.1f} s\n")
            rows = [round_of(folder, number, args.jobs, address, processes) for number in range(args.rounds)]
    for kind in ("wall", "cpu"):
        ratio = statistics.median(row[f"ray_{kind}"] / row[f"local_{kind}"] for row in rows)
        print(f"{kind}: Ray takes {ratio - 1:+.1%} (median of {len(rows)} rounds)")
    facts = {"hours": seconds / 3600, "jobs": args.jobs, "cluster_start_s": start}
    results.write("ray_overhead", rows, **facts)


def make(folder: Path, seconds: float) -> float:
    """A manifest of clips of about 12 s; answers their seconds."""
    total, records, clips = 0.0, [], []
    while total < seconds:
        number = len(records)
        text = f"number {number} " + " ".join(SENTENCES[(number + i) % 2] for i in range(5))
        audio = say(text, speed=150 + number % 40).audio
        write(folder / f"{number}.wav", audio, RATE)
        records.append({"id": f"r{number}", "audio_path": f"{number}.wav", "text": text, "duration": len(audio) / RATE})
        total += len(audio) / RATE
        clips += [audio] if number < 8 else []
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    MelRVQ().fit(clips).save(folder / "codec")
    return total


@contextlib.contextmanager
def cluster(cpus: int):
    """A cluster of one node: its address, and a function that lists its processes."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": 200 * 2**20, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=node)

    def processes() -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)

    try:
        yield started.address, processes
    finally:
        started.shutdown()


class Meter:
    """CPU seconds of processes that come and go: each is looked at a few times a second."""

    def __init__(self, processes: Callable[[], list[psutil.Process]]):
        self.processes, self.ended, self.seconds = processes, threading.Event(), dict[tuple[int, float], float]()
        self.look()
        self.before = sum(self.seconds.values())
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def look(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seconds[process.pid, process.create_time()] = sum(process.cpu_times()[:2])

    def watch(self) -> None:
        while not self.ended.wait(0.2):
            self.look()

    def stop(self) -> float:
        """Seconds since the start."""
        self.ended.set()
        self.thread.join()
        self.look()
        return sum(self.seconds.values()) - self.before


def round_of(folder: Path, number: int, jobs: int, address: str, processes) -> dict[str, float]:
    """Wall and CPU seconds of both ways, which start in turn."""
    row: dict[str, float] = {}
    ways = {"local": [], "ray": ["--ray", address]}
    for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
        to = folder / f"{name}{number}"
        command = [sys.executable, "-m", "stentor", "prepare", "tokens", folder / "data.jsonl", "--device", "cpu"]
        command += ["--codec", folder / "codec", "--to", to, "--jobs", jobs, *ways[name]]
        meter, began = Meter(processes), time.perf_counter()
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        row[f"{name}_wall"] = time.perf_counter() - began
        row[f"{name}_cpu"] = meter.stop()
    row = {key: round(value, 2) for key, value in row.items()}
    contents = [
        {p.name: p.read_bytes() for p in (folder / f"{name}{number}").glob("shard-*")} for name in ("local", "ray")
    ]
    if contents[0] != contents[1] or not contents[0]:
        raise RuntimeError("the shards differ")
    print("  ".join(f"{key} {value:.1f} s" for key, value in row.items()), flush=True)
    return row


if __name__ == "__main__":
    main()
