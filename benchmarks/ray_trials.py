"""`stentor prepare tokens --ray` while a node and the driver are killed at random: the bytes are those of a local run.

Each trial starts a Ray cluster of two nodes of one CPU, kills one node (SIGKILL) and the command (SIGKILL) at random
times, starts the command again, and compares shards, labels, data.lst, errors.jsonl, summary.json and settings.json
with those of a run without Ray. Ten of 106 records have broken audio. With --s3 the output goes to an S3 stand-in
(moto), and the command that goes on has lost its local work folder.

    python benchmarks/ray_trials.py --trials 10 --seed 0 [--s3]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

RATE = 16000
SLOWLY = """\
import time
from typing import Literal
from stentor.engine.callback import Callback

class Slow(Callback):
    type: Literal["slow"] = "slow"

from stentor.models.codecs.mel_rvq.codec import MelRVQCodec
from stentor.commands.prepare.tokens import plan
plan.GROUP_ITEMS = 2
encode = MelRVQCodec._encode
MelRVQCodec._encode = lambda *a: (time.sleep(0.2), encode(*a))[1]
"""
"""A plug-in: small groups that take a while, so that there is something to kill."""
LATEST = 12.0
"""Seconds after its first group at which the command is killed, and a node, at most: about what the work takes."""
LONGEST = 240.0
"""Seconds that a command may take."""


def make_data(folder: Path) -> list[str]:
    """A manifest of noise with a codec that is fitted on it; the arguments of `stentor` that encode it."""
    from stentor.audio.io import write
    from stentor.models.codecs.mel_rvq.config import MelRVQ

    rng = np.random.default_rng(0)
    clips = [rng.normal(0, 0.1, rng.integers(4000, 24000)).astype(np.float32) for _ in range(96)]
    records = []
    for i, clip in enumerate(clips):
        write(folder / f"r{i}.wav", clip, RATE)
        records.append({"id": f"r{i}", "audio_path": f"r{i}.wav", "text": f"number {i}"})
    for i in range(10):
        broken = folder / f"broken{i}.wav"
        if i % 3 == 0:
            write(broken, np.zeros(8000, np.float32), RATE)
        elif i % 3 == 1:
            broken.write_bytes(b"RIFF this is no audio")
        duration = {} if i % 3 == 0 else {"duration": 1.0}
        records.insert(i * 9, {"id": f"b{i}", "audio_path": broken.name, "text": "broken", **duration})
    (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    MelRVQ(codebooks=2, entries=16, mels=20, rounds=2).fit(clips[:8]).save(folder / "codec")
    (folder / "slowly.py").write_text(SLOWLY)
    names = {"--codec": folder / "codec", "--plugin": folder / "slowly.py", "--min-shards": 6, "--device": "cpu"}
    return ["prepare", "tokens", str(folder / "data.jsonl"), *(str(x) for pair in names.items() for x in pair)]


def start(arguments: list[str], to: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "stentor", *arguments, "--to", to]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


def contents(folder: Path, name: str) -> dict[str, bytes]:
    """All files by their path, `name` of the folder taken out of them."""
    return {
        str(file.relative_to(folder)): file.read_bytes().replace(name.encode(), b"TO")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


class Storage:
    """An S3 stand-in on this machine."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(port=0)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.environment = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        self.environment |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        import s3fs

        client = {"endpoint_url": self.environment["AWS_ENDPOINT_URL"]}
        self.files = s3fs.S3FileSystem(key="testing", secret="testing", client_kwargs=client, use_listings_cache=False)
        self.files.mkdir("bucket")

    def fetch(self, name: str, folder: Path) -> None:
        """All that lies under an address, into a folder."""
        self.files.get(name, str(folder), recursive=True)


def groups_done(folder: Path) -> int:
    """Lines of the command's journal; at an address it has a copy on this machine."""
    journals = list(folder.rglob("tokens.part"))
    return max(0, journals[0].read_bytes().count(b"\n") - 1) if journals and journals[0].is_file() else 0


def trial(seed: int, arguments: list[str], folder: Path, storage: Storage | None) -> tuple[dict[str, bytes], str]:
    """The files that are there in the end, and what happened."""
    from ray.cluster_utils import Cluster

    rng = random.Random(seed)
    node_at, driver_at = rng.uniform(0, LATEST), rng.uniform(0, LATEST)
    to = str(folder / "out") if storage is None else f"s3://bucket/trial-{seed}"
    environment = {"STENTOR_CACHE": str(folder / "cache"), **({} if storage is None else storage.environment)}
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node)
    happened = []
    try:
        arguments = [*arguments, "--ray", cluster.address]
        process = start(arguments, to, **environment)
        while not groups_done(folder):
            time.sleep(0.05)
        began = time.monotonic()
        kill_node = threading.Timer(node_at, lambda: cluster.remove_node(other, allow_graceful=False))
        kill_node.start()
        try:
            process.wait(driver_at)
            happened.append(f"done before {driver_at:.1f} s")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            happened.append(f"driver killed at {driver_at:.1f} s, after {groups_done(folder)} groups")
            if storage is not None:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            process = start(arguments, to, **environment)
        code = process.wait(LONGEST)
        kill_node.cancel()
        ended = time.monotonic() - began
        happened.append(f"node killed at {node_at:.1f} s" if node_at < ended else "node lived")
        happened.append(f"exit {code} after {ended:.1f} s")
        if code not in (3, 0):  # over 1 % of the records cannot be used; or it was killed when all was written
            raise RuntimeError(process.stderr.read())
    finally:
        cluster.shutdown()
    if storage is not None:
        storage.fetch(to.removeprefix("s3://"), folder / "out")
    return contents(folder / "out", to), ", ".join(happened)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--s3", action="store_true")
    options = parser.parse_args()
    storage = Storage() if options.s3 else None
    differing = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = make_data(folder)
        process = start(arguments, str(folder / "local"))
        if process.wait() != 3:
            raise RuntimeError(process.stderr.read())
        expected = contents(folder / "local", str(folder / "local"))
        rejects = expected["errors.jsonl"].count(b"\n")
        print(f"local: {len(expected)} files, {rejects} rejects", flush=True)
        for seed in range(options.seed, options.seed + options.trials):
            (folder / str(seed)).mkdir()
            files, happened = trial(seed, arguments, folder / str(seed), storage)
            different = sorted(n for n in expected.keys() | files.keys() if expected.get(n) != files.get(n))
            differing += bool(different)
            print(
                f"seed {seed}: {happened}; {'differs: ' + ', '.join(different) if different else 'equal'}", flush=True
            )
    print(f"{options.trials - differing} of {options.trials} trials equal")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
