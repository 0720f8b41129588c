"""The harness of the benchmarks: options from a function's parameters, and result files."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.harness import FOLDER, benchmark, in_turns, listed, main, ratio, read_options


@benchmark(threads=1)
def example(
    models: tuple[Path, ...],
    /,
    *,
    size: Annotated[int, "Items."] = 3,
    budget: tuple[float, ...] = (1.0, 2.0),
    kind: tuple[Literal["a", "b"], ...] = ("a", "b"),
    not_: str | None = None,
    quick: bool = False,
):
    """An example."""


def test_options_are_the_parameters():
    positional, options = read_options(example, ["x", "y"])
    assert positional == [[Path("x"), Path("y")]]
    assert options == {
        "size": 3,
        "budget": [1.0, 2.0],
        "kind": ["a", "b"],
        "not_": None,
        "quick": False,
        "threads": 1,
        "results": None,
    }
    words = ["x", "--size", "5", "--budget", "4,5", "6", "--kind", "b", "--not", "n", "--quick", "--threads", "2"]
    _, options = read_options(example, words)
    assert options["budget"] == [4.0, 5.0, 6.0] and options["kind"] == ["b"] and options["not_"] == "n"
    assert options["size"] == 5 and options["quick"] and options["threads"] == 2


@pytest.mark.parametrize("words", [[], ["x", "--kind", "c"], ["x", "--size", "many"], ["x", "--other", "1"]])
def test_what_does_not_fit_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        read_options(example, words)
    assert "python benchmarks example" in capsys.readouterr().err


def test_every_benchmark_is_listed_with_a_line(capsys):
    assert main([]) is None
    shown, names = capsys.readouterr().out, listed()
    assert len(names) >= 38 and all(f"\n{name} " in shown and line for name, (_, line) in names.items())
    assert main(["no_such_name"]) == "There is no benchmark no_such_name."


def test_results_of_earlier_runs_belong_to_benchmarks():
    names = listed()
    for path in (FOLDER / "results").glob("*.json"):
        found = json.loads(path.read_text())
        assert found["benchmark"] == path.stem and path.stem in names, path
        assert found["command"].startswith(f"python benchmarks {path.stem}"), path


@pytest.mark.long
def test_what_benchmarks_import_exists():
    nodes = [node for path in FOLDER.glob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    imports = [
        n for n in nodes if isinstance(n, ast.ImportFrom) and n.module.split(".")[0] in ("stentor", "benchmarks")
    ]
    missing = []
    for node in imports:
        names = vars(importlib.import_module(node.module))
        for name in (alias.name for alias in node.names if alias.name not in names):
            if importlib.util.find_spec(f"{node.module}.{name}") is None:
                missing.append(f"{node.module}.{name}")
    assert len(imports) > 100 and not missing


def test_a_run_writes_its_rows(tmp_path):
    to = tmp_path / "rows.json"
    words = ["viterbi", "--items", "2", "--rounds", "1", "--results", str(to)]
    done = subprocess.run([sys.executable, FOLDER, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found, earlier = json.loads(to.read_text()), json.loads((FOLDER / "results" / "viterbi.json").read_text())
    assert list(found) == list(earlier) and [*map(list, found["rows"])] == [*map(list, earlier["rows"])]


def test_ways_take_turns():
    calls = []
    times = iter(range(100))
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    taken = in_turns(ways, 2, clock=lambda: next(times), warm=1)
    assert calls == ["a", "b"] * 3 and taken == {"a": [1, 1], "b": [1, 1]}
    assert ratio([2, 4, 9], [1, 1, 3]) == 3
