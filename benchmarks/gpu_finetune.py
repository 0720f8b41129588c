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
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune_voxtral import WORDS, write_tokenizer
from gpu_cases import check, device_name, heading, in_own_process, line, measure, parser
from results import write

RATE = 16000
VOXTRAL = {
    "model_type": "voxtral",
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
    "model_type": "whisper",
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
    "model_type": "voxtral",
    "audio_config": {**TINY, "num_mel_bins": 128},
    "text_config": {**TINY, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 8192},
}
TINY_WHISPER = {
    "model_type": "whisper",
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 128,
}
WIDTHS = {
    "parameters": 12,
    "trained": 12,
    "tokens_per_second": 10,
    "audio_seconds_per_second": 11,
    "data_wait": 9,
    "memory_gb": 11,
    "mfu": 8,
}
METRICS = ("tokens_per_second", "audio_seconds_per_second", "padding", "data_wait", "memory_gb", "mfu")
LORA = {"rank": 16, "alpha": 32, "dropout": 0.05}


def section(model: str, how: str, tiny: bool, folder: Path) -> dict[str, Any]:
    """The section `model:` of a case."""
    lora = LORA if how == "lora" else None
    if model == "whisper":
        return {"type": "seq2seq", "config": TINY_WHISPER if tiny else WHISPER, "lora": lora}
    tokenizer = folder / "tekken"
    if not tokenizer.exists():
        write_tokenizer(tokenizer, WORDS["small" if tiny else "real"])
    config = TINY_VOXTRAL if tiny else VOXTRAL
    return {
        "type": "audio_llm",
        "config": config,
        "tokenizer": str(tokenizer),
        "lora": lora,
        "freeze": ["audio_tower.*"],
        "gradient_checkpointing": True,
        "dtype": "bfloat16" if lora else "float32",
    }


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


def finetune(model: str, how: str, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """One case, in this process."""
    data = {
        "train": [{"type": "jsonl", "path": f"{folder}/data/train.jsonl"}],
        "max_items": args.items,
        "batch_tokens": 10**6,
    }
    sections = {"task": {"type": "transcribe"}, "model": section(model, how, args.tiny, Path(folder)), "data": data}
    with contextlib.redirect_stdout(io.StringIO()):
        return measure(sections, METRICS, args)


def main() -> None:
    options = parser(__doc__.splitlines()[0], steps=20, case_parts=3)
    options.add_argument("--models", nargs="+", choices=["voxtral", "whisper"], default=["voxtral", "whisper"])
    options.add_argument("--how", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    options.add_argument("--items", type=int, default=8, help="Clips in a batch.")
    args = options.parse_args()
    check(args)
    if args.case:
        print(json.dumps(finetune(*args.case, args)))
        return
    gpu = device_name(args)
    print(f"{gpu}, torch {torch.__version__}, {args.items} clips in a batch, {args.steps} steps\n")
    print(" " * 16 + heading(WIDTHS))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        records(Path(scratch) / "data", args.items * 8, args.tiny)
        for model in args.models:
            for how in args.how:
                case = (model, how, scratch)
                row = finetune(*case, args) if args.tiny else in_own_process(*case)
                rows.append({"model": model, "how": how, **row})
                print(f"{model + ', ' + how:16}{line(row, WIDTHS)}", flush=True)
    if not args.tiny:
        write("gpu_finetune", rows, gpu=gpu, items=args.items, steps=args.steps, workers=args.workers)
    if all("failed" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
