"""Runs of tiny pretrained families on four clips of the tiny corpus, through the command line."""

import json
from pathlib import Path

import tiny_frame_grid
import tiny_seq2seq
import tiny_transducers
import tiny_voxtral
from tiny_audio_llms import TINY
from tiny_ctc import QUIET_MEL

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
SEQ2SEQ = tuple(tiny_seq2seq.CONFIGS)
SECTIONS = {
    **{kind: {"type": "seq2seq"} for kind in SEQ2SEQ},
    "voxtral": {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 20.0},
    **{
        name: {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 10.0}
        for name in ("qwen3_asr", "glmasr", "granite_speech", "fun_asr_nano")
    },
    **{name: {"type": "audio_llm"} for name in ("voxtral_realtime", "kyutai_speech_to_text")},
    **{name: {"type": "transducer"} for name in ("parakeet_tdt", "parakeet_rnnt")},
    "parakeet_ctc": {"type": "ctc"},
}


def from_scratch(family: str, folder: Path) -> dict:
    """The section `model:` of a model with untrained weights; what its tokenizer needs is written to `folder`."""
    if family in SEQ2SEQ:
        origin = {"config": tiny_seq2seq.CONFIGS[family]}
    elif family == "parakeet_ctc":
        origin = {"config": QUIET_MEL}
    elif family in tiny_transducers.CONFIGS:
        # What is learnt by heart is written at once, of a frame many tokens.
        config = {"model_type": family, **tiny_transducers.CONFIGS[family], "max_symbols_per_step": 10}
        origin = {"config": config}
    elif family == "voxtral_realtime":
        origin = {"config": tiny_frame_grid.REALTIME, "tokenizer": str(tiny_frame_grid.write_tekken(folder))}
    elif family == "kyutai_speech_to_text":
        origin = {"from": str(tiny_frame_grid.write_kyutai(folder))}
    elif family == "voxtral":
        origin = {"config": VOXTRAL, "tokenizer": str(tiny_voxtral.write_tokenizer(folder))}
    else:
        origin = {"config": TINY[family].config, "tokenizer": str(TINY[family].write(folder))}
    return {**SECTIONS[family], **origin}


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
