"""GPU benchmarks run: the same code with tiny models on the CPU, since tests have no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # a model is made for each case

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, FOLDER, *words], env=environment, capture_output=True, text=True)


def results(folder, *words):
    """The result file of a tiny run."""
    done = run(*words, "--tiny", "--device", "cpu", "--steps", "2", "--workers", "0", "--results", folder / "rows.json")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return json.loads((folder / "rows.json").read_text())


def test_each_case_of_fine_tuning_is_measured(tmp_path):
    rows = results(tmp_path, "gpu_finetune", "--items", "2")["rows"]
    cases = [(row["model"], row["how"]) for row in rows]
    assert cases == [("voxtral", "lora"), ("voxtral", "full"), ("whisper", "lora"), ("whisper", "full")]
    for row in rows:
        assert 0 < row["trained"] <= row["parameters"] and row["tokens_per_second"] > 0, row


def test_each_case_of_speech_synthesis_is_measured(tmp_path):
    found = results(tmp_path, "gpu_speak", "--seconds", "1", "--samples", "40", "--batch-tokens", "1500")
    assert [row["case"] for row in found["rows"]] == ["flex", "sdpa", "arrival", "fp32-flex", "logits"]
    for row in found["rows"]:
        assert row["parameters"] > 0 and row["tokens_per_second"] > 0, row
    assert len(found["speaking"]) == 4 and all(row["real_time_factor"] > 0 for row in found["speaking"])


@pytest.mark.parametrize("name", ["gpu_finetune", "gpu_speak"])
def test_it_says_what_it_needs(name):
    done = run(name, "--device", "cpu")
    assert done.returncode == 1 and "give --tiny as well to run on the CPU" in done.stderr
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run(name)
    assert done.returncode == 1 and done.stderr.strip().startswith("There is no CUDA GPU here")
    assert "Traceback" not in done.stderr
