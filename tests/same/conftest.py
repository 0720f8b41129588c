import functools
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models

import tiny_frame_grid
import tiny_seq2seq
import tiny_transducers
import tiny_turns
from tiny_audio_llms import TINY

from run_files import write_run_file
from tiny_configs import QUIET_WAVE, WHISPER

MOSS = "moss_transcribe_diarize"
WRITERS = {
    **{name: (TINY[name].config, TINY[name].write) for name in ("voxtral", "qwen3_asr", "glmasr")},
    "voxtral_realtime": (tiny_frame_grid.REALTIME, tiny_frame_grid.write_tekken),
    MOSS: ({"model_type": MOSS, **tiny_turns.CONFIGS[MOSS]}, functools.partial(tiny_turns.write_processor, MOSS)),
}
"""Of the audio language models: their config and what writes their tokenizer."""
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
    **{name: {"type": "audio_llm", "token_rate": 2.0} for name in WRITERS},
    "ctc": {"type": "ctc", "config": QUIET_WAVE, "alphabet": "transcripts"},
    "transducer": {
        "type": "transducer",
        "encoder": {"config": {"model_type": "whisper", **WHISPER, "encoder_layers": 2, "dropout": 0.0}},
        "predictor": {"hidden": 16},
    },
    "parakeet_tdt": {
        "type": "transducer",
        "config": {"model_type": "parakeet_tdt", **tiny_transducers.CONFIGS["parakeet_tdt"]},
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
SPEECH = {"lora": {**ADAPTERS, "targets": ["language_model.*.q_proj"]}, "freeze": ["audio_tower.*"]}
LORA = {
    **dict.fromkeys(tiny_seq2seq.CONFIGS, HALF),
    **dict.fromkeys(WRITERS, SPEECH),
    "voxtral": {**SPEECH, "dtype": "bfloat16"},
    "ctc": {"lora": {**ADAPTERS, "targets": ["*.q_proj"]}, "freeze": ["*.feature_extractor.*"]},
    "transducer": {"lora": {**ADAPTERS, "targets": ["encoder.*.q_proj"]}, "freeze": ["predictor.*"]},
    "parakeet_tdt": {"lora": {**ADAPTERS, "targets": ["encoder.*.q_proj"]}, "freeze": ["decoder.*"]},
}
LOSSES = {"ctc": {"ctc": "ctc"}, "transducer": {"rnnt": "rnnt"}, "parakeet_tdt": {"tdt": "tdt"}}
"""Of the families that have others than the cross entropy of the text."""


MANIFESTS = {"cohere_asr": ("train-1", "dev-1"), MOSS: ("train-turns", "dev-turns")}


def alternating(words: list[dict]) -> list[dict]:
    """Segments of two speakers who say a word each in turn."""
    times = ({key: word[key] for key in ("start", "end")} for word in words)
    return [{"speaker": "ab"[i % 2], "text": w["word"], **t} for i, (w, t) in enumerate(zip(words, times))]


@pytest.fixture(scope="session")
def real_family(tmp_path_factory, corpus):
    """Writes the config of a run of a tiny model of a real family (all 16 records in each step, in four batches) and
    answers its path; `lora` with adapters beside a frozen part. Run folders are in its `runs`."""
    folder = tmp_path_factory.mktemp("families")
    for part, every in (("train", 1), ("dev", 1), ("train", 3), ("dev", 0)):
        records = [json.loads(line) for line in (corpus / f"{part}.jsonl").read_text().splitlines()]
        for i, record in enumerate(records):
            record["audio_path"] = str(corpus / record["audio_path"])
            if every and i % every == 0:
                record["language"] = "en"
        (folder / f"{part}-{every}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
        turns = [{"audio_path": r["audio_path"], "segments": alternating(r["words"])} for r in records]
        (folder / f"{part}-turns.jsonl").write_text("\n".join(map(json.dumps, turns)) + "\n")

    def write(name: str, family: str, lora: bool = False, **model: object) -> Path:
        section = MODELS[family] | (LORA[family] if lora else {}) | model
        if family in WRITERS:
            config, write_tokenizer = WRITERS[family]
            section |= {"config": config, "tokenizer": str(write_tokenizer(folder / family))}
        # A third of the languages is known: on some processes all of a batch, on others none. Or all, where needed.
        train, dev = MANIFESTS.get(family, ("train-3", "dev-0"))
        return write_run_file(
            folder,
            name,
            folder / f"{train}.jsonl",
            folder / f"{dev}.jsonl",
            2,
            task={"type": "who_said_what" if family == MOSS else "transcribe", "normalizer": "none"},
            model=section,
            losses=LOSSES.get(family, {"text": "cross_entropy"}),
            data={"buckets": 1},
            optim={"eps": 1e-4},
            train={"steps": 3, "dry_run": False, "accumulate": 2},
        )

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
        for metric in ("wer", "cer", "cpwer"):
            assert a["eval"]["dev"].get(metric) == b["eval"]["dev"].get(metric)
        ppl = [r["eval"]["dev"].get("perplexity", {"value": 1.0})["value"] for r in (a, b)]
        assert ppl[1] == pytest.approx(ppl[0], rel=20 * rel)
        assert answers(one) == answers(other)

    return compare


@pytest.fixture
def trace(rows):
    """Everything in the metrics of a run that is not a measured time or memory: these columns of the training rows, and
    the evaluation rows, which have the key `scored`."""

    def read(folder: Path, kept: tuple[str, ...], scored: str) -> list[dict]:
        evaluations = [
            {k: v for k, v in row.items() if k == "step" or k.startswith("eval/")} for row in rows(folder, scored)
        ]
        return [{k: row[k] for k in kept} for row in rows(folder)] + evaluations

    return read
