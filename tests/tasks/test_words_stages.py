"""Transcription, then words, from one command: what the second stage leaves alone, and going on in either."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import stentor
from stentor.cli import main
from stentor.engine.trainer import Trainer

WORDS = (
    "{task: {type: words, normalizer: none}, losses: null, callbacks: [{type: calibrate, least: 1}], model: {aligner: "
    "{width: 16, heads: 2}, freeze: ['encoder.*', 'projector.*', 'llm.*', 'ctc_head.*']}}"
)
STAGES = f"stages=[{{train: {{steps: 4}}}}, {WORDS}]"


@pytest.fixture(scope="module")
def train(tiny_text, corpus, tmp_path_factory):
    """Trains both stages in this process; answers the exit code and the run's folder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("stages")
    config_path = folder / "tiny.yaml"
    config_path.write_text(tiny_text.format(folder=corpus, runs=folder / "runs", dropout=0.0))

    def run(name: str) -> tuple[int, Path]:
        return main(["train", str(config_path), STAGES, f"name={name}"]), folder / "runs" / name

    return run


@pytest.fixture(scope="module")
def straight(train):
    code, folder = train("straight")
    assert code == 0
    return folder


def test_words_after_transcription(straight, train, tmp_path, capsys):
    first = straight / "stages" / "1"
    before, after = (load_file(f / "export" / "model.safetensors") for f in (first, straight))
    assert all(before[name].equal(after[name]) for name in before), "what is frozen stays as it was"
    assert {name.partition(".")[0] for name in set(after) - set(before)} == {"aligner"}
    one, two = (json.loads((f / "results.json").read_text())["eval"]["dev"] for f in (first, straight))
    assert one["wer"] == two["wer"] and "word_time_mean_ms" in two and "word_time_mean_ms" not in one
    spoken = [
        [json.loads(line)["output"]["text"] for line in (f / "predictions" / "dev.jsonl").open()]
        for f in (first, straight)
    ]
    assert spoken[0] == spoken[1]
    fitted = stentor.load(straight).bundle.model.aligner.calibration.tolist()
    assert fitted == after["aligner.calibration"].tolist()
    answers = [json.loads(line)["output"] for line in (straight / "predictions" / "dev.jsonl").open()]
    assert any(o["words"] for o in answers) == (fitted != [1.0, 0.0, 0.0])

    copied, merged = tmp_path / "copied", tmp_path / "whole"
    assert main(["export", str(straight), "--to", str(copied)]) == 0
    assert main(["export", str(straight), "--merge", "--to", str(merged)]) == 0
    data = json.loads((straight / "export" / "training_config.json").read_text())["data"]["eval"]["dev"]["path"]
    results = []
    for number, model in enumerate((straight, copied, merged)):
        out = tmp_path / f"{number}.json"
        assert main(["evaluate", str(model), "--data", data, "--task", "words", "--json", str(out)]) == 0
        results.append(json.loads(out.read_text())["eval"])
    assert results[0] == results[1] == results[2]
    assert results[0]["wer"]["value"] == two["wer"]["value"]
    assert results[0]["word_time_mean_ms"] == two["word_time_mean_ms"]

    capsys.readouterr()
    assert train("straight")[0] == 0, "a finished run stays finished"
    assert main(["evaluate", str(first), "--data", data, "--task", "words"]) == 2
    assert "no alignment module" in capsys.readouterr().err


@pytest.mark.parametrize("stage, step", [(1, 2), (2, 3)])
@pytest.mark.long
def test_cut_off_and_gone_on_with(straight, train, monkeypatch, stage, step):
    real = Trainer._train_step

    def stopping(self, micro):
        if self.step == step and (self.config.task.type == "words") == (stage == 2):
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, micro)

    monkeypatch.setattr(Trainer, "_train_step", stopping)
    code, folder = train(f"stopped-{stage}")
    assert code == 75
    assert (folder / "stages" / "1" / "results.json").exists() == (stage == 2)
    monkeypatch.setattr(Trainer, "_train_step", real)
    code, folder = train(f"stopped-{stage}")
    assert code == 0
    assert "Resuming from step" in (folder / "log.txt").read_text()
    one, two = (load_file(f / "export" / "model.safetensors") for f in (straight, folder))
    assert set(one) == set(two) and all(one[name].equal(two[name]) for name in one)
