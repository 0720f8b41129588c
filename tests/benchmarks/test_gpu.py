"""GPU benchmarks run: the same code with tiny models on the CPU, since tests have no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # a model is made for each case

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(script, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, FOLDER / script, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_each_case_of_fine_tuning_is_measured():
    done = run("gpu_finetune.py", "--tiny", "--device", "cpu", "--steps", "2", "--items", "2", "--workers", "0")
    assert done.returncode == 0, done.stderr[-2000:]
    table = [line for line in done.stdout.splitlines() if line.startswith(("voxtral, ", "whisper, "))]
    assert [line[:13].strip() for line in table] == ["voxtral, lora", "voxtral, full", "whisper, lora", "whisper, full"]
    for line in table:
        parameters, _, trained, _, tokens = line[16:].split()[:5]
        assert 0 < float(trained) <= float(parameters) and float(tokens.replace(",", "")) > 0, line


def test_each_case_of_speech_synthesis_is_measured():
    small = ("--steps", "2", "--workers", "0", "--seconds", "1", "--samples", "40", "--batch-tokens", "1500")
    done = run("gpu_speak.py", "--tiny", "--device", "cpu", *small)
    assert done.returncode == 0, done.stderr[-2000:]
    table = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()}
    for name in ("flex", "sdpa", "arrival", "fp32-flex", "logits"):
        parameters, _, tokens = table[name][:3]
        assert float(parameters) > 0 and float(tokens.replace(",", "")) > 0, table[name]
    factors = [line for line in done.stdout.splitlines() if line.startswith("speaking 1 s")]
    assert len(factors) == 4 and all(float(line.rpartition(" ")[2]) > 0 for line in factors)


@pytest.mark.parametrize("script", ["gpu_finetune.py", "gpu_speak.py"])
def test_it_says_what_it_needs(script):
    done = run(script, "--device", "cpu")
    assert done.returncode == 1 and "give --tiny as well to run on the CPU" in done.stderr
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run(script)
    assert done.returncode == 1 and done.stderr.strip().startswith("There is no CUDA GPU here")
    assert "Traceback" not in done.stderr
