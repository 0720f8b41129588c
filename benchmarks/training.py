"""Training throughput on speech of mixed length: our engine beside transformers' Trainer, in one run.

    python benchmarks/training.py [--records 160] [--rounds 3] [--threads 2]

The same model (a small speech LLM: Whisper encoder, projector, Qwen2) from the same weights, the same records, the
same optimizer; everybody sees every record once per round, and all take turns in each round. Five ways:

  stentor padded, packed      batches by `data.batch_tokens`, encoder at natural length
  Trainer, 30 s window        what people get: transformers' feature extractor, whose clips are all 30 s long, a
                              padding collator, random batches of a fixed number of items, the model's own loss
  ... grouped by length       the same with `train_sampling_strategy="group_by_length"`
  Trainer, natural length     the same batches with our features and encoder: what batching alone is worth

A Trainer batch has as many items as ours in the mean. Tokens are positions of the language model that are not padding.
Records are real LibriSpeech where `../shared/data` is there, else sentences of the built-in voice as long as in
LibriSpeech; they are read once and stored as 16 kHz WAV before the clock runs. The first two steps do not count.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import write
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, WhisperFeatureExtractor

from stentor.commands.train import prepare, train
from stentor.config.load import load
from stentor.config.schema import Config
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.engine.callback import Callback
from stentor.sources.jsonl import Jsonl

REAL = Path(__file__).parents[1] / ".." / "shared" / "data" / "librispeech" / "train.jsonl"
TARGET, WARM, RATE = 1.5, 2, 16000
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
    """Tokens, seconds of audio and wall time after the first steps of a run."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.audio = self.largest = 0
        self.ended = self.began = 0.0

    def batch(self, batch: Any) -> None:
        self.largest = max(self.largest, batch.num_positions)
        if self.steps >= WARM:
            self.tokens += batch.tokens
            self.audio += batch.seconds

    def step(self) -> None:
        self.steps += 1
        self.ended = time.perf_counter()
        if self.steps == WARM:
            self.began = self.ended

    def rates(self) -> dict[str, float]:
        if self.steps <= WARM:
            raise SystemExit(f"An epoch of {self.steps} steps is too short to measure: raise --records.")
        spent = self.ended - self.began
        return {"tokens": self.tokens / spent, "audio": self.audio / spent, "slots": self.largest, "steps": self.steps}


class Timed(Callback):
    """Tells the clock what our trainer does."""

    _clock: Clock

    def on_batch(self, trainer: Any, batch: Any) -> None:
        self._clock.batch(batch)

    def on_step(self, trainer: Any) -> None:
        self._clock.step()


def stentor(config: Config, layout: str, number: int) -> dict[str, float]:
    """One epoch in our engine."""
    clock, timed = Clock(), Timed(type="timed")
    timed._clock = clock
    config = config.model_copy(update={"data": config.data.model_copy(update={"layout": layout})})
    config.callbacks = [timed]
    train([config], Path(config.output) / f"{layout}-{number}", {})
    return clock.rates()


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

    def __init__(self, reader: BatchDataset, clock: Clock | None, extractor: WhisperFeatureExtractor | None):
        self.reader, self.clock, self.extractor = reader, clock, extractor

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
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


class Tick(TrainerCallback):
    def __init__(self, clock: Clock):
        self.clock = clock

    def on_step_end(self, args, state, control, **kwargs):
        self.clock.step()


def trainer(config: Config, items: int, grouped: bool, number: int) -> dict[str, float]:
    """One epoch in transformers' Trainer, in batches of so many items."""
    ready = prepare(config, lambda line: None)
    processor, clock = ready.bundle.processor, Clock()
    extractor = WhisperFeatureExtractor(feature_size=80) if config.model.encoder.window == "30s" else None
    reader = BatchDataset(ready.task, processor, None, 0)
    cuts = ready.train_data.cuts()
    records = [{"item": Item(cut, 0), "input_ids": range(processor.tokens(cut, cut.duration))} for cut in cuts]
    arguments = TrainingArguments(
        output_dir=f"{config.output}/peer",
        num_train_epochs=1,
        per_device_train_batch_size=items,
        use_cpu=True,
        learning_rate=config.optim.lr,
        weight_decay=config.optim.weight_decay,
        adam_beta1=config.optim.betas[0],
        adam_beta2=config.optim.betas[1],
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length" if grouped else "random",
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        seed=number,
    )
    Trainer(
        Peer(ready.bundle.model),
        arguments,
        train_dataset=records,
        callbacks=[Tick(clock)],
        data_collator=Collator(reader, clock, extractor),
    ).train()
    return clock.rates()


def same_loss(config: Config) -> float:
    """Relative difference of our loss from the peer's on the same records: it is the same model."""
    ready = prepare(config, lambda line: None)
    extractor = WhisperFeatureExtractor(feature_size=80) if config.model.encoder.window == "30s" else None
    reader = BatchDataset(ready.task, ready.bundle.processor, None, 0)
    items = [Item(cut, 0) for cut in list(ready.train_data.cuts())[:3]]
    examples, _ = reader.examples(items)
    batch = ready.task.collate(examples, ready.bundle.processor, False)
    ready.bundle.model.eval()
    with torch.no_grad():
        ours = ready.task.loss_sums(ready.bundle.model, batch, ready.losses)["text"] / batch.counts["text"]
        theirs = Peer(ready.bundle.model)(**Collator(reader, None, extractor)([{"item": i} for i in items]))["loss"]
    return float((ours - theirs).abs() / theirs)


def records(folder: Path, count: int) -> str:
    """Write WAV files and a manifest into the folder; answers where they come from."""
    from stentor.audio.io import read, write

    rng, lines = np.random.default_rng(0), []
    if REAL.is_file():
        from stentor.data.load_audio import load_audio

        cuts = [c for c in Jsonl(path=REAL).cuts() if c.duration <= 30]
        clips = ((load_audio(cuts[i]), cuts[i].supervisions[0].text) for i in rng.permutation(len(cuts))[:count])
    else:
        clips = (_sentence(rng) for _ in range(count))
    for i, (audio, text) in enumerate(clips):
        write(folder / f"{i}.wav", audio, RATE)
        assert len(read(folder / f"{i}.wav")) == len(audio)
        lines.append(json.dumps({"id": str(i), "audio_path": f"{i}.wav", "text": text, "duration": len(audio) / RATE}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return "LibriSpeech dev-clean, 14 speakers" if REAL.is_file() else "built-in voice, 1 to 20 s"


def _sentence(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    from stentor.audio.synth import say

    count = max(2, int(2.6 * np.clip(rng.gamma(2.2, 3.4), 1, 19)))
    text = " ".join(rng.choice(WORDS, count))
    return say(text, voice="en-us", speed=150).audio, text


def rates_of_rounds(configs: dict[str, Config], items: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    """The rates of each way in each round; all ways take turns."""
    ways = {
        "stentor padded": lambda n: stentor(configs["natural"], "padded", n),
        "Trainer, 30 s window": lambda n: trainer(configs["30s"], items, False, n),
        "Trainer, 30 s window, grouped by length": lambda n: trainer(configs["30s"], items, True, n),
        "Trainer, natural length": lambda n: trainer(configs["natural"], items, False, n),
        "Trainer, natural length, grouped by length": lambda n: trainer(configs["natural"], items, True, n),
        "stentor packed": lambda n: stentor(configs["natural"], "packed", n),
    }
    rates: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        rates.append({})
        for name, way in ways.items():
            with contextlib.redirect_stdout(io.StringIO()):
                rates[-1][name] = way(number)
            print(f"round {number + 1}: {name}: {rates[-1][name]['tokens']:,.0f} tokens/s", flush=True)
    return rates


def table(rounds: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each way, printed."""
    print(f"\n{'':44}{'tokens/s':>10}{'audio s/s':>11}{'largest batch':>15}   stentor padded is")
    rows = []
    for name in rounds[0]:
        rates = [r[name] for r in rounds]
        ratio = statistics.median(r["stentor padded"]["tokens"] / r[name]["tokens"] for r in rounds)
        tokens, audio = (statistics.median(rate[key] for rate in rates) for key in ("tokens", "audio"))
        largest = max(rate["slots"] for rate in rates)
        rows.append(
            {
                "way": name,
                "tokens_per_second": round(tokens),
                "audio_seconds_per_second": round(audio, 1),
                "largest_batch_positions": largest,
                "stentor_padded_is_faster_by": round(ratio, 2),
                "rounds": [round(rate["tokens"]) for rate in rates],
            }
        )
        print(f"{name:44}{tokens:10,.0f}{audio:11,.0f}{largest:15,} {ratio:12.2f} x as fast")
    ratio = rows[1]["stentor_padded_is_faster_by"]
    print(f"\nTarget against the Trainer as people run it: {TARGET} x; {'met' if ratio >= TARGET else 'missed'}.")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-tokens", type=int, default=1600)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        origin = records(folder, args.records)
        configs = {}
        for window in ("natural", "30s"):
            path = folder / f"{window}.yaml"
            path.write_text(RUN.replace("WINDOW", window).format(folder=folder, tokens=args.batch_tokens))
            configs[window] = load(path).config
        ready = prepare(configs["natural"], lambda line: None)
        facts = ready.batch_sampler.statistics()
        items = round(facts["items"] / facts["batches"])
        minutes = ready.train_data.hours * 60
        parameters = sum(p.numel() for p in ready.bundle.model.parameters())
        difference = max(same_loss(config) for config in configs.values())
        print(
            f"{args.records} records, {minutes:.1f} min ({origin}); {parameters / 1e6:.1f} M parameters; "
            f"{args.threads} threads;\nbatches of {args.batch_tokens} positions (ours) and {items} items (Trainer); "
            f"the same loss to {difference:.0e}\n"
        )
        assert difference < 1e-4
        rows = table(rates_of_rounds(configs, items, args.rounds))
    write(
        "training",
        rows,
        records=args.records,
        minutes=round(minutes, 1),
        data=origin,
        parameters=parameters,
        threads=args.threads,
        batch_tokens=args.batch_tokens,
        trainer_items=items,
        loss_difference=difference,
        target=TARGET,
    )


if __name__ == "__main__":
    main()
