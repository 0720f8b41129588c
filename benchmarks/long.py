"""Benchmarks of long inputs: diarization of an hour, and data sets that do not fit in memory.

Imports of the package lie inside the functions: a process that measures its memory imports only what it needs.
"""

import json
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import harness
from benchmarks.harness import RATE, Result, Row, Rows, Table, benchmark

# Diarization


@benchmark(threads=2)
def diarize_long(model: str | None = None, /, minutes: tuple[float, ...] = (10, 60), speakers: int = 4) -> Result:
    """Diarization of a long file: how much faster than real time, and in how much memory.

    The files are conversations of the built-in voice. The model is a run folder or an export; without one, an untrained
    model of the size of a small CPU recipe is measured: 80 mel bins, 10 frames joined, 10 frames a second, 4 layers of
    width 160, with speaker embeddings. Each file is diarized in a process of its own, from Python, twice; the faster
    one counts. Peak memory is the process's (torch and the weights included). With a model, its error rate is given
    too.
    """
    table, threads = Table(), harness.set_threads()
    with tempfile.TemporaryDirectory() as place:
        export = model or _untrained(Path(place) / "model")
        for length in minutes:
            path = Path(place) / f"conversation-{length:g}.wav"
            reference = conversation(path, length * 60, speakers)
            runs = [harness.apart(diarized, export, path, threads=threads) for _ in range(2)]
            best = min(runs, key=lambda run: run["seconds"])
            segments = best.pop("segments")
            row = {"minutes": length, **best, "faster_than_real_time": best["audio"] / best["seconds"]}
            table.add(row | {"der": _der(reference, segments, best["audio"]) if model else None})
    return table, {"model": model or "untrained", "speakers": speakers}


def diarized(model: str, path: str) -> Row:
    from stentor.inference.load import load

    began = time.perf_counter()
    loaded = load(model, "cpu")
    loaded.diarize(np.zeros(25 * RATE, np.float32), rate=RATE)  # what is imported or set up at first use
    ready, idle = time.perf_counter(), harness.memory("VmHWM") / 2**20
    result = loaded.diarize(path)
    row = {"audio": result["duration"], "seconds": time.perf_counter() - ready, "load_seconds": ready - began}
    return row | {"peak_mb": harness.memory("VmHWM") / 2**20, "idle_mb": idle, "segments": result.segments}


def conversation(path: Path, seconds: float, speakers: int, seed: int = 0) -> Rows:
    """Write a conversation of the built-in voice and return who speaks when. The file is written as it is made.

    Turns of one to three sentences; the next one begins 0.6 s before to 1.2 s after the end of the last, so that about
    one change in three overlaps. Everyone is heard through a different level.
    """
    import soundfile

    from stentor.audio.synth import accents, say, variants
    from stentor.sources.phrases import command

    words, rng = random.Random(seed), np.random.default_rng(seed)
    voices = [f"{accents()[i % 7]}+{name}" for i, name in enumerate(rng.choice(variants(), speakers, replace=False))]
    gains = rng.uniform(0.4, 0.8, speakers)
    reference: Rows = []
    rest = np.zeros(0)  # what was made beyond what is written
    written, at, last = 0, 0.5, -1
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        while at < seconds:
            speaker = last = int(rng.choice([k for k in range(speakers) if k != last]))
            for _ in range(int(rng.integers(1, 4))):
                audio = gains[speaker] * say(command(words), voices[speaker], int(rng.integers(150, 190))).audio
                begin = round(at * RATE) - written
                rest = np.pad(rest, (0, max(0, begin + len(audio) - len(rest))))
                rest[begin : begin + len(audio)] += audio
                end = at + len(audio) / RATE
                reference.append({"speaker": voices[speaker], "start": at, "end": min(end, seconds)})
                at = end + rng.uniform(0.1, 0.4)
            at = max(at + rng.uniform(-1.0, 0.8), written / RATE)
            # Nothing more begins earlier than two seconds before the next turn.
            ready = max(0, min(round((at - 2) * RATE), round(seconds * RATE)) - written)
            file.write(np.clip(rest[:ready], -1, 1))
            rest, written = rest[ready:], written + min(ready, len(rest))
        left = round(seconds * RATE) - written
        file.write(np.clip(np.pad(rest, (0, max(0, left - len(rest))))[:left], -1, 1))
    return [s for s in reference if s["start"] < seconds]


def _der(reference: Rows, segments: Rows, duration: float) -> float:
    from stentor.metrics.diarization import DiarizedRecording, der

    return float(der([DiarizedRecording("long", reference, segments, None, duration)]).value)


def _untrained(folder: Path) -> Path:
    """An export of a model with random weights, of the size of the CPU recipe's."""
    from stentor.losses.hidden import Contrastive
    from stentor.models.transformer.config import Transformer
    from stentor.tasks.diarize.task import Diarize

    task = Diarize.model_validate({"type": "diarize", "chunk": 20.0, "labels": {"type": "speaker", "speakers": 4}})
    features = {"type": "fbank", "num_mel_bins": 80, "stack": 10, "subsample": 10}
    encoder = {"d_model": 160, "layers": 4, "heads": 4}
    section = {"type": "transformer", "kind": "encoder", "embedding": 64, "features": features, "encoder": encoder}
    family = Transformer.model_validate(section)
    bundle = family.build(task.requirements({**task.losses(), "voice": Contrastive()}))
    folder.mkdir(parents=True)
    family.save(bundle, {k: v.cpu() for k, v in bundle.model.state_dict().items()}, folder)
    config = {"task": task.model_dump(mode="json", by_alias=True), "train": {}}
    (folder / "training_config.json").write_text(json.dumps(config))
    return folder


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
    import stentor.sources.manifest
    from stentor.dataloading.section import Data

    defaults = {"lanes": 1, "window": 1000, "rank": 0, "world": 1, "batches": 0, "tokens": 2000, "torch": 0}
    options = {**defaults, "layout": "padded", **options}
    if options["torch"]:
        import stentor.commands.train

    wall, cpu = time.time(), time.process_time()
    shape = {key: options[key] for key in ("lanes", "layout", "window")}
    source = stentor.sources.manifest.Jsonl(type="jsonl", path=manifest)
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

    from stentor.commands.prepare.tokens.plan import plan_shards
    from stentor.commands.prepare_options import TokensOptions
    from stentor.sources.manifest import Jsonl

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
