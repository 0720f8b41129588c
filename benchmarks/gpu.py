"""Real sizes on a GPU: fine-tuning and speech synthesis, each case a run of our engine in a process of its own."""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import RATE, Result, Row, Rows, Table, benchmark
from stentor.engine.callback import Callback

Device = Literal["cuda", "cpu"]
Steps = Annotated[int, "Optimizer steps; the first half is not measured."]
Workers = Annotated[int, "Loader workers."]
Tiny = Annotated[bool, "Tiny models, to see that the benchmark runs."]


class Measured(Exception):
    """The steps are over; nothing is to be saved."""


class Timed(Callback):
    """Takes the row of metrics of the second half of the steps and ends the run."""

    _row: Row
    _parameters: dict[str, int]

    def on_start(self, trainer: Any) -> None:
        parameters = list(trainer.bundle.model.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        self._parameters = {"parameters": sum(p.numel() for p in parameters), "trained": trained}

    def on_metrics(self, trainer: Any, metrics: Row) -> None:
        self._row = metrics
        if metrics["step"] == trainer.train.steps:
            raise Measured


def _check(device: str, tiny: bool, steps: int) -> str:
    """The name of the device; ends with a sentence where this machine cannot do what is asked for."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA GPU here: run this on a machine with one, or with --tiny --device cpu.")
    if device == "cpu" and not tiny:
        raise SystemExit("Models of real size are for a GPU: give --tiny as well to run on the CPU.")
    if steps < 2 or steps % 2:
        raise SystemExit("--steps must be even: the second half is measured.")
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _measure(sections: Row, metrics: tuple[str, ...], steps: int, workers: int, device: str) -> Row:
    """Train a run of these sections (task, model, data) in this process; its number of parameters and its metrics."""
    from stentor.commands.train import train
    from stentor.config.schema import Config

    precision = "bf16" if device == "cuda" else "fp32"
    sections = {
        **sections,
        "data": {"workers": workers, "prefetch": 4, **sections["data"]},
        "optim": {"type": "adamw", "lr": 1e-5},
        "schedule": {"type": "constant", "warmup_steps": 0},
        "train": {"steps": steps, "log_every": steps // 2, "device": device, "precision": precision},
    }
    config, timed = Config.model_validate(sections), Timed(type="timed")
    config.callbacks = [timed]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            train([config], Path(scratch) / "run", {})
        except Measured:
            return {**timed._parameters, **{name: timed._row.get(name) for name in metrics}}
        except torch.cuda.OutOfMemoryError:
            return {"failed": "out of memory"}
    raise RuntimeError("The run ended before it was measured.")


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """As `harness.apart`, so that a case finds the GPU's memory empty; one that fails is reported as a row."""
    try:
        return harness.apart(function, *arguments)
    except harness.Failed as failure:
        return {"failed": str(failure).splitlines()[-1]}


def _facts(rows: Rows, **facts: Any) -> Row:
    """Facts of a benchmark, which has failed when all of its cases have."""
    return {**facts, "failed": "all cases" if all("failed" in row for row in rows) else ""}


# Fine-tuning


def _layers(width: int, inner: int, layers: int, heads: int) -> Row:
    sizes = (width, inner, layers, heads)
    return dict(zip(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), sizes))


def _voxtral(tiny: bool) -> Row:
    audio = {**(_layers(32, 128, 1, 2) if tiny else _layers(1280, 5120, 32, 20)), "num_mel_bins": 128}
    if tiny:
        text = {**_layers(32, 128, 1, 2), "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 8192}
    else:
        text = {**_layers(3072, 8192, 30, 32), "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e8}
        text["max_position_embeddings"] = 131072
    return {"model_type": "voxtral", "audio_config": audio, "text_config": text}


def _whisper(tiny: bool) -> Row:
    sizes = (32, 1, 1, 2, 64) if tiny else (1280, 32, 4, 20, 5120)
    width, encoder, decoder, heads, inner = sizes
    config = {"model_type": "whisper", "d_model": width, "encoder_layers": encoder, "decoder_layers": decoder}
    config |= {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    config |= {f"{side}_ffn_dim": inner for side in ("encoder", "decoder")}
    return {**config, "num_mel_bins": 128, **({} if tiny else {"vocab_size": 51866})}


@benchmark
def gpu_finetune(
    models: tuple[Literal["voxtral", "whisper"], ...] = ("voxtral", "whisper"),
    how: tuple[Literal["lora", "full"], ...] = ("lora", "full"),
    items: Annotated[int, "Clips in a batch."] = 8,
    steps: Steps = 20,
    workers: Workers = 4,
    device: Device = "cuda",
    tiny: Tiny = False,
) -> Result:
    """Fine-tuning real sizes on a GPU: tokens/s, memory and MFU of Voxtral-Mini-3B and Whisper-large-v3-turbo.

        python benchmarks gpu_finetune --tiny --device cpu          # the same code in seconds, to see that it runs

    The weights are random (nothing is downloaded), the sizes those of the published models, the clips noise as long as
    sentences that are read (12 s in the mean, 28 s at most), with texts of random words. Each case is a run of our
    engine as `stentor train` starts it, in a process of its own: bf16 autocast, loader workers, the dry run that counts
    FLOPs. The first half of the steps does not count. Tokens are positions of the language model (Voxtral) or of
    encoder and decoder (Whisper) that are not padding; MFU is the dry run's FLOPs at the measured speed over the GPU's
    dense bf16 peak, and counts what gradient checkpointing computes again.

    Full fine-tuning keeps weights, gradients and AdamW's two moments in float32, 16 bytes per trained parameter:
    Voxtral (LoRA: 16 GB) needs about 80 GB, which is why a case that does not fit is reported as such and the others
    are still measured.
    """
    gpu, table = _check(device, tiny, steps), Table()
    with tempfile.TemporaryDirectory() as scratch:
        _noise_with_texts(Path(scratch) / "data", items * 8, tiny)
        for model in models:
            for kind in how:
                case = (model, kind, scratch, items, steps, workers, device, tiny)
                with contextlib.redirect_stdout(io.StringIO()):
                    row = finetuned(*case) if tiny else _apart(finetuned, *case)
                table.add({"model": model, "how": kind, **row})
    return table, _facts(table, gpu=gpu, items=items, steps=steps, workers=workers)


def finetuned(model: str, how: str, folder: str, items: int, steps: int, workers: int, device: str, tiny: bool) -> Row:
    """One case, in this process."""
    from benchmarks.training import SUBWORDS, write_tokenizer

    lora = {"rank": 16, "alpha": 32, "dropout": 0.05} if how == "lora" else None
    if model == "whisper":
        section = {"type": "seq2seq", "config": _whisper(tiny), "lora": lora}
    else:
        tokenizer = Path(folder) / "tekken"
        if not tokenizer.exists():
            write_tokenizer(tokenizer, SUBWORDS["small" if tiny else "real"])
        section = {"type": "audio_llm", "config": _voxtral(tiny), "tokenizer": str(tokenizer), "lora": lora}
        section |= {"freeze": ["audio_tower.*"], "gradient_checkpointing": True}
        section["dtype"] = "bfloat16" if lora else "float32"
    data = {"train": [{"type": "jsonl", "path": f"{folder}/data/train.jsonl"}]}
    sections = {"task": {"type": "transcribe"}, "model": section}
    sections["data"] = {**data, "max_items": items, "batch_tokens": 10**6}
    metrics = ("tokens_per_second", "audio_seconds_per_second", "padding", "data_wait", "memory_gb", "mfu")
    return _measure(sections, metrics, steps, workers, device)


def _noise_with_texts(folder: Path, count: int, tiny: bool) -> None:
    """A manifest of clips of noise with texts of random words."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(2, 9))) for _ in range(2000)]

    def clip() -> tuple[np.ndarray, Row]:
        seconds = float(np.clip(rng.gamma(4.0, 3.0), 1, 28)) if not tiny else 1.0
        audio = (0.1 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)
        return audio, {"text": " ".join(rng.choice(words, max(1, round(2.6 * seconds)))), "language": "en"}

    harness.write_clips(folder, (clip() for _ in range(count)))


# Speech synthesis

CASES = ("flex", "sdpa", "arrival", "fp32-flex", "logits")
TEXT_TOKENS = 151_676
"""Vocabulary of the published model, special tokens included."""
FRAMES = 25
"""A second."""


@benchmark
def gpu_speak(
    cases: tuple[Literal[CASES], ...] = CASES,
    batch_tokens: Annotated[int, "Positions in a batch."] = 8192,
    samples: Annotated[int, "Samples in the shards."] = 4000,
    seconds: Annotated[int, "Audio of an utterance that is spoken."] = 10,
    steps: Steps = 40,
    workers: Workers = 4,
    device: Device = "cuda",
    tiny: Tiny = False,
) -> Result:
    """OmniVoice at real size on a GPU: tokens/s, MFU and memory of training, real-time factor of speaking.

        python benchmarks gpu_speak --tiny --device cpu             # the same code in seconds, to see that it runs

    The weights are random (nothing is downloaded); the sizes are those of the published model: a Qwen3-0.6B backbone
    with 151,676 text tokens, 8 codebooks of 1025 entries at 25 frames per second. The data are token shards of random
    codes with lengths as in read and spontaneous speech. Each case is a run of our engine as `stentor train` starts it,
    in a process of its own: AdamW on float32 weights, bf16 autocast, loader workers, the dry run that counts FLOPs. The
    first half of the steps (compiling) does not count. Cases:

        flex          packed by best fit, flex_attention with block tables from the loader, logits of masked cells alone
        sdpa          padded to quantile buckets, SDPA with a mask
        arrival       as flex, packed in order of arrival (a sample that does not fit any more begins the next batch)
                      and padded to --batch-tokens
        fp32-flex     as flex, query, key and value left in float32 under autocast
        logits        as flex, float32 logits of all positions and codebooks in memory

    Tokens are positions that hold text or audio, not padding; MFU is the dry run's FLOPs at the measured speed over the
    GPU's dense bf16 peak. Speaking: --seconds of audio after a reference of 3 s, guided (two rows for each utterance),
    one utterance and eight, 16 and 32 steps, plain and with torch.compile; the factor is seconds of computing for each
    second of audio, codec not included.
    """
    from benchmarks.storage import write_token_shards

    gpu, table, spoken = _check(device, tiny, steps), Table(), Table()
    with tempfile.TemporaryDirectory() as scratch:
        write_token_shards(Path(scratch), 4, samples // 4)
        for name in cases:
            table.add(
                {"case": name, **_apart(speak_trained, name, scratch, batch_tokens, steps, workers, device, tiny)}
            )
        factors = _apart(speak_factors, seconds, device, tiny)
    if isinstance(factors, dict):
        print(f"\nspeaking failed: {factors['failed']}")
    else:
        for row in factors:
            spoken.add(row)
    facts = {"batch_tokens": batch_tokens, "steps": steps, "workers": workers}
    return table, _facts(table, speaking=spoken, gpu=gpu, **facts)


def _omnivoice(attention: str, tiny: bool) -> Row:
    """The section `model:`."""
    backbone = {"model_type": "qwen3", **(_layers(32, 64, 1, 2) if tiny else _layers(1024, 3072, 28, 16))}
    if tiny:
        backbone |= {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096}
    else:
        backbone |= {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}
        backbone["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6}
        _real_vocabulary()
    return {"type": "omnivoice", "llm": {"config": backbone}, "text": {"type": "bpe"}, "attention": attention}


def _real_vocabulary() -> None:
    """Give the tokenizer that is made from the texts as many tokens as the published one has."""
    from stentor.models.omnivoice import build

    ours = build.made_tokenizer

    def filled(*arguments: Any) -> Any:
        tokenizer = ours(*arguments)
        tokenizer.add_tokens([f"<unused{i}>" for i in range(TEXT_TOKENS - len(tokenizer) - 7)])
        return tokenizer

    build.made_tokenizer = filled


# The naive variants


def _in_order_of_arrival(width: int) -> None:
    """Packs as they come, padded to `width`: a sample that does not fit any more begins the next."""
    from stentor.dataloading import batch_sampler
    from stentor.models.omnivoice import processor

    def pack(costs: Any, budget: int, max_items: int | None, window: int, generator: Any) -> list[list[int]]:
        packs: list[list[int]] = [[]]
        room = budget
        for index in generator.permutation(len(costs)).tolist():
            if costs[index] > room:
                packs.append([])
                room = budget
            packs[-1].append(index)
            room -= costs[index]
        return packs

    batch_sampler.pack = pack
    processor.rounded = lambda total: width


def _without_cast(width: int) -> None:
    """flex_attention in the type of what it is given."""
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import AttentionInterface
    from transformers.integrations.flex_attention import flex_attention_forward

    from stentor.models.packing import flex

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        forward = flex_attention_forward if isinstance(mask, BlockMask) else flex.attention
        return forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register(flex.NAME, attention)


def _all_logits(width: int) -> None:
    """A forward pass that computes the logits of every position and codebook."""
    from stentor.models.omnivoice.modeling import OmniVoiceModel

    def forward(self: Any, input_ids: Any, audio_mask: Any, rows: Any, **more: Any) -> dict[str, Row]:
        targets = [more.pop(f"targets_{c}") for c in range(self.codebooks)]
        logits = self.logits(input_ids, audio_mask, **more).float().transpose(0, 1).flatten(1, 2)
        places = rows.split([len(t) for t in targets])
        labels = torch.full(logits.shape[:2], -100, device=rows.device)
        for c, (place, target) in enumerate(zip(places, targets, strict=True)):
            labels[c, place] = target
        return {f"codes_{c}": {"logits": logits[c], "targets": labels[c]} for c in range(self.codebooks)}

    OmniVoiceModel.forward = forward


NAIVE = {"arrival": _in_order_of_arrival, "fp32-flex": _without_cast, "logits": _all_logits}


def speak_trained(name: str, folder: str, batch_tokens: int, steps: int, workers: int, device: str, tiny: bool) -> Row:
    """Train one case, in this process."""
    if name in NAIVE:
        NAIVE[name](-(-batch_tokens // 128) * 128)  # whole blocks
    model = _omnivoice("sdpa" if name == "sdpa" else "flex", tiny)
    data = {"train": [{"type": "shards", "path": folder}], "batch_tokens": batch_tokens}
    metrics = ("tokens_per_second", "padding", "data_wait", "memory_gb", "mfu")
    return _measure({"task": {"type": "speak"}, "model": model, "data": data}, metrics, steps, workers, device)


def speak_factors(seconds: int, device: str, tiny: bool) -> Rows:
    """Seconds of computing for each second of audio, best of three."""
    from stentor.models.base import Family, TaskRequirements

    needs = TaskRequirements("speak", ("codes",), lambda: iter(["what is said by a voice"]))
    bundle = Family.model_validate(_omnivoice("sdpa", tiny)).build(needs)
    model: Any = bundle.model.to(device).eval()
    reference, text = torch.randint(1024, (8, 3 * FRAMES)), "what is said by a voice " * (1 if tiny else 6)
    prompt = bundle.processor.utterance(text, reference=(reference, text[:40]), frames=seconds * FRAMES)
    rows = []
    for compiled in (False, True) if device == "cuda" else (False,):
        for count in (1, 8):
            for steps in (16, 32):
                speak = partial(model.speak, [prompt] * count, seeds=list(range(count)), steps=steps, compile=compiled)
                taken = harness.in_turns({"": speak}, 1 if tiny else 3, time.perf_counter, warm=1)[""]
                row = {"utterances": count, "steps": steps, "compiled": compiled}
                rows.append(row | {"real_time_factor": min(taken) / (count * seconds)})
    return rows
