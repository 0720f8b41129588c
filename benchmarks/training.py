"""Training beside transformers' Trainer: speech of mixed length, and fine-tuning of Voxtral."""

import contextlib
import io
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, WhisperFeatureExtractor
from transformers.utils import logging

from benchmarks import harness
from benchmarks.harness import DATA, RATE, Result, Row, Rows, Table, benchmark
from stentor.commands.train import prepare, train
from stentor.config.load import load
from stentor.config.schema import Config
from stentor.data.batch import Example
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.engine.callback import Callback
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.sources.manifest import Jsonl

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
    from stentor.data.load_audio import load_audio

    rng = np.random.default_rng(0)
    if REAL.is_file():
        cuts = [c for c in Jsonl(path=REAL).cuts() if c.duration <= 30]
        drawn = [cuts[i] for i in rng.permutation(len(cuts))[:count]]
        clips = ((load_audio(cut), {"text": cut.supervisions[0].text}) for cut in drawn)
    else:
        clips = (_sentence(rng) for _ in range(count))
    harness.write_clips(folder, clips)
    return "LibriSpeech dev-clean, 14 speakers" if REAL.is_file() else "built-in voice, 1 to 20 s"


def _sentence(rng: np.random.Generator) -> tuple[np.ndarray, Row]:
    from stentor.audio.synth import say

    text = " ".join(rng.choice(WORDS, max(2, int(2.6 * np.clip(rng.gamma(2.2, 3.4), 1, 19)))))
    return say(text, voice="en-us", speed=150).audio, {"text": text}


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
