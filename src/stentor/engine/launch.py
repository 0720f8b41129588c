"""Launcher: several processes of one command on this machine (`--processes`). Use torchrun for several machines."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from stentor.data.system import CHILD, KILLED, POSIX, STOP_SIGNALS, ask_to_stop, usable_cores
from stentor.errors import ConfigError

GRACE = 10.0
"""Seconds for the other processes to end after one failed; most fail for the same reason."""
END_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG."""


def launched(processes: int) -> bool:
    """Return whether this is already one of `processes` processes of a group."""
    world = os.environ.get("WORLD_SIZE")
    if world is not None and int(world) != processes and processes > 1:
        raise ConfigError(
            f"`--processes {processes}`, but the launcher (torchrun or accelerate) started {world}: leave it out."
        )
    return world is not None


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `stentor ARGUMENTS` as `processes` processes of one group, and return the exit code of the first that failed.

    Signals are passed to all of them. Only the first one writes to the terminal; what another one had to say is shown
    when it failed and the first one did not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, int(usable_cores() // processes)))
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": threads,
    }
    running: list[subprocess.Popen[bytes]] = []
    outputs: list[IO[bytes] | None] = []
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        for rank in range(processes):
            quiet = tempfile.TemporaryFile() if rank else None  # noqa: SIM115 (closed with the process)
            outputs.append(quiet)
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "stentor", *arguments],
                    env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=quiet,
                    stderr=quiet,
                    **({"preexec_fn": _end_with_parent} if POSIX and sys.platform == "linux" else CHILD),
                )
            )
        for number in handlers:
            signal.signal(number, lambda *_: _terminate(running))
        return _wait(running, outputs)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def _wait(running: list[subprocess.Popen[bytes]], outputs: list[IO[bytes] | None]) -> int:
    failed: int | None = None
    until = float("inf")
    while any(p.poll() is None for p in running) and time.monotonic() < until:
        time.sleep(0.05)
        if failed is None and (failed := next((r for r, p in enumerate(running) if p.poll()), None)) is not None:
            until = time.monotonic() + GRACE
    if failed is None and (failed := next((r for r, p in enumerate(running) if p.poll()), None)) is None:
        return 0
    code = running[failed].returncode
    output = outputs[failed]
    if output is not None and running[0].returncode != code:
        output.seek(0)
        print(f"stentor: process {failed} of {len(running)} failed:", file=sys.stderr)
        print(output.read().decode(errors="replace")[-4000:], file=sys.stderr)
    if code >= 0:
        return code
    hint = " (often: out of memory)" if code == KILLED else ""
    print(
        f"stentor: process {failed} of {len(running)} was ended by signal {-code}{hint}. Run the same command again "
        "to resume.",
        file=sys.stderr,
    )
    return 1


def _terminate(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        ask_to_stop(process)


def _end_with_parent() -> None:
    """Make the child save and stop when the launcher is killed. Called in the child before it starts."""
    ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGTERM)
