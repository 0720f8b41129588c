"""The GPU benchmark of speech synthesis runs: the same code with a tiny model on the CPU, since tests have no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it trains a model for each case

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_speak.py"


def run(*options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, SCRIPT, *options], env=environment, capture_output=True, text=True)


def test_each_case_is_measured():
    small = ("--steps", "2", "--workers", "0", "--seconds", "1", "--samples", "40", "--batch-tokens", "1500")
    done = run("--tiny", "--device", "cpu", *small)
    assert done.returncode == 0, done.stderr[-2000:]
    table = {line[:12].strip(): line[12:].split() for line in done.stdout.splitlines()}
    for name in ("flex", "sdpa", "arrival", "fp32-flex", "logits"):
        parameters, _, tokens = table[name][:3]
        assert float(parameters) > 0 and float(tokens.replace(",", "")) > 0, table[name]
    factors = [line for line in done.stdout.splitlines() if line.startswith("speaking 1 s")]
    assert len(factors) == 4 and all(float(line.rpartition(" ")[2]) > 0 for line in factors)


def test_it_says_what_it_needs():
    done = run("--device", "cpu")
    assert done.returncode == 1 and "give --tiny as well to run on the CPU" in done.stderr
