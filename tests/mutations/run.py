"""Mutation run: puts one fault at a time into a copy of the source and checks that the named tests catch it.

    python tests/mutations/run.py [--only PATTERN] [--results FILE] [--jobs N] [--list]

The faults are in faults.txt. First the named tests run on the unchanged source, one pytest call for each file of tests;
all must pass. Then each fault is put into a temporary copy of src/stentor, which PYTHONPATH names, so that the source
itself is never touched and processes that tests start have the fault too. The results file has a line of JSON for each
fault and file of tests; what it holds is not run again while the source file and the tests are unchanged. The exit code
is 1 unless every fault is caught.
"""

import argparse
import compileall
import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("faults.txt")
SECONDS = 300
"""Most that the tests of one fault may take."""
FORKED = multiprocessing.get_context("forkserver")
"""Tests run in processes forked from one that has imported the libraries, which takes longer than most tests."""
LIBRARIES = (
    *("accelerate", "hypothesis.strategies", "lhotse.cut", "peft", "pytest", "schemathesis.pytest.plugin"),
    *("scipy.signal", "soundfile", "torch", "transformers"),
)
RUNNING: set[int] = set()
"""Process groups of the tests that run now."""
OUTCOMES = {0: "SURVIVED", 1: "caught"}
"""Outcomes of a fault by pytest's exit code; other codes are errors, as where a module cannot be imported."""


@dataclass(frozen=True)
class Fault:
    """One change of one source file: `old`, which occurs once, becomes `new`."""

    name: str
    file: str
    """Relative to src/stentor."""
    tests: tuple[tuple[str, ...], ...]
    """Arguments for pytest: a file and perhaps `-k` and an expression."""
    old: str
    new: str


def read_table(text: str) -> list[Fault]:
    """The faults of a table; see its head."""
    entries: list[tuple[str, dict[str, list[str]]]] = []
    for line in text.splitlines():
        if line[:1] in ("-", "+"):
            entries[-1][1][line[0]].append(line[1:])
        elif line and not line.startswith("#"):
            entries.append((line, {"-": [], "+": []}))
    faults = []
    for head, lines in entries:
        name, file, tests = head.split(maxsplit=2)
        arguments = tuple(tuple(shlex.split(part)) for part in tests.split(";"))
        faults.append(Fault(name, file, arguments, "\n".join(lines["-"]), "\n".join(lines["+"])))
    assert all(fault.old for fault in faults), "a fault has no old text"
    assert len({fault.name for fault in faults}) == len(faults), "two faults have one name"
    return faults


def key_of(*parts: object, files: Iterable[Path]) -> str:
    """A hash that changes with what is named and with the files."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"missing")
    return digest.hexdigest()


def run_tests(source: Path, arguments: Iterable[str]) -> tuple[int | None, str]:
    """Pytest's exit code, None when it took too long, and its last lines, with stentor from the folder `source`."""
    output = source.with_name("output.txt")
    process = FORKED.Process(target=pytest_main, args=(source, list(arguments), output))
    process.start()
    assert process.pid
    RUNNING.add(process.pid)
    process.join(SECONDS)
    code = process.exitcode
    kill(process.pid)
    RUNNING.remove(process.pid)
    return code, "\n".join(output.read_text(errors="replace").strip().split("\n")[-3:])


def pytest_main(source: Path, arguments: list[str], output: Path) -> None:
    """What a process of `FORKED` does: as `python -m pytest`, the head of a process group of its own."""
    os.setsid()
    os.chdir(ROOT)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    os.environ["PYTHONPATH"] = str(source)
    sys.path[:1] = [str(source), str(ROOT)]  # in the place of the folder of this file
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--basetemp={source.with_name('tests')}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plug-ins that were imported before
    sys.exit(pytest.main([*options, *arguments]))


def kill(group: int) -> None:
    """End what is left of a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def unmutated(source: Path, path: str, keywords: set[str]) -> tuple[str, str]:
    """Outcome of tests on the unchanged source, and what pytest wrote last; `keywords` has "" where a fault takes the
    whole file."""
    chosen = [] if "" in keywords else ["-k", " or ".join(f"({keyword})" for keyword in sorted(keywords))]
    code, out = run_tests(source, [path, *chosen])
    return ("passed" if code == 0 else "FAILED"), out


def mutated(source: Path, fault: Fault) -> tuple[str, str]:
    """Outcome of a fault and what pytest wrote last. `source` is as before afterwards."""
    file = source / "stentor" / fault.file
    text = file.read_text() if file.is_file() else ""
    if text.count(fault.old) != 1:
        return "DOES NOT APPLY", f"the old text occurs {text.count(fault.old)} times"

    def write(content: str) -> None:
        file.write_text(content)
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            stale.unlink()  # it holds time and size of its source alone

    write(text.replace(fault.old, fault.new))
    out = ""
    try:
        for arguments in fault.tests:
            code, out = run_tests(source, arguments)
            if code != 0:
                return ("TIME-OUT" if code is None else OUTCOMES.get(code, "ERROR")), out
        return "SURVIVED", out
    finally:
        write(text)


class Results:
    """The lines of a results file, by name; the last of one name counts."""

    def __init__(self, file: Path):
        self.file, self.lock = file, threading.Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.is_file() else []
        self.rows = {row["name"]: row for row in map(json.loads, lines)}

    def outcome(self, name: str, key: str, work: Callable[[], tuple[str, str]]) -> str:
        """What is known of a name, or what the work finds."""
        row = self.rows.get(name, {})
        if row.get("key") != key or row["outcome"] not in ("passed", *OUTCOMES.values()):
            started = time.monotonic()
            outcome, out = work()
            row = {"name": name, "outcome": outcome, "seconds": round(time.monotonic() - started, 1), "out": out}
            with self.lock, self.file.open("a") as file:
                file.write(json.dumps(row | {"key": key}) + "\n")
        print(f"{row['outcome']:14} {name} ({row['seconds']} s)", flush=True)
        if row["outcome"] not in ("passed", "caught"):
            print("    " + row["out"].replace("\n", "\n    "), flush=True)
        return row["outcome"]


def run(faults: list[Fault], results: Results, jobs: int) -> list[str]:
    """The outcomes of the tests on the unchanged source and, if all pass, of the faults."""
    keywords: dict[str, set[str]] = {}
    for fault in faults:
        for path, *rest in fault.tests:
            keywords.setdefault(path, set()).add(rest[1] if rest else "")
    sources: SimpleQueue[Path] = SimpleQueue()
    package = ROOT / "src" / "stentor"
    everything = key_of(files=sorted(package.rglob("*.py")))

    def with_source(name: str, key: str, work: Callable[[Path], tuple[str, str]]) -> str:
        source = sources.get()
        try:
            return results.outcome(name, key, lambda: work(source))
        finally:
            sources.put(source)

    def check(path: str) -> str:
        key = key_of(everything, sorted(keywords[path]), files=[ROOT / path])
        return with_source(path, key, lambda source: unmutated(source, path, keywords[path]))

    def try_out(fault: Fault) -> str:
        key = key_of(fault, files=[package / fault.file, *(ROOT / path for path, *_ in fault.tests)])
        return with_source(fault.name, key, lambda source: mutated(source, fault))

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def stop(*_: object) -> None:
            for group in list(RUNNING):
                kill(group)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(130)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        for number in range(jobs):
            source = Path(folder, str(number), "src")
            shutil.copytree(package, source / "stentor")
            compileall.compile_dir(source, quiet=2)
            sources.put(source)
        outcomes = list(pool.map(check, keywords))
        return outcomes if "FAILED" in outcomes else list(pool.map(try_out, faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression that a fault's name or file must match")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "runs" / "mutations.jsonl", help="default: runs/mutations.jsonl"
    )
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--list", action="store_true", help="list the faults and run nothing")
    options = parser.parse_args()
    faults = [f for f in read_table(TABLE.read_text()) if re.search(options.only, f"{f.name} {f.file}")]
    if options.list:
        for fault in faults:
            print(f"{fault.name:32} {fault.file:40} {'; '.join(map(shlex.join, fault.tests))}")
        return 0
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", NO_COLOR="1")
    FORKED.set_forkserver_preload(list(LIBRARIES))
    outcomes = run(faults, Results(options.results), options.jobs)
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))))
    return int(set(outcomes) != {"caught"})


if __name__ == "__main__":
    sys.exit(main())
