"""Fine-tuning Voxtral: our pipeline beside transformers' Trainer with the collator that people use, in one run.

    python benchmarks/finetune_voxtral.py [--items 4] [--rounds 3] [--threads 1]

First the collator alone, for clips of 5, 15, 30 and 61 s; then training: the same tiny Voxtral from the same weights,
the same records, the same number of items in a batch, the same optimizer, the audio tower frozen, each way in a process
of its own, all ways in turn in each round. The first steps do not count.

The peer is what the public fine-tuning scripts do: for each batch the arrays are written to wave files in memory and
read again by `apply_transcription_request`, which computes the features of whole 30 s windows; prompt tokens, the
transcript's (cut at 256) and the end token are put together in Python lists and padded by hand; the model computes the
logits of every position, audio included. It has one loader worker, as the scripts do, or none.

The model is tiny (its size is printed), so that a step takes about as long as the collator: a pipeline that a fast GPU
waits for. With a large model on a CPU every way would take the time of the model. The last two rows have a vocabulary
as large as Voxtral's, which the memory for logits goes with. Peak memory and CPU seconds are those of the training
process, without its loader workers; the collator's times are CPU times too, which another busy process disturbs less.
Records are real LibriSpeech where `../shared/data` is there, else sentences of the
built-in voice.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from features import clip
from results import write
from torch import nn
from training import records
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from stentor.data.batch import Example
from stentor.engine.callback import Callback
from stentor.models.base import Bundle, Family, TaskRequirements

RATE, WARM = 16000, 3
FASTER, COLLATOR = 2.0, 5.0
CUT = 256  # tokens of a transcript that the peer keeps
LENGTHS = (5, 15, 30, 61)
WORDS = {"small": 900, "real": 130_072}  # tokens besides the 1000 special ones; the second is Voxtral's
STEPS = {"small": 40, "real": 7}
WAYS = ("Trainer, 0 workers", "Trainer, 1 worker", "stentor, 0 workers", "stentor, 2 workers")
CASES = [("small", way) for way in WAYS] + [("real", "Trainer, 0 workers"), ("real", "stentor, 0 workers")]
AUDIO = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_mel_bins": 128,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
RUN = """\
task: transcribe
model: {{type: voxtral, from: "{model}", freeze: ["audio_tower.*"]}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  max_items: {items}
  batch_tokens: 100000
  max_seconds: 30.0
  workers: {workers}
losses: {{text: {{type: cross_entropy}}}}
optim: {{type: adamw, lr: 1e-4, weight_decay: 0.0, betas: [0.9, 0.999]}}
schedule: {{type: constant, warmup_steps: 0}}
train: {{steps: {steps}, log_every: 10, device: cpu, precision: fp32, dry_run: false}}
output: "{folder}/runs"
"""


def write_tokenizer(folder: Path, words: int) -> Path:
    """A tekken.json with Voxtral's special tokens and so many of the subwords that mistral-common brings."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    facts = json.loads(data.read_text(encoding="utf-8"))
    special = {t["rank"]: dict(t) for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS}
    for rank, token in ((24, "[AUDIO]"), (25, "[BEGIN_AUDIO]"), (34, "[TRANSCRIBE]")):
        special[rank] = {"rank": rank, "token_str": token, "is_control": True}
    for rank in range(1000):
        special.setdefault(rank, {"rank": rank, "token_str": f"<SPECIAL_{rank}>", "is_control": True})
    facts |= {"vocab": facts["vocab"][:words], "special_tokens": [special[r] for r in sorted(special)]}
    facts["config"] |= {
        "num_vocab_tokens": words,
        "default_vocab_size": 1000 + words,
        "default_num_special_tokens": 1000,
        "version": "v7",
    }
    facts["audio"] = {
        "sampling_rate": RATE,
        "frame_rate": 12.5,
        "chunk_length_s": 30.0,
        "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
    }
    facts.pop("image", None)
    folder.mkdir(parents=True)
    (folder / "tekken.json").write_text(json.dumps(facts))
    return folder


def tiny(folder: Path, vocabulary: str) -> Bundle:
    """A tiny Voxtral, written to the folder as transformers reads it."""
    torch.manual_seed(0)
    tokenizer = write_tokenizer(folder / f"tekken-{vocabulary}", WORDS[vocabulary])
    config = {"model_type": "voxtral", "audio_config": AUDIO, "text_config": TEXT}
    family = Family.model_validate({"type": "audio_llm", "config": config, "tokenizer": str(tokenizer)})
    bundle = family.build(TaskRequirements("transcribe", ("text",)))
    state = bundle.model.state_dict()
    family.save(bundle, state, folder / f"model-{vocabulary}")
    return bundle


# The peer


class Recordings(torch.utils.data.Dataset):
    """Records of a manifest with their audio, read when asked for."""

    def __init__(self, manifest: Path, longest: float = 30.0):
        lines = map(json.loads, manifest.read_text().splitlines())
        self.folder, self.rows = manifest.parent, [line for line in lines if line["duration"] <= longest]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import soundfile

        row = self.rows[index]
        audio, _ = soundfile.read(self.folder / row["audio_path"], dtype="float32")
        return {"audio": audio, "text": row["text"]}


class UpstreamCollator:
    """A batch as the public scripts make it, with the end token and each record's language."""

    def __init__(self, processor: Any):
        self.processor = processor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        tokenizer = self.processor.tokenizer
        prompt = self.processor.apply_transcription_request(
            audio=[row["audio"] for row in rows],
            language=[row.get("language") for row in rows],
            model_id="voxtral",
            sampling_rate=RATE,
            format=["WAV"] * len(rows),
        )
        texts = tokenizer([row["text"] for row in rows], add_special_tokens=False, truncation=True, max_length=CUT)
        ids, mask, labels = [], [], []
        for before, seen, text in zip(prompt["input_ids"], prompt["attention_mask"], texts["input_ids"]):
            text = [*text, tokenizer.eos_token_id]
            ids.append(before.tolist() + text)
            mask.append(seen.tolist() + [1] * len(text))
            labels.append([-100] * len(before) + text)
        width = max(map(len, ids))

        def padded(lists: list[list[int]], value: int) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in lists])

        return {
            "input_ids": padded(ids, tokenizer.pad_token_id),
            "attention_mask": padded(mask, 0),
            "labels": padded(labels, -100),
            "input_features": prompt["input_features"],
        }


# The clock: a subprocess for each way


class Clock:
    """Steps, items, wall time and this process's CPU time after the first steps."""

    def __init__(self) -> None:
        self.steps = self.items = 0
        self.began = self.ended = self.cpu_began = self.cpu_ended = 0.0

    def step(self, items: int) -> None:
        self.steps += 1
        self.ended, self.cpu_ended = time.perf_counter(), time.process_time()
        if self.steps == WARM:
            self.began, self.cpu_began = self.ended, self.cpu_ended
        elif self.steps > WARM:
            self.items += items

    def facts(self) -> dict[str, float]:
        spent, steps = self.ended - self.began, self.steps - WARM
        return {
            "seconds_per_step": spent / steps,
            "cpu_seconds_per_step": (self.cpu_ended - self.cpu_began) / steps,
            "samples_per_second": self.items / spent,
            "peak_memory_mb": peak_memory() / 1e6,
        }


def peak_memory() -> int:
    """Most bytes that this process held at a time."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage begins with the peak of the process that started this one
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Timed(Callback):
    """Tells the clock what our trainer does."""

    _clock: Clock
    _items: int = 0

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self._items = len(batch.ids)

    def on_step(self, trainer: Any) -> None:
        self._clock.step(self._items)


class Tick(TrainerCallback):
    def __init__(self, clock: Clock, items: int):
        self.clock, self.items = clock, items

    def on_step_end(self, args, state, control, **kwargs):
        self.clock.step(self.items)


def stentor(model: Path, folder: Path, items: int, steps: int, workers: int) -> Clock:
    """So many steps in our engine."""
    from stentor.commands.train import train
    from stentor.config.load import load

    with tempfile.TemporaryDirectory() as run:
        path = Path(run) / "run.yaml"
        path.write_text(RUN.format(model=model, folder=folder, items=items, steps=steps, workers=workers))
        config = load(path).config
        timed = Timed(type="timed")
        timed._clock = Clock()
        config.callbacks = [timed]
        train([config], Path(run) / "run", {})
    return timed._clock


def trainer(model: Path, folder: Path, items: int, steps: int, workers: int) -> Clock:
    """So many steps in transformers' Trainer."""
    from transformers import VoxtralForConditionalGeneration, VoxtralProcessor

    clock = Clock()
    peer = VoxtralForConditionalGeneration.from_pretrained(model)
    peer.model.audio_tower.requires_grad_(False)
    with tempfile.TemporaryDirectory() as run:
        arguments = TrainingArguments(
            output_dir=run,
            max_steps=steps,
            per_device_train_batch_size=items,
            use_cpu=True,
            learning_rate=1e-4,
            weight_decay=0.0,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=workers,
            dataloader_drop_last=True,
            seed=0,
        )
        Trainer(
            peer,
            arguments,
            train_dataset=Recordings(folder / "train.jsonl"),
            callbacks=[Tick(clock, items)],
            data_collator=UpstreamCollator(VoxtralProcessor.from_pretrained(model)),
        ).train()
    return clock


def measured(vocabulary: str, way: str, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """One way in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--way",
        way,
        "--vocabulary",
        vocabulary,
        "--folder",
        str(folder),
        "--items",
        str(args.items),
        "--threads",
        str(args.threads),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# Comparisons


def same_loss(bundle: Bundle, model: nn.Module, rows: list[dict[str, Any]]) -> float:
    """Relative difference of our loss from the peer's on the same records."""
    from stentor.losses.base import Loss

    collator = UpstreamCollator(bundle.processor.hf)
    batch = bundle.processor.collate([Example(str(i), r["audio"], r["text"]) for i, r in enumerate(rows)])
    bundle.model.eval()
    with torch.no_grad():
        ours = Loss.model_validate("cross_entropy").sum(**bundle.model(**batch.inputs)["text"]) / batch.counts["text"]
        theirs = model.eval()(**collator(rows)).loss
    return float((ours - theirs).abs() / theirs)


def collators(bundle: Bundle, items: int, rounds: int) -> list[dict[str, Any]]:
    """CPU milliseconds per clip of both collators, for clips of one length."""
    rng, rows = np.random.default_rng(0), []
    upstream = UpstreamCollator(bundle.processor.hf)
    print(f"{'collator alone':22}{'ours':>12}{'peer':>12}{'ratio':>9}")
    for seconds in LENGTHS:
        text = "the quick brown fox " * max(1, seconds // 2)
        records = [{"audio": clip(rng, seconds), "text": text, "language": "en"} for _ in range(items)]
        examples = [Example(str(i), r["audio"], r["text"], r["language"]) for i, r in enumerate(records)]
        ways = {"ours": partial(bundle.processor.collate, examples), "peer": partial(upstream, records)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                way()  # not timed: the memory of the way before settles
                began = time.process_time()
                way()
                times[name].append((time.process_time() - began) / items * 1000)
        ms = {name: statistics.median(t) for name, t in times.items()}
        ratio = statistics.median(b / a for a, b in zip(times["ours"], times["peer"]))
        print(f"clips of {seconds:2} s        {ms['ours']:9.2f} ms{ms['peer']:9.2f} ms{ratio:8.1f}x")
        rows.append({"collator": f"{seconds} s", "ms_per_clip": ms, "ratio": round(ratio, 2)})
    return rows


def table(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every case in each round, and how much faster ours is with as many workers, or with what it does by default."""
    rounds: list[dict[tuple[str, str], dict[str, float]]] = []
    for number in range(args.rounds):
        rounds.append({})
        for case in CASES:
            rounds[-1][case] = measured(*case, folder, args)
            print(f"round {number + 1}: {case[1]}: {rounds[-1][case]['samples_per_second']:.1f} samples/s", flush=True)
    heads = ("s/step", "CPU s/step", "samples/s", "peak memory")
    print(
        f"\n{'vocabulary':>10}  {'':20}"
        + "".join(f"{head:>13}" for head in heads)
        + "   ours is, by time and by CPU time"
    )
    rows = []
    for vocabulary, way in CASES:
        got = [r[vocabulary, way] for r in rounds]
        mid = {key: statistics.median(g[key] for g in got) for key in got[0]}
        row = {
            "vocabulary": 1000 + WORDS[vocabulary],
            "way": way,
            **{k: round(v, 4) for k, v in mid.items()},
            "rounds": [round(g["samples_per_second"], 2) for g in got],
        }
        comparison = ""
        if way.startswith("Trainer"):
            ours = "stentor, 2 workers" if way == "Trainer, 1 worker" else "stentor, 0 workers"
            by = {
                key: statistics.median(r[vocabulary, way][key] / r[vocabulary, ours][key] for r in rounds)
                for key in ("seconds_per_step", "cpu_seconds_per_step")
            }
            row |= {"ours": ours, "ratio": round(by["seconds_per_step"], 2)}
            row |= {"cpu_ratio": round(by["cpu_seconds_per_step"], 2)} if way.endswith("0 workers") else {}
            comparison = f"   {row['ratio']} x" + (f", {row['cpu_ratio']} x" if "cpu_ratio" in row else "") + " as fast"
        print(
            f"{row['vocabulary']:10,}  {way:20}{mid['seconds_per_step']:13.3f}{mid['cpu_seconds_per_step']:13.3f}"
            f"{mid['samples_per_second']:13.1f}{mid['peak_memory_mb']:10,.0f} MB{comparison}"
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", choices=list(WORDS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    logging.disable_progress_bar()
    if args.way:
        run = stentor if args.way.startswith("stentor") else trainer
        workers = int(args.way.split()[1])
        clock = run(args.folder / f"model-{args.vocabulary}", args.folder, args.items, STEPS[args.vocabulary], workers)
        print(json.dumps(clock.facts()))
        return
    from transformers import VoxtralForConditionalGeneration

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        origin = records(folder, args.items * STEPS["small"])
        bundles = {vocabulary: tiny(folder, vocabulary) for vocabulary in WORDS}
        sizes = {v: sum(p.numel() for p in b.model.parameters()) for v, b in bundles.items()}
        rows = Recordings(folder / "train.jsonl")
        model = VoxtralForConditionalGeneration.from_pretrained(folder / "model-small")
        difference = same_loss(bundles["small"], model, [rows[i] for i in range(3)])
        print(
            f"{len(rows)} records ({origin}), {args.items} items in a batch, {args.threads} thread(s);\na Voxtral of "
            f"{' or '.join(f'{n / 1e6:.2f}' for n in sizes.values())} M parameters; same loss to {difference:.0e}\n"
        )
        assert difference < 1e-4
        alone = collators(bundles["small"], args.items, 5 * args.rounds)
        trained = table(folder, args)
    slowest = min(row["ratio"] for row in alone)
    ratio = min(row["ratio"] for row in trained if "ratio" in row)
    print(f"\nTarget for the collator: {COLLATOR} x; {'met' if slowest >= COLLATOR else 'missed'} ({slowest} x).")
    print(f"Target for samples/s: {FASTER} x; {'met' if ratio >= FASTER else 'missed'} ({ratio} x).")
    write(
        "finetune_voxtral",
        [*alone, *trained],
        records=len(rows),
        data=origin,
        items=args.items,
        threads=args.threads,
        parameters=sizes,
        audio_config=AUDIO,
        text_config=TEXT,
        loss_difference=difference,
        targets={"samples": FASTER, "collator": COLLATOR},
    )


if __name__ == "__main__":
    main()
