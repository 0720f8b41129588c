"""The GPU benchmark runs: the same code with tiny models on the CPU, since tests have no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # it makes a model for each case

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_finetune.py"


def run(*options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, SCRIPT, *options], env=environment, capture_output=True, text=True)


def test_each_case_is_measured():
    done = run("--tiny", "--device", "cpu", "--steps", "2", "--items", "2", "--workers", "0")
    assert done.returncode == 0, done.stderr[-2000:]
    table = [line for line in done.stdout.splitlines() if line.startswith(("voxtral, ", "whisper, "))]
    assert [line[:13].strip() for line in table] == ["voxtral, lora", "voxtral, full", "whisper, lora", "whisper, full"]
    for line in table:
        parameters, _, trained, _, tokens = line[16:].split()[:5]
        assert 0 < float(trained) <= float(parameters) and float(tokens.replace(",", "")) > 0, line


def test_it_says_what_it_needs():
    done = run("--device", "cpu")
    assert done.returncode == 1 and "give --tiny as well to run on the CPU" in done.stderr
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = run()
    assert done.returncode == 1 and done.stderr.strip().startswith("There is no CUDA GPU here")
    assert "Traceback" not in done.stderr
