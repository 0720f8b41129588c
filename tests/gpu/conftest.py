"""Tests on a CUDA GPU: `make test-gpu`. STENTOR_TEST_GPU_ON_CPU=1 runs the same on the CPU, to try the tests."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def device() -> str:
    """`cuda`, or `cpu` where that was asked for."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("STENTOR_TEST_GPU_ON_CPU") != "1":
        pytest.skip("there is no CUDA GPU here; STENTOR_TEST_GPU_ON_CPU=1 tries the tests on the CPU")
    return "cpu"
