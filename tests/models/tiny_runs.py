"""Runs of tiny pretrained families on four clips of the tiny corpus, through the command line."""

import json
from pathlib import Path

import tiny_frame_grid
import tiny_transducers
import tiny_voxtral
from tiny_audio_llms import TINY
from tiny_ctc import QUIET_MEL

from tiny_configs import WHISPER

# Large enough to learn four clips in seconds.
VOXTRAL = {
    "model_type": "voxtral",
    "audio_config": {**tiny_voxtral.CONFIG["audio_config"], "hidden_size": 32, "intermediate_size": 128},
    "text_config": {
        **tiny_voxtral.CONFIG["text_config"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_key_value_heads": 2,
    },
}
SECTIONS = {
    "whisper": {"type": "seq2seq"},
    "voxtral": {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 20.0},
    "qwen3_asr": {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 10.0},
    "voxtral_realtime": {"type": "audio_llm"},
    "parakeet_tdt": {"type": "transducer"},
    "parakeet_ctc": {"type": "ctc"},
}
CONFIGS = {
    "whisper": WHISPER,
    "voxtral": VOXTRAL,
    "qwen3_asr": TINY["qwen3_asr"].config,
    "voxtral_realtime": tiny_frame_grid.REALTIME,
    # What is learnt by heart is written at once, of a frame many tokens.
    "parakeet_tdt": {
        "model_type": "parakeet_tdt",
        **tiny_transducers.CONFIGS["parakeet_tdt"],
        "max_symbols_per_step": 10,
    },
    "parakeet_ctc": QUIET_MEL,
}
TOKENIZERS = {
    "voxtral": tiny_voxtral.write_tokenizer,
    "qwen3_asr": TINY["qwen3_asr"].write,
    "voxtral_realtime": tiny_frame_grid.write_tekken,
}


def from_scratch(family: str, folder: Path) -> dict:
    """The section `model:` of a model with untrained weights; what its tokenizer needs is written to `folder`."""
    tokenizer = {"tokenizer": str(TOKENIZERS[family](folder))} if family in TOKENIZERS else {}
    return {**SECTIONS[family], "config": CONFIGS[family], **tokenizer}


def write_run(
    folder: Path, name: str, model: dict, data: Path | dict, *, steps: int, lr: float, task: dict | None = None
) -> Path:
    """A run's config, of a manifest or another source; its run folder is `runs` / `name` beside it."""
    manifest = data if isinstance(data, dict) else {"type": "jsonl", "path": str(data)}
    config = {
        "name": name,
        "output": str(folder / "runs"),
        "task": task or {"type": "transcribe", "normalizer": "none"},
        "model": model,
        "data": {"train": [manifest], "eval": {"same": manifest}, "batch_tokens": 2000, "max_items": 2, "workers": 0},
        "optim": {"type": "adamw", "lr": lr, "weight_decay": 0.0},
        "schedule": {"type": "constant", "warmup_steps": 5},
        "train": {"steps": steps, "log_every": 1, "eval_every": 1000, "save_every": 1000, "device": "cpu"},
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def run(
    folder: Path, name: str, model: dict, data: Path | dict, *, steps: int, lr: float, task=None, **options
) -> Path:
    """Train through the command line; the run's folder."""
    from stentor.cli import main

    path = write_run(folder, name, model, data, steps=steps, lr=lr, task=task)
    code = main(["train", str(path), *(f"{k}={v}" for k, v in options.items())])
    assert not code, f"exit {code}"
    return folder / "runs" / name


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_records(path: Path, records: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path
