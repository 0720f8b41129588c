"""How the benchmark `attention` reads its figures."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.models import crossover, straight


def rows(softmax: list[float], linear: list[float]) -> list[dict[str, float]]:
    return [
        {"frames": 512 * 2**i, "softmax_ms": a, "linear_ms": b, "linear_mb": b}
        for i, (a, b) in enumerate(zip(softmax, linear))
    ]


def test_crossover():
    even = crossover(rows([1, 4, 16], [2, 4, 8]), "linear", "ms")
    assert even == "about 1024 frames (between 1024 and 2048)"
    assert crossover(rows([1, 4, 16], [2, 2, 2]), "linear", "ms") == "about 724 frames (between 512 and 1024)"
    assert crossover(rows([3, 4], [2, 2]), "linear", "ms") == "512 frames or fewer"
    assert crossover(rows([1, 4], [2, 8]), "linear", "ms") == "no length up to 1024 frames"


def test_a_straight_line_is_found():
    fit = straight(rows([1] * 4, [5 + 512 * 2**i * 0.02 for i in range(4)]), "linear")
    assert fit["kb_per_frame"] == pytest.approx(20) and fit["mb_at_0"] == pytest.approx(5)
    assert fit["worst_percent"] == pytest.approx(0, abs=0.01)
    bent = straight(rows([1] * 4, [1, 4, 16, 64]), "linear")
    assert bent["worst_percent"] > 20
