"""Makes what this folder keeps of commit 1f502d86: exports, run folders, their answers, options and config keys.

    git worktree add ../before 1f502d86
    cd ../before/tests && PYTHONPATH=../src:.:models:audio OMP_NUM_THREADS=1 python ../../here/tests/frozen/make.py

`make.py NAME ...` makes only the exports and runs of these names; `options` and `keys` are names too. Everything is
trained through the command line for a few steps, from tiny configs of that commit's own tests. tests/frozen/test_*.py
load and resume it with today's code.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frozen_answers
import numpy as np
import tiny_audio_llms
import tiny_omnivoice
import tiny_seq2seq
import tiny_transducers
import tiny_tts
import torch

import tiny_configs
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.cli import main

FOLDER = Path(__file__).parent
CLIPS = (
    ("one", "one two three", "en-us"),
    ("two", "nine eight", "en+f3"),
    ("three", "zero zero seven", "en-us"),
    ("four", "six four", "en+f3"),
)
LORA = {"rank": 2, "alpha": 4, "dropout": 0.0}
QUIET = dict.fromkeys(("dropout", "dropout_positions", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
PARAKEET = {
    "model_type": "parakeet_encoder",
    "num_mel_bins": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "subsampling_factor": 4,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 5,
    "initializer_range": 0.1,
    **QUIET,
}
STREAMING = {"chunk": [0.16, 0.32], "reach": [0.64, 1.28], "offline_ratio": 0.0}
SPEECH_LLM = {
    "type": "speech_llm",
    "encoder": {
        "config": {
            "model_type": "whisper",
            "num_mel_bins": 40,
            "d_model": 16,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "max_source_positions": 500,
            "init_std": 0.2,
        }
    },
    "projector": {"type": "mlp", "rate": 12.5},
    "llm": {
        "config": {
            "model_type": "qwen2",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
        }
    },
    "tokenizer": {"type": "characters"},
    "prompt": {"instruction": None, "language": False, "context": False},
}
TRANSCRIBE = {"type": "transcribe", "normalizer": "none"}
TRANSFORMER = {"type": "transformer", "features": {"num_mel_bins": 40, "stack": 4, "subsample": 4}}
SHARED = {"d_model": 16, "layers": 2, "heads": 2, "dropout": 0.0}
NARROW = {"hidden_size": 16, "intermediate_size": 32}
TURNS = {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 10.0}


def audio_llm(kind: str) -> Callable[[], dict[str, Any]]:
    """The section of an untrained audio language model, whose tokenizer is written when it is asked for."""

    def section() -> dict[str, Any]:
        tiny = tiny_audio_llms.TINY[kind]
        return {**TURNS, "config": tiny.config, "tokenizer": str(tiny.write(Path("tokenizer")))}

    return section


def pretrained(kind: str) -> dict[str, Any]:
    config = tiny_transducers.CONFIGS[kind]
    encoder = {**config["encoder_config"], **NARROW, "subsampling_conv_channels": 4}
    narrow = {**config, "encoder_config": encoder, "decoder_hidden_size": 16}
    return {"type": "transducer", "config": {"model_type": kind, **narrow}}


def csm() -> dict[str, Any]:
    codec = {**tiny_tts.MIMI, "num_filters": 2, "hidden_size": 16, "upsample_groups": 16}
    return {"type": "csm", "from": str(tiny_tts.write_csm(Path("base"), {**tiny_tts.CSM, "codec_config": codec}))}


EXPORTS: dict[str, dict[str, Any]] = {
    "speech_llm": {
        "steps": 100,
        "model": SPEECH_LLM | {"ctc": {"units": "characters"}},
        "losses": {"text": "cross_entropy", "ctc": {"type": "ctc", "weight": 0.5}},
    },
    "speech_llm_delayed": {
        "steps": 150,
        "model": {
            **{key: value for key, value in SPEECH_LLM.items() if key != "prompt"},
            "encoder": {"config": PARAKEET, "streaming": STREAMING},
            "projector": {"type": "mlp"},
            "tokenizer": {"type": "bpe", "size": 270},
            "stream": {"delay": [0.16, 0.8], "reach": 1.6},
        },
    },
    "speech_llm_words": {
        "steps": 100,
        "task": "words",
        "model": {**SPEECH_LLM, "aligner": {"kind": "attention", "width": 16, "heads": 2}},
    },
    "ctc": {
        "steps": 60,
        "model": {"type": "ctc", "config": {**tiny_configs.QUIET_WAVE, "initializer_range": 0.2}},
        "losses": {"ctc": "ctc"},
    },
    "ctc_streaming": {
        "steps": 150,
        "model": {
            "type": "ctc",
            "config": {"model_type": "parakeet_ctc", "encoder_config": PARAKEET},
            "streaming": STREAMING,
        },
        "losses": {"ctc": "ctc"},
    },
    "whisper": {"steps": 150, "model": {"type": "seq2seq", "config": {**tiny_configs.WHISPER, "d_model": 16}}},
    "moonshine": {"steps": 80, "model": {"type": "seq2seq", "config": {**tiny_seq2seq.CONFIGS["moonshine"], **NARROW}}},
    "cohere_asr": {
        "steps": 120,
        "model": {"type": "seq2seq", "config": {**tiny_seq2seq.CONFIGS["cohere_asr"], **NARROW}},
    },
    "glmasr": {"model": audio_llm("glmasr")},
    "glmasr_lora": {"model": {**TURNS, "from": "exports/glmasr/export", "lora": LORA}},
    "glmasr_8bit": {"model": {**TURNS, "from": "exports/glmasr/export", "lora": LORA, "quantize": "8bit"}},
    "qwen3_asr": {"model": audio_llm("qwen3_asr")},
    "transducer": {
        "steps": 250,
        "model": {
            "type": "transducer",
            "encoder": {"config": PARAKEET},
            "predictor": {"hidden": 16},
            "ctc": {},
            "times": True,
        },
        "losses": {
            "rnnt": "rnnt",
            "ctc": {"type": "ctc", "weight": 0.3},
            "times": {"type": "smooth_l1", "sigmoid": False, "weight": 0.1},
        },
    },
    "parakeet_tdt": {"steps": 120, "model": lambda: pretrained("parakeet_tdt"), "losses": {"tdt": "tdt"}},
    "nemotron_streaming": {
        "steps": 250,
        "model": lambda: pretrained("nemotron_asr_streaming"),
        "losses": {"rnnt": "rnnt"},
    },
    "encoder": {"steps": 80, "model": {**TRANSFORMER, "kind": "encoder", "shared": SHARED}, "losses": {"ctc": "ctc"}},
    "encoder_decoder": {
        "steps": 100,
        "model": {**TRANSFORMER, "kind": "encoder_decoder", "shared": SHARED},
        "losses": {"text": "cross_entropy", "ctc": {"type": "ctc", "weight": 0.3}},
    },
    "decoder": {
        "task": "language",
        "model": {"type": "transformer", "kind": "decoder", "shared": {**SHARED, "positions": "sinusoidal"}},
    },
    "diarize": {
        "task": {"type": "diarize", "labels": {"type": "speaker", "speakers": 2}, "chunk": 4},
        "model": {
            "type": "transformer",
            "features": {"num_mel_bins": 40, "stack": 5, "subsample": 5},
            "shared": {**SHARED, "attention": "linear"},
        },
        "losses": {"speakers": "pit_bce"},
    },
    "omnivoice": {
        "task": {"type": "speak", "generation": {"steps": 4}},
        "model": {
            "type": "omnivoice",
            "llm": {"config": {**tiny_omnivoice.LLMS["qwen3"], **NARROW, "initializer_range": 0.2}},
            "text": {"type": "characters"},
            "codec": {"type": "mel_rvq", "codebooks": 3, "entries": 16, "rounds": 2},
        },
    },
    "csm": {"task": {"type": "speak", "drop_cond_ratio": 0.0}, "model": csm},
}
"""What is not given here is in `run_config`; the model may be a function that writes files beside it."""

STREAMS = ("speech_llm_delayed", "ctc_streaming", "nemotron_streaming", "transducer")
BEAMS = ("speech_llm", "whisper", "moonshine", "qwen3_asr", "encoder_decoder")
TOLD = ("cohere_asr", "whisper")
"""Those that are told the language."""

RUNS: dict[str, dict[str, Any]] = {
    "speech_llm": EXPORTS["speech_llm"],
    "glmasr_lora": {"model": {**TURNS, "from": "exports/glmasr/export", "lora": {**LORA, "dropout": 0.1}}},
    "omnivoice": EXPORTS["omnivoice"],
}
"""Runs that are stopped after two steps of four."""


LEFT_OUT = ("report.html", "results.json", "predictions", "before", "samples", "log.txt")
"""Of a run folder: what is written again. The export at its top is as well; those of checkpoints are not."""


def data() -> None:
    """Write the clips of the built-in voice."""
    folder = FOLDER / "data"
    folder.mkdir(exist_ok=True)
    records, texts = [], []
    for name, text, voice in CLIPS:
        speech = say(text, voice=voice, speed=190, pitch=50)
        write(folder / f"{name}.flac", speech.audio, 16000)
        seconds = len(speech.audio) / 16000
        middle = round(seconds / 2, 2)
        turns = [{"speaker": "a", "start": 0.05, "end": middle}, {"speaker": "b", "start": middle, "end": seconds}]
        record = {"id": name, "audio_path": f"{name}.flac", "text": text, "language": "en", "words": speech.words}
        records.append({**record, "segments": turns})
        texts.append(text)
    (folder / "clips.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")


def run_config(name: str, case: dict[str, Any]) -> dict[str, Any]:
    model = case["model"]() if callable(case["model"]) else case["model"]
    task = case.get("task", TRANSCRIBE)
    source = {"type": "jsonl", "path": "data/clips.jsonl"}
    if task == "language":
        source = {"type": "text", "path": "data/texts.txt"}
    config = {
        "name": name,
        "output": "runs",
        "task": task,
        "model": model,
        "data": {"train": [source], "eval": {"same": source}, "batch_tokens": 2000, "max_items": 2, "workers": 0},
        "optim": {"type": "adamw", "lr": 5e-3},
        "schedule": {"type": "constant", "warmup_steps": 0},
        "train": {
            "steps": case.get("steps", 20),
            "log_every": 1,
            "eval_every": 100,
            "save_every": 100,
            "device": "cpu",
            "use": "last",
        },
    }
    return config | ({"losses": case["losses"]} if "losses" in case else {})


@contextlib.contextmanager
def place():
    """A new current folder that holds the data and exports under the names that they have here."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FOLDER / "data", Path(folder, "data"))
        if (FOLDER / "exports").is_dir():
            shutil.copytree(FOLDER / "exports", Path(folder, "exports"))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(FOLDER)


def stentor(*arguments: object) -> None:
    code = main([str(a) for a in arguments])
    assert not code, f"stentor {' '.join(map(str, arguments))}: exit {code}"


def make_export(name: str) -> None:
    with place():
        torch.manual_seed(0)
        np.random.seed(0)
        Path("run.json").write_text(json.dumps(run_config(name, EXPORTS[name])))
        stentor("train", "run.json")
        target = FOLDER / "exports" / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(Path("runs", name, "export"), target / "export", ignore=shutil.ignore_patterns("README.md"))
    asked = {"streams": name in STREAMS, "beams": name in BEAMS, "language": "en" if name in TOLD else None}
    answers = frozen_answers.of(f"exports/{name}/export", **asked)
    expected = {"machine": frozen_answers.machine(), "asked": asked, "answers": answers}
    frozen_answers.dump(target / "expected.json", expected)


def make_run(name: str) -> None:
    with place():
        config = run_config("run", RUNS[name])
        config["train"] |= {"steps": 4, "save_every": 2}
        Path("run.json").write_text(json.dumps(config))
        stentor("train", "run.json", "name=straight")
        stentor("train", "run.json", "train.steps=2")
        target = FOLDER / "runs" / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree("runs/run", target / "run", ignore=shutil.ignore_patterns(*LEFT_OUT))
        shutil.rmtree(target / "run" / "export")
        for file in target.rglob("*.json*"):
            file.write_text(file.read_text().replace(f"{os.getcwd()}/", ""))
        shutil.copy("run.json", target / "run.json")
        answers = frozen_answers.of_run(Path("runs", "straight"), after=2)
        frozen_answers.dump(target / "expected.json", {"machine": frozen_answers.machine(), "answers": answers})


def make(names: list[str]) -> None:
    torch.set_num_threads(1)
    if not (FOLDER / "data").is_dir():
        data()
    everything = {"options": make_options, "keys": make_keys}
    everything |= {f"exports/{name}": lambda n=name: make_export(n) for name in EXPORTS}
    everything |= {f"runs/{name}": lambda n=name: make_run(n) for name in RUNS}
    for name in names or everything:
        everything[name]()


def make_options() -> None:
    frozen_answers.dump(FOLDER / "options.json", frozen_answers.options())


def make_keys() -> None:
    frozen_answers.dump(FOLDER / "keys.json", frozen_answers.grouped(frozen_answers.keys()))


if __name__ == "__main__":
    make(sys.argv[1:])
