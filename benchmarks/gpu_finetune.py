"""Fine-tuning real sizes on a GPU: tokens/s, memory and MFU of Voxtral-Mini-3B and Whisper-large-v3-turbo.

    python benchmarks/gpu_finetune.py [--models voxtral whisper] [--how lora full] [--items 8] [--steps 20]
    python benchmarks/gpu_finetune.py --tiny --device cpu          # the same code in seconds, to see that it runs

The weights are random (nothing is downloaded), the sizes those of the published models, the clips noise as long as
sentences that are read (12 s in the mean, 28 s at most), with texts of random words. Each case is a run of our engine
as `stentor train` starts it, in a process of its own: bf16 autocast, loader workers, the dry run that counts FLOPs. The
first half of the steps does not count. Tokens are positions of the language model (Voxtral) or of encoder and decoder
(Whisper) that are not padding; MFU is the dry run's FLOPs at the measured speed over the GPU's dense bf16 peak, and
counts what gradient checkpointing computes again.

Full fine-tuning keeps weights, gradients and AdamW's two moments in float32, 16 bytes per trained parameter: Voxtral
(LoRA: 16 GB) needs about 80 GB, which is why a case that does not fit is reported as such and the others go on.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune_voxtral import WORDS, write_tokenizer
from results import write

from stentor.callbacks.base import Callback

RATE = 16000
VOXTRAL = {
    "audio_config": {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 20,
        "num_mel_bins": 128,
    },
    "text_config": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 30,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 1e8,
    },
}
WHISPER = {
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 4,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "vocab_size": 51866,
}
TINY = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY_VOXTRAL = {
    "audio_config": {**TINY, "num_mel_bins": 128},
    "text_config": {**TINY, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 8192},
}
TINY_WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 128,
}
WIDTHS = (12, 12, 10, 11, 9, 11, 8)
LORA = {"rank": 16, "alpha": 32, "dropout": 0.05}


class Measured(Exception):
    """The steps are over; nothing is to be saved."""


class Timed(Callback):
    """Takes the row of metrics of the second half of the steps and ends the run."""

    _row: dict[str, Any]
    _parameters: dict[str, int]

    def on_start(self, trainer: Any) -> None:
        parameters = list(trainer.bundle.model.parameters())
        self._parameters = {
            "parameters": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
        }

    def on_metrics(self, trainer: Any, metrics: dict[str, Any]) -> None:
        self._row = metrics
        if metrics["step"] == trainer.train.steps:
            raise Measured


def section(model: str, how: str, tiny: bool, folder: Path) -> dict[str, Any]:
    """The section `model:` of a case."""
    lora = LORA if how == "lora" else None
    if model == "whisper":
        return {"type": "whisper", "config": TINY_WHISPER if tiny else WHISPER, "lora": lora}
    tokenizer = folder / "tekken"
    if not tokenizer.exists():
        write_tokenizer(tokenizer, WORDS["small" if tiny else "real"])
    config = TINY_VOXTRAL if tiny else VOXTRAL
    made = {"type": "voxtral", "config": config, "tokenizer": str(tokenizer), "lora": lora, "freeze": ["audio_tower.*"]}
    return made | {"gradient_checkpointing": True, "dtype": "bfloat16" if lora else "float32"}


def records(folder: Path, count: int, tiny: bool) -> Path:
    """A manifest of clips of noise with texts of random words."""
    import soundfile

    folder.mkdir()
    rng, lines = np.random.default_rng(0), []
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(2, 9))) for _ in range(2000)]
    for i in range(count):
        seconds = float(np.clip(rng.gamma(4.0, 3.0), 1, 28)) if not tiny else 1.0
        audio = (0.1 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)
        soundfile.write(folder / f"{i}.wav", audio, RATE)
        text = " ".join(rng.choice(words, max(1, round(2.6 * seconds))))
        lines.append({"id": str(i), "audio_path": f"{i}.wav", "text": text, "language": "en", "duration": seconds})
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder / "train.jsonl"


def measure(model: str, how: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One case, in this process."""
    from stentor.commands.train import train
    from stentor.config.schema import Config

    config = Config.model_validate(
        {
            "task": {"type": "transcribe"},
            "model": section(model, how, args.tiny, folder),
            "data": {
                "train": [{"type": "jsonl", "path": str(folder / "data" / "train.jsonl")}],
                "max_items": args.items,
                "batch_tokens": 10**6,
                "workers": args.workers,
                "prefetch": 4,
            },
            "optim": {"type": "adamw", "lr": 1e-5},
            "schedule": {"type": "constant", "warmup_steps": 0},
            "train": {
                "steps": args.steps,
                "log_every": args.steps // 2,
                "device": args.device,
                "precision": "bf16" if args.device == "cuda" else "fp32",
            },
        }
    )
    timed = Timed(type="timed")
    config.callbacks = [timed]
    with tempfile.TemporaryDirectory() as run:
        try:
            train([config], Path(run) / "run", {})
        except Measured:
            row = timed._row
        except torch.cuda.OutOfMemoryError:
            return {"failed": "out of memory"}
    keys = ("tokens_per_second", "audio_seconds_per_second", "padding", "data_wait", "memory_gb", "mfu")
    return {**timed._parameters, **{key: row.get(key) for key in keys}}


def case(model: str, how: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One case; of real size in a process of its own, so that it finds the GPU's memory empty."""
    if args.tiny:
        with contextlib.redirect_stdout(io.StringIO()):
            return measure(model, how, folder, args)
    command = [
        sys.executable,
        __file__,
        "--case",
        model,
        how,
        str(folder),
        "--items",
        str(args.items),
        "--steps",
        str(args.steps),
        "--workers",
        str(args.workers),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=["voxtral", "whisper"], default=["voxtral", "whisper"])
    parser.add_argument("--how", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    parser.add_argument("--items", type=int, default=8, help="Clips in a batch.")
    parser.add_argument("--steps", type=int, default=20, help="Optimizer steps; the first half is not measured.")
    parser.add_argument("--workers", type=int, default=4, help="Loader workers.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="Tiny models, to see that the script runs.")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA GPU here: run this on a machine with one, or with --tiny --device cpu.")
    if args.device == "cpu" and not args.tiny:
        raise SystemExit("Models of real size are for a GPU: give --tiny as well to run on the CPU.")
    if args.steps < 2 or args.steps % 2:
        raise SystemExit("--steps must be even: the second half is measured.")
    if args.case:
        print(json.dumps(measure(args.case[0], args.case[1], Path(args.case[2]), args)))
        return
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {args.items} clips in a batch, {args.steps} steps\n")
    heads = ("parameters", "trained", "tokens/s", "audio s/s", "waiting", "memory", "MFU")
    print(" " * 16 + "".join(f"{head:>{width}}" for head, width in zip(heads, WIDTHS)))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        records(Path(scratch) / "data", args.items * 8, args.tiny)
        for model in args.models:
            for how in args.how:
                row = case(model, how, Path(scratch), args)
                rows.append({"model": model, "how": how, **row})
                print(f"{model + ', ' + how:16}{told(row)}", flush=True)
    if not args.tiny:
        write("gpu_finetune", rows, gpu=name, items=args.items, steps=args.steps, workers=args.workers)
    if all("failed" in row for row in rows):
        raise SystemExit(1)


def told(row: dict[str, Any]) -> str:
    """A line of the table."""
    if "failed" in row:
        return f"  failed: {row['failed']}"
    cells = (
        f"{row['parameters'] / 1e6:,.3f} M",
        f"{row['trained'] / 1e6:,.3f} M",
        f"{row['tokens_per_second']:,.0f}",
        f"{row['audio_seconds_per_second']:,.0f}",
        f"{row['data_wait']:.1%}",
        f"{row['memory_gb']:.1f} GB" if row["memory_gb"] else "-",
        f"{row['mfu']:.1%}" if row["mfu"] else "-",
    )
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS))


if __name__ == "__main__":
    main()
