"""Training: speech of mixed length and fine-tuning beside transformers' Trainer, and what checkpoints cost."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.multiprocessing
from benchmarks.harness import DATA, RATE, Result, Row, Rows, Table, benchmark
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Trainer, TrainerCallback, TrainingArguments, WhisperFeatureExtractor
from transformers.utils import logging

from benchmarks import harness
from stentor.callbacks.base import Callback
from stentor.commands.train import prepare, train
from stentor.config.load import load
from stentor.config.schema import Config
from stentor.data.batch import Example
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.engine.checkpoint_writer import CheckpointWriter, PendingCheckpoint
from stentor.engine.device import Communicator, give_back_memory
from stentor.engine.ema import trained_tensors
from stentor.engine.optim import optimizer_state
from stentor.engine.sharding import own_shards
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.weights_io import write_weights
from stentor.sources.jsonl import Jsonl

REAL = DATA / "librispeech" / "train.jsonl"
TARGET, WARM = 1.5, 2
WORDS = ("the", "of", "and", "to", "in", "he", "was", "that", "it", "his", "her", "with", "as", "had", "for", "she")
RUN = """\
task: transcribe
model:
  type: speech_llm
  encoder:
    window: WINDOW
    config: {{model_type: whisper, num_mel_bins: 80, d_model: 144, encoder_layers: 4, encoder_attention_heads: 4,
             encoder_ffn_dim: 576, max_source_positions: 1500}}
  projector: {{type: mlp, rate: 12.5}}
  llm:
    config: {{model_type: qwen2, hidden_size: 144, intermediate_size: 576, num_hidden_layers: 2, num_attention_heads: 4,
             num_key_value_heads: 4, tie_word_embeddings: true, max_position_embeddings: 4096}}
  tokenizer: {{type: bpe, size: 500}}
  prompt: {{instruction: "Transcribe the following audio.", language: false, context: false, dropout: 0.0}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  batch_tokens: {tokens}
  workers: 0
losses: {{text: {{type: cross_entropy}}}}
optim: {{type: adamw, lr: 3e-4, weight_decay: 0.01}}
schedule: {{type: constant, warmup_steps: 0}}
train: {{epochs: 1, log_every: 10, device: cpu, precision: fp32, dry_run: false}}
output: "{folder}/runs"
"""


class Clock:
    """Amounts, wall time and this process's CPU time after the first steps of a run."""

    def __init__(self, warm: int = WARM) -> None:
        self.warm, self.steps, self.largest = warm, 0, 0
        self.amounts: Counter[str] = Counter()
        self.began = self.ended = (0.0, 0.0)

    def add(self, **amounts: float) -> None:
        """Amounts of the batch of the next step."""
        if self.steps >= self.warm:
            self.amounts.update(amounts)

    def batch(self, batch: Any) -> None:
        self.largest = max(self.largest, batch.num_positions)
        self.add(items=len(batch.ids), tokens=batch.tokens, audio=batch.seconds)

    def step(self) -> None:
        self.steps += 1
        self.ended = time.perf_counter(), time.process_time()
        if self.steps == self.warm:
            self.began = self.ended

    def spent(self) -> tuple[float, float]:
        if self.steps <= self.warm:
            raise SystemExit(f"A run of {self.steps} steps is too short to measure: raise --records.")
        return self.ended[0] - self.began[0], self.ended[1] - self.began[1]


class Timed(Callback):
    """Tells the clock what our trainer does."""

    _clock: Clock

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self._clock.batch(batch)

    def on_step(self, trainer: Any) -> None:
        self._clock.step()


class Tick(TrainerCallback):
    """Tells the clock what transformers' Trainer does; `items` where its collator does not count them."""

    def __init__(self, clock: Clock, items: int = 0):
        self.clock, self.items = clock, items

    def on_step_end(self, args, state, control, **kwargs):
        self.clock.add(items=self.items)
        self.clock.step()


def timed_run(config: Config, folder: Path, clock: Clock) -> Clock:
    """A run of our engine under the clock."""
    timed = Timed(type="timed")
    timed._clock = clock
    config.callbacks = [timed]
    train([config], folder, {})
    return clock


def peer_arguments(folder: Path | str, items: int, **more: Any) -> TrainingArguments:
    """Settings of transformers' Trainer that do what our run file says."""
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=items,
        use_cpu=True,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )


def make_records(folder: Path, count: int) -> str:
    """Write WAV files and a manifest into the folder; return where they come from."""
    from stentor.audio.io import write
    from stentor.data.load_audio import load_audio

    rng, rows = np.random.default_rng(0), []
    if REAL.is_file():
        cuts = [c for c in Jsonl(path=REAL).cuts() if c.duration <= 30]
        clips = ((load_audio(cuts[i]), cuts[i].supervisions[0].text) for i in rng.permutation(len(cuts))[:count])
    else:
        clips = (_sentence(rng) for _ in range(count))
    for i, (audio, text) in enumerate(clips):
        write(folder / f"{i}.wav", audio, RATE)
        rows.append({"id": str(i), "audio_path": f"{i}.wav", "text": text, "duration": len(audio) / RATE})
    harness.write_lines(folder / "train.jsonl", rows)
    return "LibriSpeech dev-clean, 14 speakers" if REAL.is_file() else "built-in voice, 1 to 20 s"


def _sentence(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    from stentor.audio.synth import say

    text = " ".join(rng.choice(WORDS, max(2, int(2.6 * np.clip(rng.gamma(2.2, 3.4), 1, 19)))))
    return say(text, voice="en-us", speed=150).audio, text


# A small speech LLM


@benchmark(threads=0)
def training(records: int = 160, rounds: int = 3, batch_tokens: int = 1600) -> Result:
    """Training on speech of mixed length: our engine beside transformers' Trainer, in one run.

    The same model (a small speech LLM: Whisper encoder, projector, Qwen2) from the same weights, the same records, the
    same optimizer; every way sees every record once per round, and all take turns in each round. Ways:

      stentor padded, packed      batches by `data.batch_tokens`, encoder at natural length
      Trainer, 30 s window        what people get: transformers' feature extractor, whose clips are all 30 s long, a
                                  padding collator, random batches of a fixed number of items, the model's own loss
      ... grouped by length       the same with `train_sampling_strategy="group_by_length"`
      Trainer, natural length     the same batches with our features and encoder: what batching alone is worth

    A Trainer batch has as many items as ours in the mean. Tokens are positions of the language model that are not
    padding. Records are real LibriSpeech where `../shared/data` is there, else sentences of the built-in voice as long
    as in LibriSpeech; they are read once and stored as 16 kHz WAV before the clock runs. The first two steps do not
    count.
    """
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        origin = make_records(folder, records)
        configs = {}
        for window in ("natural", "30s"):
            path = folder / f"{window}.yaml"
            path.write_text(RUN.replace("WINDOW", window).format(folder=folder, tokens=batch_tokens))
            configs[window] = load(path).config
        ready = prepare(configs["natural"], lambda line: None)
        planned = ready.batch_sampler.statistics()
        items = round(planned["items"] / planned["batches"])
        facts: Row = {"records": records, "minutes": round(ready.train_data.hours * 60, 1), "data": origin}
        facts |= {"parameters": sum(p.numel() for p in ready.bundle.model.parameters()), "batch_tokens": batch_tokens}
        facts |= {"trainer_items": items, "loss_difference": max(map(_loss_difference, configs.values()))}
        print(facts)
        assert facts["loss_difference"] < 1e-4
        rows = _compared(_rates_of_rounds(configs, items, rounds))
    harness.verdict("speed beside the Trainer as people run it", rows[1]["stentor_padded_is_faster_by"], least=TARGET)
    return rows, {**facts, "target": TARGET}


class Peer(nn.Module):
    """The same model as a transformers user writes it: padded inputs, `labels=`, the language model's own mean loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, features, feature_lengths, input_ids, audio_index, audio_rows, attention_mask, labels):
        hidden, _ = self.model.frames(features, feature_lengths)
        embeds = self.model.embed(hidden, input_ids, audio_index, audio_rows)
        return {"loss": self.model.llm(inputs_embeds=embeds, attention_mask=attention_mask, labels=labels).loss}


class Collator:
    """Cuts to a padded batch, with transformers' feature extractor where the window is 30 s."""

    def __init__(self, ready: Any, config: Config, clock: Clock | None):
        self.reader, self.clock = BatchDataset(ready.task, ready.bundle.processor, None, 0), clock
        whole = config.model.encoder.window == "30s"
        self.extractor = WhisperFeatureExtractor(feature_size=80) if whole else None

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        examples, _ = self.reader.examples([row["item"] for row in rows])
        processor = self.reader.processor
        if self.extractor is not None:
            mels = self.extractor([e.audio for e in examples], sampling_rate=RATE, return_tensors="pt").input_features
            lengths = torch.tensor([processor.shape.steps(len(e.audio)) for e in examples])
            processor.features = lambda examples: (mels, lengths)  # instead of ours
        batch = processor.collate(examples)
        if self.clock is not None:
            self.clock.batch(batch)
        inputs = dict(batch.inputs)
        targets, places = inputs.pop("targets"), inputs.pop("label_index")
        labels = torch.full_like(inputs["input_ids"], -100)
        labels.view(-1)[places + 1] = targets
        mask = torch.zeros_like(labels)
        for row, example in zip(mask, examples):
            row[: len(processor.sequence(example, len(example.audio), True))] = 1
        return {**inputs, "labels": labels, "attention_mask": mask}


def _rates(clock: Clock) -> Row:
    wall, _ = clock.spent()
    return {"tokens": clock.amounts["tokens"] / wall, "audio": clock.amounts["audio"] / wall, "slots": clock.largest}


def _stentor(config: Config, layout: str, number: int) -> Row:
    """One epoch in our engine."""
    config = config.model_copy(update={"data": config.data.model_copy(update={"layout": layout})})
    return _rates(timed_run(config, Path(config.output) / f"{layout}-{number}", Clock()))


def _trainer(config: Config, items: int, sampling: str, number: int) -> Row:
    """One epoch in transformers' Trainer, in batches of so many items."""
    ready = prepare(config, lambda line: None)
    processor, clock, cuts = ready.bundle.processor, Clock(), ready.train_data.cuts()
    records = [{"item": Item(cut, 0), "input_ids": range(processor.tokens(cut, cut.duration))} for cut in cuts]
    optim = config.optim
    settings = {"learning_rate": optim.lr, "weight_decay": optim.weight_decay, "num_train_epochs": 1, "seed": number}
    settings |= {"adam_beta1": optim.betas[0], "adam_beta2": optim.betas[1], "train_sampling_strategy": sampling}
    arguments = peer_arguments(f"{config.output}/peer", items, **settings, dataloader_num_workers=0)
    collator = Collator(ready, config, clock)
    callbacks = [Tick(clock)]
    model = Peer(ready.bundle.model)
    Trainer(model, arguments, train_dataset=records, callbacks=callbacks, data_collator=collator).train()
    return _rates(clock)


def _loss_difference(config: Config) -> float:
    """Relative difference of our loss from the peer's on the same records: it is the same model."""
    ready = prepare(config, lambda line: None)
    items = [Item(cut, 0) for cut in list(ready.train_data.cuts())[:3]]
    collator = Collator(ready, config, None)
    examples, _ = collator.reader.examples(items)
    batch = ready.task.collate(examples, ready.bundle.processor, False)
    ready.bundle.model.eval()
    with torch.no_grad():
        ours = ready.task.loss_sums(ready.bundle.model, batch, ready.losses)["text"] / batch.counts["text"]
        theirs = Peer(ready.bundle.model)(**collator([{"item": i} for i in items]))["loss"]
    return float((ours - theirs).abs() / theirs)


def _rates_of_rounds(configs: dict[str, Config], items: int, rounds: int) -> list[dict[str, Row]]:
    """The rates of each way in each round; all ways take turns."""
    ways = {
        "stentor padded": partial(_stentor, configs["natural"], "padded"),
        "Trainer, 30 s window": partial(_trainer, configs["30s"], items, "random"),
        "Trainer, 30 s window, grouped by length": partial(_trainer, configs["30s"], items, "group_by_length"),
        "Trainer, natural length": partial(_trainer, configs["natural"], items, "random"),
        "Trainer, natural length, grouped by length": partial(_trainer, configs["natural"], items, "group_by_length"),
        "stentor packed": partial(_stentor, configs["natural"], "packed"),
    }
    rates: list[dict[str, Row]] = []
    for number in range(rounds):
        rates.append({})
        for name, way in ways.items():
            with contextlib.redirect_stdout(io.StringIO()):
                rates[-1][name] = way(number)
            print(f"round {number + 1}: {name}: {rates[-1][name]['tokens']:,.0f} tokens/s", flush=True)
    return rates


def _compared(rounds: list[dict[str, Row]]) -> Rows:
    table = Table()
    for name in rounds[0]:
        rates = [r[name] for r in rounds]
        tokens, audio = (statistics.median(rate[key] for rate in rates) for key in ("tokens", "audio"))
        faster = harness.ratio([r["stentor padded"]["tokens"] for r in rounds], [rate["tokens"] for rate in rates])
        row: Row = {"way": name, "tokens_per_second": round(tokens), "audio_seconds_per_second": round(audio, 1)}
        row |= {"largest_batch_positions": max(rate["slots"] for rate in rates)}
        row |= {"stentor_padded_is_faster_by": round(faster, 2), "rounds": [round(rate["tokens"]) for rate in rates]}
        table.add(row)
    return table


# A tiny Voxtral

VOXTRAL_TARGETS = {"samples": 2.0, "collator": 5.0}
CUT = 256  # tokens of a transcript that the peer keeps
SUBWORDS = {"small": 900, "real": 130_072}  # tokens besides the 1000 special ones; the second is Voxtral's
STEPS = {"small": 40, "real": 7}
WAYS = ("Trainer, 0 workers", "Trainer, 1 worker", "stentor, 0 workers", "stentor, 2 workers")
CASES = [("small", way) for way in WAYS] + [("real", "Trainer, 0 workers"), ("real", "stentor, 0 workers")]
ONE_LAYER = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 64}
AUDIO = {**ONE_LAYER, "hidden_size": 16, "num_mel_bins": 128}
TEXT = {**ONE_LAYER, "hidden_size": 32, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 8192}
VOXTRAL_RUN = """\
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


@benchmark(threads=1)
def finetune_voxtral(items: int = 4, rounds: int = 3) -> Result:
    """Fine-tuning Voxtral: our pipeline beside transformers' Trainer with the collator that people use, in one run.

    First the collator alone, for clips of 5, 15, 30 and 61 s; then training: the same tiny Voxtral from the same
    weights, the same records, the same number of items in a batch, the same optimizer, the audio tower frozen, each way
    in a process of its own, all ways in turn in each round. The first three steps do not count.

    The peer is what the public fine-tuning scripts do: for each batch the arrays are written to wave files in memory
    and read again by `apply_transcription_request`, which computes the features of whole 30 s windows; prompt tokens,
    the transcript's (cut at 256) and the end token are put together in Python lists and padded by hand; the model
    computes the logits of every position, audio included. It has one loader worker, as the scripts do, or none.

    The model is tiny (its size is printed), so that a step takes about as long as the collator: a pipeline that a fast
    GPU waits for. With a large model on a CPU every way would take the time of the model. The last two rows have a
    vocabulary as large as Voxtral's, which the memory for logits goes with. Peak memory and CPU seconds are those of
    the training process, without its loader workers; the collator's times are CPU times too, which another busy process
    disturbs less. Records are those of the benchmark `training`.
    """
    from transformers import VoxtralForConditionalGeneration

    _quiet()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        origin = make_records(folder, items * STEPS["small"])
        bundles = {vocabulary: _tiny_voxtral(folder, vocabulary) for vocabulary in SUBWORDS}
        rows = Recordings(folder / "train.jsonl")
        model = VoxtralForConditionalGeneration.from_pretrained(folder / "model-small")
        difference = _voxtral_loss_difference(bundles["small"], model, [rows[i] for i in range(3)])
        facts: Row = {"records": len(rows), "data": origin, "items": items, "audio_config": AUDIO, "text_config": TEXT}
        facts["parameters"] = {v: sum(p.numel() for p in b.model.parameters()) for v, b in bundles.items()}
        facts["loss_difference"] = difference
        print(facts)
        assert difference < 1e-4
        alone = _voxtral_collators(bundles["small"], items, 5 * rounds)
        trained = _voxtral_cases(folder, items, rounds)
    for name, found in (("collator", alone), ("samples", trained)):
        harness.verdict(
            f"the {name}", min(row["ratio"] for row in found if "ratio" in row), least=VOXTRAL_TARGETS[name]
        )
    return [*alone, *trained], {**facts, "targets": VOXTRAL_TARGETS}


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
    facts["config"] |= {"num_vocab_tokens": words, "default_vocab_size": 1000 + words, "version": "v7"}
    facts["config"]["default_num_special_tokens"] = 1000
    encoding = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
    facts["audio"] = {"sampling_rate": RATE, "frame_rate": 12.5, "chunk_length_s": 30.0}
    facts["audio"]["audio_encoding_config"] = encoding
    facts.pop("image", None)
    folder.mkdir(parents=True)
    (folder / "tekken.json").write_text(json.dumps(facts))
    return folder


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable_progress_bar()


def _tiny_voxtral(folder: Path, vocabulary: str) -> Bundle:
    """A tiny Voxtral, written to the folder as transformers reads it."""
    torch.manual_seed(0)
    tokenizer = write_tokenizer(folder / f"tekken-{vocabulary}", SUBWORDS[vocabulary])
    config = {"model_type": "voxtral", "audio_config": AUDIO, "text_config": TEXT}
    family = Family.model_validate({"type": "audio_llm", "config": config, "tokenizer": str(tokenizer)})
    bundle = family.build(TaskRequirements("transcribe", ("text",)))
    family.save(bundle, bundle.model.state_dict(), folder / f"model-{vocabulary}")
    return bundle


class Recordings(torch.utils.data.Dataset):
    """Records of a manifest with their audio, read when asked for."""

    def __init__(self, manifest: Path, longest: float = 30.0):
        self.rows = [row for row in harness.read_lines(manifest) if row["duration"] <= longest]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        import soundfile

        row = self.rows[index]
        return {"audio": soundfile.read(row["file"], dtype="float32")[0], "text": row["text"]}


class UpstreamCollator:
    """A batch as the public scripts make it, with the end token and each record's language."""

    def __init__(self, processor: Any):
        self.processor = processor

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
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

        batch = {"input_ids": padded(ids, tokenizer.pad_token_id), "attention_mask": padded(mask, 0)}
        return {**batch, "labels": padded(labels, -100), "input_features": prompt["input_features"]}


def finetune_case(vocabulary: str, way: str, folder: str, items: int) -> Row:
    """One way, in this process."""
    _quiet()
    run = _finetune_stentor if way.startswith("stentor") else _finetune_trainer
    model = Path(folder) / f"model-{vocabulary}"
    clock = run(model, Path(folder), items, STEPS[vocabulary], int(way.split()[1]))
    (wall, cpu), steps = clock.spent(), clock.steps - clock.warm
    row = {"seconds_per_step": wall / steps, "cpu_seconds_per_step": cpu / steps}
    return row | {"samples_per_second": clock.amounts["items"] / wall, "peak_memory_mb": harness.memory("VmHWM") / 1e6}


def _finetune_stentor(model: Path, folder: Path, items: int, steps: int, workers: int) -> Clock:
    with tempfile.TemporaryDirectory() as run:
        path = Path(run) / "run.yaml"
        path.write_text(VOXTRAL_RUN.format(model=model, folder=folder, items=items, steps=steps, workers=workers))
        return timed_run(load(path).config, Path(run) / "run", Clock(3))


def _finetune_trainer(model: Path, folder: Path, items: int, steps: int, workers: int) -> Clock:
    from transformers import VoxtralForConditionalGeneration, VoxtralProcessor

    clock = Clock(3)
    peer = VoxtralForConditionalGeneration.from_pretrained(model)
    peer.model.audio_tower.requires_grad_(False)
    settings = {"max_steps": steps, "learning_rate": 1e-4, "weight_decay": 0.0, "seed": 0}
    with tempfile.TemporaryDirectory() as run:
        Trainer(
            peer,
            peer_arguments(run, items, **settings, dataloader_num_workers=workers, dataloader_drop_last=True),
            train_dataset=Recordings(folder / "train.jsonl"),
            callbacks=[Tick(clock, items)],
            data_collator=UpstreamCollator(VoxtralProcessor.from_pretrained(model)),
        ).train()
    return clock


def _voxtral_loss_difference(bundle: Bundle, model: nn.Module, rows: Rows) -> float:
    """Relative difference of our loss from the peer's on the same records."""
    from stentor.losses.base import Loss

    batch = bundle.processor.collate([Example(str(i), r["audio"], r["text"]) for i, r in enumerate(rows)])
    bundle.model.eval()
    with torch.no_grad():
        ours = Loss.model_validate("cross_entropy").sum(**bundle.model(**batch.inputs)["text"]) / batch.counts["text"]
        theirs = model.eval()(**UpstreamCollator(bundle.processor.hf)(rows)).loss
    return float((ours - theirs).abs() / theirs)


def _voxtral_collators(bundle: Bundle, items: int, rounds: int) -> Rows:
    """CPU milliseconds per clip of both collators, for clips of one length."""
    rng, table = np.random.default_rng(0), Table()
    upstream = UpstreamCollator(bundle.processor.hf)
    for seconds in (5, 15, 30, 61):
        text = "the quick brown fox " * max(1, seconds // 2)
        records = [{"audio": harness.clip(rng, seconds), "text": text, "language": "en"} for _ in range(items)]
        examples = [Example(str(i), r["audio"], r["text"], r["language"]) for i, r in enumerate(records)]
        ways = {"ours": partial(bundle.processor.collate, examples), "peer": partial(upstream, records)}
        taken = harness.in_turns(ways, rounds, settle=True)
        faster = round(harness.ratio(taken["peer"], taken["ours"]), 2)
        table.add({"collator": f"{seconds} s", "ms_per_clip": harness.medians(taken, 1000 / items), "ratio": faster})
    return table


def _voxtral_cases(folder: Path, items: int, rounds: int) -> Rows:
    """Every case in each round, and how much faster ours is with as many workers, or with what it does by default."""
    threads = harness.set_threads()
    environment = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    got: dict[tuple[str, str], Rows] = {case: [] for case in CASES}
    for number in range(rounds):
        for case, found in got.items():
            found.append(harness.apart(finetune_case, *case, folder, items, threads=threads, **environment))
            print(f"round {number + 1}: {case[1]}: {found[-1]['samples_per_second']:.1f} samples/s", flush=True)
    table = Table()
    for (vocabulary, way), found in got.items():
        row: Row = {"vocabulary": 1000 + SUBWORDS[vocabulary], "way": way}
        row |= harness.medians({key: [g[key] for g in found] for key in found[0]}, digits=4)
        row["rounds"] = [round(g["samples_per_second"], 2) for g in found]
        if way.startswith("Trainer"):
            row["ours"] = "stentor, 2 workers" if way == "Trainer, 1 worker" else "stentor, 0 workers"
            ours = got[vocabulary, row["ours"]]
            by = {k: harness.ratio([g[k] for g in found], [o[k] for o in ours]) for k in list(found[0])[:2]}
            row["ratio"] = round(by["seconds_per_step"], 2)
            row |= {"cpu_ratio": round(by["cpu_seconds_per_step"], 2)} if way.endswith("0 workers") else {}
        table.add(row)
    return table


# Checkpoints

WIDTH = 1024
CHECKPOINT_TARGETS = {"blocked_per_gib": 0.1, "memory_of_share": 1.2}


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
    harness.verdict("seconds blocked a GiB", table[2]["blocked_per_gib"], most=CHECKPOINT_TARGETS["blocked_per_gib"])
    harness.verdict(
        "rank 0's memory by its share", table[1]["memory_of_share"], most=CHECKPOINT_TARGETS["memory_of_share"]
    )
    return table, {"gib": round(size, 3), "processes": processes, "targets": CHECKPOINT_TARGETS}


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
    """What `engine.checkpoint.write` did until 0.5."""
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
