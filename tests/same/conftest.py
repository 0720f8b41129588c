import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models

import tiny_seq2seq

from tiny_configs import QUIET_WAVE, WHISPER

MODELS = {
    "whisper": {
        "type": "seq2seq",
        "config": {**WHISPER, "encoder_layers": 2, "dropout": 0.0, "init_std": 0.1},
        "token_rate": 2.0,
    },
    **{
        kind: {"type": "seq2seq", "config": config, "token_rate": 2.0}
        for kind, config in tiny_seq2seq.CONFIGS.items()
        if kind != "whisper"
    },
    "voxtral": {"type": "audio_llm", "token_rate": 2.0},
    "qwen3_asr": {"type": "audio_llm", "token_rate": 2.0},
    "ctc": {"type": "ctc", "config": QUIET_WAVE, "alphabet": "transcripts"},
    "transducer": {
        "type": "transducer",
        "encoder": {"config": {"model_type": "whisper", **WHISPER, "encoder_layers": 2, "dropout": 0.0}},
        "predictor": {"hidden": 16},
    },
    "transformer": {
        "type": "transformer",
        "kind": "encoder_decoder",
        "features": {"num_mel_bins": 20, "stack": 4, "subsample": 4},
        "shared": {"d_model": 32, "layers": 2, "heads": 2, "dropout": 0.0},
    },
}
ADAPTERS = {"rank": 2, "alpha": 4, "dropout": 0.0}
HALF = {"lora": {**ADAPTERS, "targets": ["model.decoder.*.q_proj"]}, "freeze": ["model.encoder.*"]}
LORA = {
    **dict.fromkeys(tiny_seq2seq.CONFIGS, HALF),
    "voxtral": {
        "lora": {**ADAPTERS, "targets": ["language_model.*.q_proj"]},
        "freeze": ["audio_tower.*"],
        "dtype": "bfloat16",
    },
    "qwen3_asr": {"lora": {**ADAPTERS, "targets": ["language_model.*.q_proj"]}, "freeze": ["audio_tower.*"]},
    "ctc": {"lora": {**ADAPTERS, "targets": ["*.q_proj"]}, "freeze": ["*.feature_extractor.*"]},
    "transducer": {"lora": {**ADAPTERS, "targets": ["encoder.*.q_proj"]}, "freeze": ["predictor.*"]},
}
LOSSES = {"ctc": {"ctc": "ctc"}, "transducer": {"rnnt": "rnnt"}}
"""Of the families that have others than the cross entropy of the text."""


@pytest.fixture(scope="session")
def real_family(tmp_path_factory, corpus):
    """Writes the config of a run of a tiny model of a real family (all 16 records in each step, in four batches) and
    answers its path; `lora` with adapters beside a frozen part. Run folders are in its `runs`."""
    import tiny_qwen3_asr
    import tiny_voxtral

    folder = tmp_path_factory.mktemp("families")
    for part, every in (("train", 1), ("dev", 1), ("train", 3), ("dev", 0)):
        records = [json.loads(line) for line in (corpus / f"{part}.jsonl").read_text().splitlines()]
        for i, record in enumerate(records):
            record["audio_path"] = str(corpus / record["audio_path"])
            if every and i % every == 0:
                record["language"] = "en"
        (folder / f"{part}-{every}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")

    def write(name: str, family: str, lora: bool = False, **model: object) -> Path:
        section = MODELS[family] | (LORA[family] if lora else {}) | model
        if family == "voxtral":
            section |= {
                "config": tiny_voxtral.CONFIG,
                "tokenizer": str(tiny_voxtral.write_tokenizer(folder / "tekken")),
            }
        if family == "qwen3_asr":
            section |= {
                "config": tiny_qwen3_asr.CONFIG,
                "tokenizer": str(tiny_qwen3_asr.write_processor(folder / "qwen")),
            }
        # A third of the languages is known: on some processes all of a batch, on others none. Or all, where needed.
        train, dev = ("train-1", "dev-1") if family == "cohere_asr" else ("train-3", "dev-0")
        config = {
            "name": name,
            "output": str(folder / "runs"),
            "task": {"type": "transcribe", "normalizer": "none"},
            "model": section,
            "data": {
                "train": [{"type": "jsonl", "path": str(folder / f"{train}.jsonl")}],
                "eval": {"dev": {"type": "jsonl", "path": str(folder / f"{dev}.jsonl"), "limit": 2}},
                "batch_tokens": 100_000,
                "max_items": 4,
                "buckets": 1,
                "workers": 0,
            },
            "losses": LOSSES.get(family, {"text": "cross_entropy"}),
            "optim": {"type": "adamw", "lr": 1e-3, "eps": 1e-4},
            "schedule": {"type": "constant", "warmup_steps": 0},
            "train": {
                "steps": 3,
                "log_every": 1,
                "eval_every": 100,
                "save_every": 100,
                "dry_run": False,
                "use": "last",
                "accumulate": 2,
                "device": "cpu",
            },
        }
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    write.runs = folder / "runs"
    return write


@pytest.fixture(scope="session")
def same_run():
    """Asserts that two run folders hold the same losses, norms, rates, weights, scores and numbers of parameters."""
    import torch
    from safetensors.torch import load_file

    def numbers(folder: Path) -> list[float]:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        values = [row[k] for row in rows if "train/loss" in row for k in ("step", "train/loss", "grad_norm", "lr")]
        return [-1.0 if value is None else value for value in values]  # of a skipped step

    def answers(folder: Path) -> list[str]:
        lines = (folder / "predictions" / "dev.jsonl").read_text().splitlines()
        return [json.loads(line)["output"]["text"] for line in lines]

    def compare(one: Path, other: Path, rel: float = 1e-5, atol: float = 1e-6) -> None:
        assert numbers(other) == pytest.approx(numbers(one), rel=rel, abs=rel)
        files = [p.name for p in (one / "export").glob("*.safetensors")]
        assert files and files == [p.name for p in (other / "export").glob("*.safetensors")]
        for file in files:
            a, b = load_file(one / "export" / file), load_file(other / "export" / file)
            assert a.keys() == b.keys()
            for name, tensor in a.items():
                assert tensor.dtype == b[name].dtype, name
                ulp = 2**-7 if tensor.dtype == torch.bfloat16 else 0.0  # adapters were added to weights kept in bf16
                torch.testing.assert_close(b[name], tensor, rtol=ulp, atol=atol, msg=f"{file}: {name}")
        a, b = (json.loads((f / "results.json").read_text()) for f in (one, other))
        assert a["parameters"] == b["parameters"] and a["parameters"]["trained"] > 0
        for metric in ("wer", "cer"):
            assert a["eval"]["dev"][metric] == b["eval"]["dev"][metric]
        ppl = [r["eval"]["dev"].get("perplexity", {"value": 1.0})["value"] for r in (a, b)]
        assert ppl[1] == pytest.approx(ppl[0], rel=20 * rel)
        assert answers(one) == answers(other)

    return compare
