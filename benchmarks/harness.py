"""The harness: options, timing, processes, tables and result files of all benchmarks.

A benchmark is a function with the decorator `@benchmark` in a module of this folder. Its name is the function's, its
parameters are the options (those before `/` are positional, `Annotated[type, "..."]` adds a help text) and its
docstring is the help page. It returns its rows and further facts, which are written to benchmarks/results/NAME.json
with the machine that gave them; the fact `failed` names what failed.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import json
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
DATA = FOLDER.parent.parent / "shared" / "data"
"""The development data, where it is beside the repository."""
PACKAGES = ("torch", "transformers", "accelerate", "lhotse", "numpy")
RATE = 16000
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Environment in which freed memory is given back at once, so that a peak is of what is held at one time."""

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]
Result: TypeAlias = tuple[Rows, Row]
"""Rows, and facts that hold for all of them."""


# Declaration of a benchmark


def benchmark(function: Any = None, *, threads: int | None = None) -> Any:
    """Make a function a benchmark. `threads` adds the option of that name, for torch, and its default; 0 is torch's own
    number."""
    if function is None:
        return lambda decorated: benchmark(decorated, threads=threads)
    function.threads = threads
    return function


def listed() -> dict[str, tuple[str, str]]:
    """Module and first line of every benchmark, by its name, read without importing anything."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("benchmark" in ast.unparse(d) for d in node.decorator_list):
                found[node.name] = (path.stem, (ast.get_docstring(node) or "").partition("\n")[0])
    return dict(sorted(found.items()))


def main(words: list[str]) -> int | str | None:
    names = listed()
    if words[:1] == ["--apart"]:
        return _answer(*words[1:])
    if not words or words[0] not in names:
        print("usage: python benchmarks NAME [options]; python benchmarks NAME --help\n")
        for name, (_, line) in names.items():
            print(f"{name:20} {line}")
        return f"There is no benchmark {words[0]}." if words and words[0] not in ("-h", "--help") else None
    name = words[0]
    function = getattr(importlib.import_module(f"benchmarks.{names[name][0]}"), name)
    positional, options = read_options(function, words[1:])
    threads, results = options.pop("threads", None), options.pop("results")
    if threads is not None:
        set_threads(threads)
    answer = function(*positional, **options)
    if answer is None:
        return None
    rows, facts = answer
    failed = facts.pop("failed", "")
    if results or not options.get("tiny"):
        facts = facts if threads is None else {"threads": set_threads(), **facts}
        write(name, rows, results or RESULTS / f"{name}.json", " ".join(words), facts)
    return f"Failed: {failed}." if failed else None


def set_threads(count: int = 0) -> int:
    """Set torch's number of threads where one is given, and return it."""
    import torch

    if count:
        torch.set_num_threads(count)
    return torch.get_num_threads()


# Options


def read_options(function: Any, words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog=f"python benchmarks {function.__name__}",
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parameters = [_parameter(p) for p in inspect.signature(function, eval_str=True).parameters.values()]
    if function.threads is not None:
        parameters.append(Parameter("threads", int, function.threads, help="Threads of torch."))
    parameters.append(
        Parameter("results", Path, None, help="Where to write the figures; benchmarks/results by default.")
    )
    for parameter in parameters:
        parameter.add_to(parser)
    values = vars(parser.parse_args(words))
    for parameter in parameters:
        if parameter.many:
            values[parameter.name] = [part for parts in values[parameter.name] for part in parts]
    positional = [values.pop(p.name) for p in parameters if p.positional]
    return positional, values


@dataclass
class Parameter:
    """One option of a benchmark."""

    name: str
    kind: Any
    default: Any = inspect.Parameter.empty
    many: bool = False
    choices: tuple[Any, ...] = ()
    positional: bool = False
    help: str = ""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        required = self.default is inspect.Parameter.empty
        told = "" if required or self.default in (None, False, (), "") else f"Default: {_plain(self.default)}."
        text = " ".join(part for part in (self.help, told) if part).replace("%", "%%")
        settings: dict[str, Any] = {"help": text, "default": None if required else self.default}
        if self.kind is bool:
            parser.add_argument(self.flag, dest=self.name, action="store_true", help=text)
            return
        settings["type"] = self._elements if self.many else self._element
        if self.choices:
            settings["metavar"] = "{" + ",".join(map(str, self.choices)) + "}"
        if self.many:
            settings |= {"nargs": "+" if required else "*", "default": None if required else [list(self.default)]}
        elif self.positional and not required:
            settings["nargs"] = "?"
        if self.positional:
            parser.add_argument(self.name, **{"metavar": self.name.upper(), **settings})
        else:
            parser.add_argument(self.flag, dest=self.name, required=required, **settings)

    @property
    def flag(self) -> str:
        return "--" + self.name.rstrip("_").replace("_", "-")

    def _element(self, text: str) -> Any:
        value = self.kind(text)
        if self.choices and value not in self.choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, self.choices))}")
        return value

    def _elements(self, text: str) -> list[Any]:
        """Several values in one word may be separated by commas, except paths and texts."""
        parts = text.split(",") if self.choices or self.kind in (int, float) else [text]
        return [self._element(part) for part in parts]


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _parameter(parameter: inspect.Parameter) -> Parameter:
    kind, text = parameter.annotation, ""
    if get_origin(kind) is Annotated:
        kind, text = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    many = get_origin(kind) in (tuple, list)
    kind = get_args(kind)[0] if many else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    kind = type(choices[0]) if choices else kind
    positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    return Parameter(parameter.name, kind, parameter.default, many, choices, positional, text)


# Result files and tables


def write(name: str, rows: Rows, path: Path, command: str, facts: Row) -> None:
    """Write one result file and say so. `load` is the machine's load when the benchmark ends: about the threads in use
    when nothing else ran."""
    from stentor.engine.device import processor

    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {p: version(p) for p in PACKAGES},
    }
    head = {"benchmark": name, "command": f"python benchmarks {command}", "date": time.strftime("%Y-%m-%d")}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, **facts, "rows": rows, "machine": machine}, indent=1) + "\n")
    print(f"\nWritten to {path.relative_to(FOLDER.parent) if path.is_relative_to(FOLDER.parent) else path}.")


class Table(list[Row]):
    """Rows that are printed when they are added, under a heading whenever their columns change."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: dict[str, int] = {}

    def add(self, row: Row) -> Row:
        cells = dict(_cells(row))
        if list(cells) != list(self.widths):
            self.widths = {key: max(len(key), len(cell), 8) for key, cell in cells.items()}
            first = next(iter(cells))
            self.widths[first] = max(self.widths[first], 26)
            print("\n" + "  ".join(f"{key:{width}}" for key, width in self.widths.items()))
        print("  ".join(f"{cells[key]:{width}}" for key, width in self.widths.items()), flush=True)
        self.append(row)
        return row


def _cells(row: Row, prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _cells(value, f"{prefix}{key}.")
        elif isinstance(value, float):
            yield prefix + key, f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        elif value is not None:
            yield prefix + key, f"{value:,}" if type(value) is int else str(value)


def verdict(what: str, value: float, least: float | None = None, most: float | None = None) -> None:
    """Print whether a target is met."""
    met = value >= least if least is not None else value <= (most or 0.0)
    bound = f"at least {least:g}" if least is not None else f"at most {most:g}"
    print(f"Target for {what}: {bound}; {'met' if met else 'missed'} ({value:.4g}).")


# Timing


def in_turns(
    ways: dict[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    warm: int = 0,
    settle: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each way in each round; all ways take turns. The first `warm` rounds do not count; with `settle` each
    way runs once before it is timed, so that threads and memory of the way before it settle."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm + rounds):
        for name, way in ways.items():
            if settle:
                way()
            began = clock()
            way()
            if number >= warm:
                seconds[name].append(clock() - began)
    return seconds


def medians(seconds: dict[str, list[float]], scale: float = 1.0, digits: int = 9) -> dict[str, float]:
    return {name: round(statistics.median(taken) * scale, digits) for name, taken in seconds.items()}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over rounds of theirs / ours."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def timed_command(
    command: Sequence[object], allowed: tuple[int, ...] = (0,), **environment: str
) -> tuple[float, float]:
    """Wall and CPU seconds (user and system, children included) of a process."""
    began = time.perf_counter()
    settings: dict[str, Any] = {"env": {**os.environ, **environment}, "stderr": subprocess.STDOUT}
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, **settings) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in allowed:
        raise SystemExit(f"{' '.join(map(str, command))[:200]}: exit code {process.returncode}\n{output.decode()}")
    return wall, usage.ru_utime + usage.ru_stime


def stentor_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "stentor", *map(str, words)]


def cpu_seconds(pid: int, children: bool = True) -> float:
    """CPU seconds of a process and of those processes that it has now."""
    import psutil

    process, total = psutil.Process(pid), 0.0
    for one in (process, *(process.children(recursive=True) if children else ())):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(one.cpu_times()[:2])
    return total


# Memory


def memory(what: str = "VmRSS", pid: int | str = "self") -> int:
    """Bytes of a process: in memory now (VmRSS), at most (VmHWM), of its own (RssAnon), of mapped files (RssFile)."""
    status = Path(f"/proc/{pid}/status")
    if what == "VmHWM" and not status.is_file():  # getrusage begins with the peak of the process that started this one
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 1024 * int(re.search(rf"{what}:\s+(\d+)", status.read_text())[1])  # type: ignore[index]


def taken_by(work: Callable[[], object]) -> int:
    """Bytes that this process holds at most during some work, above what it held before (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = memory()
    work()
    return memory("VmHWM") - before


# Processes of their own


class Failed(SystemExit):
    """A process of its own that failed; the text is the end of what it wrote."""


def apart(function: Callable[..., Any], *arguments: Any, threads: int | None = None, **environment: str) -> Any:
    """The result of a function of a benchmark module in a process of its own. Arguments and result are JSON."""
    call = [f"{function.__module__}:{function.__name__}", json.dumps(arguments, default=str), str(threads or 0)]
    command = [sys.executable, str(FOLDER), "--apart", *call]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{function.__name__}{arguments} failed ({done.returncode}):\n{done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _answer(call: str, arguments: str, threads: str) -> None:
    """The inner side of `apart`."""
    module, _, name = call.partition(":")
    if int(threads):
        set_threads(int(threads))
    with contextlib.redirect_stdout(sys.stderr):
        answer = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    print(json.dumps(answer))


# Data


def clip(rng: Any, seconds: float) -> Any:
    """Tones over noise whose loudness changes like that of speech: float32 [samples] at 16 kHz."""
    import numpy as np

    t = np.arange(round(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * f * t) / k for k, f in enumerate(rng.uniform(100, 4000, 5), 1))
    noise = rng.normal(size=len(t))
    return (0.1 * (1 + np.sin(2 * np.pi * 4 * t)) * (tones + 0.1 * noise)).astype(np.float32)


def read_lines(path: Path) -> Rows:
    """Records of a manifest, each with the path of its file."""
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return [{**row, "file": path.parent / row["audio_path"]} for row in rows]


def write_lines(path: Path, rows: Iterable[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_clips(folder: Path, clips: Iterable[tuple[Any, Row]], name: str = "train.jsonl", suffix: str = "wav") -> Path:
    """Write audio at 16 kHz, each clip with further keys of its record, and the manifest of all."""
    from stentor.audio.io import write

    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (audio, more) in enumerate(clips):
        write(folder / f"{i:06d}.{suffix}", audio, RATE)
        file = {"id": f"{i:06d}", "audio_path": f"{i:06d}.{suffix}", "duration": len(audio) / RATE}
        rows.append(file | more)
    return write_lines(folder / name, rows)


def utterances(data: Path) -> Rows:
    """LibriSpeech's utterances, training and development speakers."""
    return [row for part in ("train", "dev") for row in read_lines(data / "librispeech" / f"{part}.jsonl")]


def spread(pool: Rows, minutes: float, shortest: float = 1.0, longest: float = 20.0) -> Rows:
    """Utterances of about so many minutes together, their lengths spread evenly over the range, in a random order."""
    pool, drawn = [row for row in pool if shortest <= row["duration"] <= longest], random.Random(0)
    chosen: Rows = []
    while pool and sum(row["duration"] for row in chosen) < 60 * minutes:
        length = drawn.uniform(shortest, longest)
        chosen.append(pool.pop(min(range(len(pool)), key=lambda i: abs(pool[i]["duration"] - length))))
    return chosen
