"""Data sets that do not fit in memory: how long training takes to start and to go on, and what a rank holds.

    python benchmarks/large_data.py make --to DIR --records 10000000    # manifest, index: 2.1 GB
    python benchmarks/large_data.py start --to DIR                      # first batch at steps 0 and 100,000; a command
    python benchmarks/large_data.py simulate --to DIR                   # 400 million records, 1,024 ranks: 6.4 GB more
    python benchmarks/large_data.py plan --to DIR --records 1000000     # what `prepare tokens` holds, beside a list

Every row is measured in a process of its own, which imports what training imports. `simulate` writes an index of 400
million rows, of which each points to one of the 10 million lines of the manifest; so lines are really read, parsed and
made into records, and costs counted and packed, but 40 rows share a line. Some of the 1,024 ranks run, one after the
other; the others would do the same with other lanes. No audio is read and no model is trained.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np

RATE, CLIP = 16000, 30.0
STEPS = 100_000


def make(folder: Path, records: int) -> None:
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
    began = usage()
    subprocess.run([sys.executable, "-m", "stentor", "prepare", "index", str(manifest)], check=True)
    wall, cpu = usage()[0] - began[0], children_cpu()
    size = sum(f.stat().st_size for f in (folder / "train.jsonl.index").iterdir())
    print(f"index: {wall:.0f} s, {cpu:.0f} s of one core, {size / records:.1f} bytes a record")


def usage() -> tuple[float, float]:
    """Wall clock and CPU seconds of this process."""
    return time.time(), time.process_time()


def children_cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def memory() -> dict[str, float]:
    """GB of this process: the most it ever held, and of that now its own and mapped from files (shared by all ranks of
    a machine)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    keys = {"peak_gb": "VmHWM", "own_gb": "RssAnon", "mapped_gb": "RssFile"}
    return {name: int(status[key].split()[0]) / 1e6 for name, key in keys.items()}


def price(cut, seconds: float) -> int:
    """Positions as a speech language model counts them: 12.5 a second, and a token for four letters."""
    from stentor.data.cut import text_of

    return int(seconds * 12.5) + len(text_of(cut) or "") // 4 + 8


def data_set(manifest: Path, lanes: int, layout: str, window: int, tokens: int):
    from stentor.dataloading.dataset import train_dataset
    from stentor.dataloading.section import Data
    from stentor.sources.jsonl import Jsonl

    source = Jsonl(type="jsonl", path=manifest)
    section = Data(train=[source], lanes=lanes, layout=layout, window=window, batch_tokens=tokens)
    return train_dataset(section, 0, lambda cut: None, lambda line: None)


def worker(options: argparse.Namespace) -> None:
    """One rank, in its own process: the time to its first batch, then some windows of its lanes."""
    import lhotse  # noqa: F401  before the clock starts

    import stentor.dataloading.dataset
    import stentor.sources.jsonl

    if options.torch:
        import stentor.commands.train  # noqa: F401  as a run does, for its memory

    began = usage()
    train = data_set(options.manifest, options.lanes, options.layout, options.window, options.tokens)
    sampler = train.batch_sampler(price)
    train.statistics(sampler)
    train.fingerprint(sampler)
    index = 0
    if options.starts is not None:
        content = json.loads(options.starts.read_text())
        index = content["index"]
        sampler.go_on(content["starts"])
    planned = sampler.shard(options.rank, options.world, index=index)
    first = next(planned)
    now = usage()
    row = {"seconds": now[0] - began[0], "cpu": now[1] - began[1], "first": first.items[0].cut.id}
    began, items, tokens, slots = usage(), 0, 0, 0
    for batch in islice(planned, options.batches):
        costs = [item.cost for item in batch.items]
        items, tokens = items + len(costs), tokens + sum(costs)
        slots += options.tokens if options.layout == "packed" else max(costs) * len(costs)
    now = usage()
    if items:
        row |= {"items": items, "fill": tokens / slots, "us_per_record": (now[1] - began[1]) / items * 1e6}
    if options.save is not None:
        at = (options.batches + 1) * options.world
        options.save.write_text(json.dumps({"index": at, "starts": sampler.starts(at)}))
        row["state_bytes"] = options.save.stat().st_size
    row["records"], row["hours"] = train.records, train.hours
    print(json.dumps(row | memory()))


def run(manifest: Path, **options) -> dict:
    command = [sys.executable, __file__, "worker", "--manifest", str(manifest)]
    for key, value in options.items():
        command += [] if value is None else [f"--{key}", str(value)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(name: str, row: dict) -> None:
    parts = [f"{row['seconds']:6.2f} s", f"{row['cpu']:6.2f} s CPU", f"peak {row['peak_gb']:.2f} GB"]
    parts += [f"own {row['own_gb']:.2f} GB", f"mapped {row['mapped_gb']:.2f} GB"]
    if "fill" in row:
        parts += [f"fill {row['fill']:.1%}", f"{row['us_per_record']:.0f} us a record", f"{row['items']:,} records"]
    print(f"{name:44} " + ", ".join(parts), flush=True)


def start(folder: Path) -> None:
    """The first batch at step 0 and at step 100,000, whose place is reached by planning all steps before it."""
    manifest, place = folder / "train.jsonl", folder / "place.json"
    common = {"lanes": 1, "tokens": 250}  # of about two records, or planning up to there would take minutes
    show(f"{STEPS:,} steps planned", run(manifest, batches=STEPS - 1, save=place, **common))
    common["torch"] = 1
    for _ in range(2):
        show("first batch at step 0", run(manifest, **common))
        show(f"first batch at step {STEPS:,}", run(manifest, starts=place, **common))
    for _ in range(3):
        command(folder)


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


def command(folder: Path) -> None:
    """`stentor train` from the command to its first step, imports and all."""
    (folder / "run.yaml").write_text(RUN.format(folder=folder))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    before, began = children_cpu(), time.perf_counter()
    arguments = [sys.executable, "-m", "stentor", "train", str(folder / "run.yaml")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("step 1/1"))
        seconds = time.perf_counter() - began
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 1e6
        process.stdout.read()
    cpu = children_cpu() - before
    print(
        f"stentor train: first step after {seconds:.1f} s; {cpu:.1f} s CPU to the end, peak {peak:.2f} GB ({line[:24]})"
    )


def simulate(folder: Path, copies: int = 40, world: int = 1024) -> None:
    """Some of 1,024 ranks on an index of 40 times as many records."""
    from stentor.data.record_index import Part, RecordIndex, identity, index_folder, write_header

    manifest, index = folder / "train400.jsonl", RecordIndex(folder / "train.jsonl")
    if not manifest.exists():
        os.link(folder / "train.jsonl", manifest)
    target = index_folder(manifest)
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
        write_header(target, identity(manifest), "synthetic", parts)
    cases = [("padded", 1000, 0), ("padded", 1000, world - 1), ("padded", 4000, 0), ("packed", 1000, 0)]
    for layout, window, rank in cases:
        place = folder / "place.json"
        options = {"lanes": world, "world": world, "layout": layout, "window": window, "rank": rank}
        name = f"{layout}, window {window:,}, rank {rank:,}"
        row = run(manifest, save=place, batches=600, **options)
        show(f"{name}: step 0", row)
        show(f"{name}: resumed at step 601", run(manifest, starts=place, **options))
    print(f"{row['records']:,} records, {row['hours']:,.0f} h; {row['state_bytes']:,} bytes of place and counts a lane")


def plan(manifest: Path, records: int, way: str) -> None:
    """The records of `prepare tokens` with their groups, in a process of its own: as the verb plans them, or only
    listed in memory."""
    import lhotse  # noqa: F401  before the clock starts

    from stentor.commands.prepare.tokens.plan import plan_shards
    from stentor.commands.prepare_options import TokensOptions
    from stentor.sources.jsonl import Jsonl

    source = Jsonl(type="jsonl", path=manifest, limit=records)
    before, began = memory()["own_gb"], usage()
    if way == "list":
        held = list(source.cuts())
    else:
        held = plan_shards(source.cuts(), TokensOptions(data=str(manifest), codec="none", to=Path("shards")))
    now, after = usage(), memory()
    assert held
    row = {"us_per_record": (now[1] - began[1]) / records * 1e6, "bytes": (after["own_gb"] - before) / records * 1e9}
    print(json.dumps(row | {"peak_gb": after["peak_gb"]}))


def show_plans(folder: Path, records: int) -> None:
    for way in ("list", "plan"):
        command = [sys.executable, __file__, "one-plan", "--manifest", str(folder / "train.jsonl"), "--way", way]
        done = subprocess.run([*command, "--records", str(records)], check=True, capture_output=True, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        facts = f"{row['us_per_record']:.0f} us CPU and {row['bytes']:.0f} bytes a record, peak {row['peak_gb']:.2f} GB"
        print(f"{way}: {facts} for {records:,}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "start", "simulate", "plan", "worker", "one-plan"))
    parser.add_argument("--to", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--layout", default="padded")
    parser.add_argument("--way", default="plan")
    numbers = {"lanes": 1, "window": 1000, "rank": 0, "world": 1, "batches": 0, "tokens": 2000, "torch": 0}
    for key, default in numbers.items():
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--starts", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.what == "worker":
        worker(options)
    elif options.what == "one-plan":
        plan(options.manifest, options.records, options.way)
    elif options.what == "plan":
        show_plans(options.to, options.records)
    elif options.what == "make":
        make(options.to, options.records)
    else:
        {"start": start, "simulate": simulate}[options.what](options.to)


if __name__ == "__main__":
    main()
