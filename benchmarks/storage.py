"""Data at scale: data sets that do not fit in memory, token shards, shards at an address, checkpoints."""

import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from benchmarks.harness import FOLDER, RATE, Result, Row, Rows, Table, benchmark

from benchmarks import harness

# Imports of the package lie inside the functions: a process that measures its memory imports only what it needs.


# Data sets that do not fit in memory

CLIP = 30.0
STEPS = 100_000
RUN = """
name: start
output: {folder}/runs
task: {{type: transcribe}}
model:
  type: speech_llm
  encoder:
    config: {{model_type: parakeet_encoder, num_mel_bins: 80, hidden_size: 32, num_hidden_layers: 1,
      num_attention_heads: 2, intermediate_size: 32, subsampling_conv_channels: 16}}
  llm:
    config: {{model_type: qwen2, hidden_size: 32, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
      num_key_value_heads: 2, tie_word_embeddings: true, max_position_embeddings: 1024}}
  tokenizer: characters
data:
  train: [{{type: jsonl, path: {folder}/train.jsonl}}]
  eval: {{dev: {{type: jsonl, path: {folder}/train.jsonl, limit: 4}}}}
  batch_tokens: 600
  workers: 0
train: {{steps: 1, log_every: 1, device: cpu}}
"""


@benchmark
def large_data(what: Literal["make", "start", "simulate", "plan"], /, *, to: Path, records: int = 10_000_000) -> None:
    """Data sets that do not fit in memory: how long training takes to start and to resume, and what a rank holds.

        python benchmarks large_data make --to DIR --records 10000000    # manifest, index: 2.1 GB
        python benchmarks large_data start --to DIR                      # first batch at steps 0 and 100,000; a command
        python benchmarks large_data simulate --to DIR                   # 400 million records, 1,024 ranks: 6.4 GB more
        python benchmarks large_data plan --to DIR --records 1000000     # memory of `prepare tokens`, beside a list

    Every row is measured in a process of its own, which imports what training imports. `simulate` writes an index of
    400 million rows, of which each points to one of the 10 million lines of the manifest; so lines are really read,
    parsed and made into records, and costs counted and packed, but 40 rows share a line. Some of the 1,024 ranks run,
    one after the other; the others would do the same with other lanes. No audio is read and no model is trained.
    """
    table, manifest = Table(), to / "train.jsonl"
    if what == "make":
        _make_manifest(to, records)
    elif what == "start":
        _starts(table, to, manifest)
    elif what == "simulate":
        _simulated(table, to, manifest)
    else:
        for way in ("list", "plan"):
            table.add({"way": way, "records": records, **harness.apart(planned_shards, manifest, records, way)})


def _make_manifest(folder: Path, records: int) -> None:
    """A manifest of clips with the lengths of a read corpus, 20 languages, and its index."""
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / "clip.wav", np.random.default_rng(0).normal(0, 0.05, int(RATE * CLIP)), RATE)
    manifest, generator, block = folder / "train.jsonl", np.random.default_rng(0), 100_000
    line = '{{"id": "utt-{:09d}", "audio_path": "clip.wav", "duration": {}, "text": "{}", "language": "l{}"}}\n'
    with manifest.open("w") as file:
        for start in range(0, records, block):
            seconds = np.clip(generator.lognormal(np.log(4.9), 0.5, block), 0.5, CLIP).round(3).tolist()
            languages = generator.integers(0, 20, block).tolist()
            numbers = range(start, min(start + block, records))
            rows = zip(numbers, seconds, languages)
            file.write("".join(line.format(i, s, "one two three " * int(1 + s / 2), code) for i, s, code in rows))
    wall, cpu = harness.timed_command(harness.stentor_command("prepare", "index", manifest))
    size = sum(f.stat().st_size for f in (folder / "train.jsonl.index").iterdir())
    print(f"index: {wall:.0f} s, {cpu:.0f} s of one core, {size / records:.1f} bytes a record")


def _held() -> Row:
    """GB of this process: the most it ever held, and of that now its own and mapped from files (shared by all ranks of
    a machine)."""
    keys = {"peak_gb": "VmHWM", "own_gb": "RssAnon", "mapped_gb": "RssFile"}
    return {name: harness.memory(key) / 1.024e9 for name, key in keys.items()}


def _positions(cut: Any, seconds: float) -> int:
    """Positions as a speech language model counts them: 12.5 a second, and a token for four letters."""
    from stentor.data.cut import text_of

    return int(seconds * 12.5) + len(text_of(cut) or "") // 4 + 8


def rank_of(manifest: str, options: Row) -> Row:
    """One rank, in its own process: the time to its first batch, then some windows of its lanes."""
    import lhotse  # noqa: F401  before the clock starts

    import stentor.dataloading.dataset
    import stentor.sources.jsonl
    from stentor.dataloading.section import Data

    defaults = {"lanes": 1, "window": 1000, "rank": 0, "world": 1, "batches": 0, "tokens": 2000, "torch": 0}
    options = {**defaults, "layout": "padded", **options}
    if options["torch"]:
        import stentor.commands.train

    wall, cpu = time.time(), time.process_time()
    shape = {key: options[key] for key in ("lanes", "layout", "window")}
    source = stentor.sources.jsonl.Jsonl(type="jsonl", path=manifest)
    section = Data(train=[source], batch_tokens=options["tokens"], **shape)
    train = stentor.dataloading.dataset.train_dataset(section, 0, lambda cut: None, lambda line: None)
    sampler = train.batch_sampler(_positions)
    train.statistics(sampler)
    train.fingerprint(sampler)
    index = 0
    if "starts" in options:
        content = json.loads(Path(options["starts"]).read_text())
        index = content["index"]
        sampler.go_on(content["starts"])
    planned = sampler.shard(options["rank"], options["world"], index=index)
    first = next(planned)
    row: Row = {"seconds": time.time() - wall, "cpu": time.process_time() - cpu, "first": first.items[0].cut.id}
    cpu, items, tokens, slots = time.process_time(), 0, 0, 0
    for batch in islice(planned, options["batches"]):
        costs = [item.cost for item in batch.items]
        items, tokens = items + len(costs), tokens + sum(costs)
        slots += options["tokens"] if options["layout"] == "packed" else max(costs) * len(costs)
    if items:
        row |= {"items": items, "fill": tokens / slots, "us_per_record": (time.process_time() - cpu) / items * 1e6}
    if "save" in options:
        save, at = Path(options["save"]), (options["batches"] + 1) * options["world"]
        save.write_text(json.dumps({"index": at, "starts": sampler.starts(at)}))
        row["state_bytes"] = save.stat().st_size
    return row | {"records": train.records, "hours": train.hours, **_held()}


def _starts(table: Table, folder: Path, manifest: Path) -> None:
    """The first batch at step 0 and at step 100,000, whose place is reached by planning all steps before it."""
    place = str(folder / "place.json")
    small = {"tokens": 250}  # of about two records, or planning up to there would take minutes
    cases = [(f"{STEPS:,} steps planned", {**small, "batches": STEPS - 1, "save": place})]
    for _ in range(2):
        cases.append(("first batch at step 0", {**small, "torch": 1}))
        cases.append((f"first batch at step {STEPS:,}", {**small, "torch": 1, "starts": place}))
    for name, options in cases:
        table.add({"case": name, **harness.apart(rank_of, manifest, options)})
    for _ in range(3):
        table.add(_train_command(folder))


def _train_command(folder: Path) -> Row:
    """`stentor train` from the command to its first step, imports and all."""
    (folder / "run.yaml").write_text(RUN.format(folder=folder))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    before, began = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), time.perf_counter()
    arguments = harness.stentor_command("train", folder / "run.yaml")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("step 1/1"))
        row: Row = {"case": "stentor train", "seconds": time.perf_counter() - began}
        row["peak_gb"] = harness.memory("VmHWM", process.pid) / 1.024e9
        process.stdout.read()
    return row | {"cpu": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before}


def _simulated(table: Table, folder: Path, manifest: Path, copies: int = 40, world: int = 1024) -> None:
    """Some of 1,024 ranks on an index of 40 times as many records."""
    from stentor.data.record_index import Part, RecordIndex, identity, index_folder, write_header

    many, index = folder / "train400.jsonl", RecordIndex(manifest)
    if not many.exists():
        os.link(manifest, many)
    target = index_folder(many)
    if not (target / "index.json").exists():
        target.mkdir(exist_ok=True)
        rows = np.lib.format.open_memmap(target / "records.npy", "w+", index.records.dtype, (copies * len(index),))
        parts, at = {}, 0
        for language, part in index.parts.items():
            parts[language] = Part(at, part.count * copies, part.seconds * copies)
            for _ in range(copies):
                rows[at : at + part.count] = index.records[part.first : part.first + part.count]
                at += part.count
        rows.flush()
        write_header(target, identity(many), "synthetic", parts)
    cases = [("padded", 1000, 0), ("padded", 1000, world - 1), ("padded", 4000, 0), ("packed", 1000, 0)]
    for layout, window, rank in cases:
        place = str(folder / "place.json")
        options = {"lanes": world, "world": world, "layout": layout, "window": window, "rank": rank}
        name = f"{layout}, window {window:,}, rank {rank:,}"
        first = harness.apart(rank_of, many, {**options, "save": place, "batches": 600})
        table.add({"case": f"{name}: step 0", **first})
        resumed = harness.apart(rank_of, many, {**options, "starts": place})
        table.add({"case": f"{name}: resumed at step 601", **resumed})


def planned_shards(manifest: str, records: int, way: str) -> Row:
    """The records of `prepare tokens` with their groups: as the verb plans them, or only listed in memory."""
    import lhotse  # noqa: F401  before the clock starts

    from stentor.cli.prepare import TokensOptions
    from stentor.commands.prepare.tokens.plan import plan_shards
    from stentor.sources.jsonl import Jsonl

    source = Jsonl(type="jsonl", path=manifest, limit=records)
    before, began = _held()["own_gb"], time.process_time()
    if way == "list":
        held = list(source.cuts())
    else:
        held = plan_shards(source.cuts(), TokensOptions(data=manifest, codec="none", to=Path("shards")))
    cpu, after = time.process_time() - began, _held()
    assert held
    row = {"us_per_record": cpu / records * 1e6, "bytes": (after["own_gb"] - before) / records * 1e9}
    return row | {"peak_gb": after["peak_gb"]}


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
    from stentor.data.codec_tokens import load_codes
    from stentor.sources.shards import Shards

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
    from stentor.sources.shards import Shards

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
    import soundfile

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


def _stand_ins() -> Any:
    sys.path.append(str(FOLDER.parent / "tests"))
    import s3_stand_in

    return s3_stand_in


def _serve_s3(folder: Path, answers: Any) -> None:
    server = _stand_ins().StandIn()
    answers.put((server.environment(), _stand_ins().Folder(server, "shards").put_folder("data", folder)))
    time.sleep(3600)


def _serve_web(folder: Path, answers: Any) -> None:
    answers.put(_stand_ins().WebServer(folder, ranges=True).port)
    time.sleep(3600)


def _cut_connections(port: int, cuts: Any, answers: Any) -> None:
    proxy = _stand_ins().CuttingProxy("127.0.0.1", port, cut_every=1.0)
    answers.put(proxy.port)
    while True:
        time.sleep(0.2)
        cuts.value = proxy.cuts


def _read_audio_shards(addresses: dict[str, str], folder: Path, total: int, rounds: int) -> Rows:
    from stentor.data import storage_cache

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
    from stentor.data.storage import as_path
    from stentor.data.storage_cache import local_copy, prefetch

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
    from stentor.data.tar import index

    members = index(tar).members
    with tar.open("rb") as file:
        for offset, size in members.values():
            file.seek(offset)
            digest.update(file.read(size))


def _count_of(address: str) -> int:
    from stentor.data.storage import as_path

    return len((as_path(address) / "data.lst").read_text().splitlines())


def _decoded(address: str) -> float:
    """The stream as training reads it; the sum of all samples."""
    from stentor.data.load_audio import load_audio
    from stentor.data.storage import as_path
    from stentor.sources.shards import Shards

    stream = Shards(type="shards", path=as_path(address) / "data.lst", stream=True, mix=1)
    return float(sum(np.abs(load_audio(cut, RATE)).sum(dtype=np.float64) for cut in stream.cuts()))
