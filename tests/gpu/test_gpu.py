"""Training, resuming, scoring and speaking on a GPU give what the CPU gives; memory and synchronisation are as told."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from tiny_runs import from_scratch

import stentor
from run_files import write_run_file
from tiny_configs import QUIET_WAVE, WHISPER

STEPS = 20
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
SPEECH_LLM = {
    "type": "speech_llm",
    "encoder": {"config": {"model_type": "whisper", "max_source_positions": 1500, "dropout": 0.0, **WHISPER}},
    "projector": {"type": "mlp", "rate": 12.5},
    "llm": {"config": QWEN},
    "tokenizer": {"type": "characters"},
    "prompt": {"instruction": None, "language": False, "context": False},
}
LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
TRANSFORMER = {
    "type": "transformer",
    "features": {"num_mel_bins": 40, "stack": 4, "subsample": 4},
    "shared": {"d_model": 64, "layers": 2, "heads": 2, "dropout": 0.0},
}
OMNIVOICE = {
    "type": "omnivoice",
    "codec": {"type": "mel_rvq", "codebooks": 3, "entries": 24, "rounds": 3},
    "llm": {"config": {**QWEN, "model_type": "qwen3", "head_dim": 32}},
    "text": {"type": "characters"},
}
WORDS = {"task": {"type": "words", "normalizer": "none"}, "losses": {"text": "cross_entropy", "alignment": "alignment"}}
SPEAK = {"task": {"type": "speak", "samples": 0, "generation": {"steps": 2}}, "losses": None}
CASES: dict[str, dict] = {
    "speech_llm padded": {"model": SPEECH_LLM, "data": {"layout": "padded"}},
    "speech_llm packed, flex": {
        "model": SPEECH_LLM,
        "cuda": {"llm": {"config": QWEN, "attention": "flex"}},  # which is for CUDA alone
        "data": {"layout": "packed"},
    },
    "speech_llm words": {"model": {**SPEECH_LLM, "aligner": {"width": 32}}, **WORDS},
    "speech_llm lora": {"model": {**SPEECH_LLM, "lora": LORA}, "lr": 1e-2},
    "speech_llm compiled": {"model": SPEECH_LLM, "train": {"compile": True}},
    "whisper": {"model": "whisper"},
    "whisper lora": {"model": "whisper", "extra": {"lora": LORA}, "lr": 1e-2},
    "whisper 4 bit": {"model": "whisper", "extra": {"lora": LORA, "quantize": "4bit"}, "lr": 1e-2},
    "voxtral": {"model": "voxtral"},
    "qwen3_asr": {"model": "qwen3_asr"},
    "ctc": {"model": {"type": "ctc", "config": QUIET_WAVE, "alphabet": "transcripts"}, "losses": {"ctc": "ctc"}},
    "transformer encoder_decoder": {"model": {**TRANSFORMER, "kind": "encoder_decoder"}},
    "transformer diarize": {
        "model": {**TRANSFORMER, "features": {"stack": 1, "subsample": 10}},
        "task": {"type": "diarize", "labels": {"type": "speaker", "speakers": 3}, "chunk": 6},
        "losses": None,
    },
    "omnivoice packed, flex": {"model": {**OMNIVOICE, "attention": "flex"}, "data": {"layout": "packed"}, **SPEAK},
    "omnivoice padded": {"model": OMNIVOICE, "data": {"layout": "padded"}, **SPEAK},
}


class Runs:
    """Writes and trains runs of the cases, each in a folder of its own."""

    def __init__(self, folder: Path, corpus: Path, meetings: Path, device: str):
        self.folder, self.corpus, self.meetings, self.device = folder, corpus, meetings, device

    def train(self, name: str, case: str, device: str | None = None, **train) -> Path:
        """The run folder after training through the command line; `train` are keys of that section."""
        from stentor.cli import main

        code = main(["train", str(self.write(name, case, device, **train))])
        assert code == 0, f"{case}: exit {code}"
        return self.folder / "runs" / name

    def write(self, name: str, case: str, device: str | None = None, **train) -> Path:
        settings = CASES[case]
        model = settings["model"]
        if isinstance(model, str):
            model = from_scratch(model, self.folder) | settings.get("extra", {})
        data = self.meetings if settings.get("task", {}).get("type") == "diarize" else self.corpus
        device = device or self.device
        model = model | (settings.get("cuda", {}) if device == "cuda" else {})
        return write_run_file(
            self.folder,
            name,
            data / "train.jsonl",
            data / "dev.jsonl",
            2,
            task=settings.get("task", {"type": "transcribe", "normalizer": "none"}),
            model=model,
            data={"batch_tokens": 4000, **settings.get("data", {})},
            losses=settings.get("losses", {"text": "cross_entropy"}),
            optim={"lr": settings.get("lr", 3e-3), "weight_decay": 0.0},
            train={
                "steps": STEPS,
                "eval_every": 1000,
                "save_every": 1000,
                "device": device,
                "precision": "fp32" if device == "cpu" else "bf16",
                **settings.get("train", {}),
                **train,
            },
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory, corpus, meetings, device):
    return Runs(tmp_path_factory.mktemp("gpu"), corpus, meetings, device)


def losses_of(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("case", CASES)
def test_the_loss_falls_as_on_the_cpu(runs, case):
    """20 steps in bf16, beside float32 on the CPU, which computes with the same weights and the same batches."""
    if "4 bit" in case:
        pytest.importorskip("bitsandbytes", reason="4 bits need stentor[quantize]")
    if runs.device == "cpu" and CASES[case].get("train", {}).get("compile"):
        pytest.skip("compiling for the CPU takes minutes and says nothing about a GPU")
    name = case.replace(" ", "-").replace(",", "")
    mine = losses_of(runs.train(name, case))
    options = {"compile": False} if CASES[case].get("train", {}).get("compile") else {}
    expected = losses_of(runs.train(f"{name}-cpu", case, "cpu", **options))
    assert len(mine) == STEPS and sum(mine[-4:]) < sum(mine[:4]), mine
    assert mine[0] == pytest.approx(expected[0], rel=0.03)
    assert sum(mine[-4:]) == pytest.approx(sum(expected[-4:]), rel=0.1)


@pytest.mark.parametrize("case", ["speech_llm padded", "whisper", "omnivoice packed, flex"])
def test_resuming_is_exact(runs, case):
    from safetensors.torch import load_file

    name = case.split()[0] + "-resume"
    straight = runs.train(f"{name}-straight", case, steps=8)
    runs.train(name, case, steps=4)
    resumed = runs.train(name, case, steps=8)
    assert losses_of(resumed) == losses_of(straight)
    files = [sorted((run / "export").glob("*.safetensors")) for run in (straight, resumed)]
    assert [f.name for f in files[0]] == [f.name for f in files[1]]
    for a, b in zip(*files):
        tensors = load_file(b)
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in load_file(a).items())


def test_a_batch_that_does_not_fit_is_told_before_step_1(runs, device, capsys, monkeypatch):
    from stentor.cli import main

    path = runs.write("oom", "speech_llm padded")
    if device == "cuda":
        # As much as the process holds already, and a little: the largest batch cannot fit.
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 16e6) / total)
    else:
        from stentor.engine.backend import Backend

        def full(*_):
            raise torch.OutOfMemoryError("the CPU in the place of a GPU")

        monkeypatch.setattr(Backend, "trial", full)
    try:
        assert main(["train", str(path)]) == 2
    finally:
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
    error = capsys.readouterr().err
    assert "does not fit in memory" in error and "add to the command: `data.batch_tokens=" in error
    assert not (runs.folder / "runs" / "oom" / "metrics.jsonl").exists() or not losses_of(runs.folder / "runs" / "oom")


@pytest.mark.parametrize("case", ["speech_llm words", "whisper", "ctc"])
def test_text_and_word_times_are_those_of_the_cpu(runs, device, corpus, case):
    run = runs.train(f"{case.replace(' ', '-')}-texts", case, precision="fp32", steps=40)
    there, here = (stentor.load(run, where) for where in (device, "cpu"))
    for model in (there, here):
        model.task.checks.on = False
    options = {"words": True} if "words" in case else {}
    for i in range(4):
        mine, expected = (m.transcribe(corpus / f"dev{i}.wav", **options) for m in (there, here))
        assert mine.text == expected.text
        for a, b in zip(mine.words or [], expected.words or [], strict=True):
            assert a["word"] == b["word"]
            assert (a["start"], a["end"]) == pytest.approx((b["start"], b["end"]), abs=0.021)


def test_speech_is_that_of_the_cpu(runs, device):
    run = runs.train("omnivoice-speech", "omnivoice padded", precision="fp32")
    from stentor.data.seeding import rng

    codes = []
    for where in (device, "cpu"):
        bundle = stentor.load(run, where).bundle
        prompt = rng("gpu", 0).integers(0, 24, (3, 20)).astype("int16")
        utterance = bundle.processor.utterance("one two", frames=prompt.shape[1])
        options = {"seeds": [0], "steps": 4, "position_temperature": 0.0, "class_temperature": 0.0}
        codes.append(bundle.model.speak([utterance], **options)[0])
    assert codes[0].shape == codes[1].shape and (codes[0] == codes[1]).mean() > 0.95


def test_a_step_waits_for_the_device_once(runs, device, monkeypatch):
    """The host waits for the norm of the gradients, which decides whether the update is made, and where it logs."""
    from stentor.engine.trainer import Trainer

    if device != "cuda":
        pytest.skip("the CPU has nothing to wait for: torch.cuda.set_sync_debug_mode is about CUDA")
    step, waits = Trainer._train_step, []

    def watched(self, micro_batches):
        if self.step < 3:
            return step(self, micro_batches)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                totals = step(self, micro_batches)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append([f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)])
        return totals

    monkeypatch.setattr(Trainer, "_train_step", watched)
    for case in ("speech_llm padded", "speech_llm packed, flex", "omnivoice packed, flex"):
        waits.clear()
        runs.train(f"{case.replace(' ', '-').replace(',', '')}-waits", case, steps=8, log_every=8)
        assert len(waits) == 5
        assert all(len(places) <= 1 for places in waits), f"{case}: {waits[-1]}"
        assert all("backend.py" in place for places in waits for place in places), f"{case}: {waits[-1]}"


def test_compiled_layers_in_shards(runs, device, cli):
    """`train.compile` with `train.shard`, in a group of one process, as a launcher starts it."""
    if device == "cpu":
        pytest.skip("compiling for the CPU takes minutes; tests/engine/test_compiled_shards.py has it")
    path = runs.write("compiled-shards", "whisper", compile=True, shard=True, steps=4)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571"}
    cli("train", path, **ranks)
    assert "layers sharded" in (runs.folder / "runs" / "compiled-shards" / "log.txt").read_text()
