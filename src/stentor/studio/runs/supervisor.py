"""`python -m stentor.studio.runs.supervisor FOLDER LOCK COMMAND...`: keeps one command that outlives the studio.

It is a session of its own. It starts the command, writes what the command says (without secrets) to `output.txt`, hands
SIGTERM on, and leaves how it ended in `ending.json`. It imports little: it lives as long as the command.

LOCK is the number of an open file on which the studio holds an exclusive `flock`. Supervisor and command inherit it,
so the lock is held as long as either lives, whatever is killed; nothing stale stays behind. On Windows, where locks are
not inherited, the supervisor leaves its own number, and watches for the file `stop`.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from stentor.data.system import CHILD, POSIX, ask_to_stop, kill_group
from stentor.errors import StentorError, without_secrets
from stentor.studio.files import read_json

ENDING_BYTES = 4096
"""`ending.json` has this size from the start: on a disk that filled up meanwhile its bytes can still be overwritten."""
MOST_OUTPUT = 64 * 2**20
"""Bytes of output that are kept; the rest is read and dropped, for a command must never wait for its log."""
AFTERWARDS = "afterwards"
"""Folder of a run with what follows it when it has finished well."""
_LINGER = 10.0
"""Seconds that processes which a command left behind, such as loader workers, have to end by themselves."""
_LAST = 200
"""Lines of the output that are held for the sentence of the ending."""


def main(arguments: list[str]) -> int:
    folder, lock, command = Path(arguments[0]), int(arguments[1]), arguments[2:]
    if POSIX:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = False

    def asked(number: int, frame: Any) -> None:
        nonlocal stop
        stop = True
        if process is not None:
            ask_to_stop(process)

    process: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, asked)
    started = {"started": read_json(folder / "ending.json").get("started", time.time())}
    own = {} if POSIX else {"supervisor": [os.getpid(), process_start(os.getpid())]}
    write_ending(folder, {**started, **own})
    # The command installs its own handlers: SIGINT must not stay ignored for it.
    plain = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **({"pass_fds": (lock,), "process_group": 0, "preexec_fn": plain} if POSIX else CHILD),
        )
    except OSError as error:
        why = f"It could not be started ({error.strerror or error})."
        write_ending(folder, {**started, "exit": 127, "time": time.time(), "said": why})
        return 1
    if stop:
        ask_to_stop(process)
    write_ending(folder, {**started, **own, "pid": process.pid, "born": process_start(process.pid), "exit": None})
    last: list[str] = []
    pump = threading.Thread(target=_pump, args=(process, folder / "output.txt", last))
    pump.start()
    if POSIX:  # it is not taken out of the process table yet, so its number still means it and its group
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    while not POSIX and process.poll() is None:
        if not stop and (folder / "stop").exists():
            asked(signal.SIGTERM, None)
        time.sleep(0.2)
    pump.join(_LINGER)
    if pump.is_alive():  # it left processes behind, which hold its output and would hold the lock
        kill_group(process.pid)
        pump.join(_LINGER)
    code = process.wait()
    write_ending(folder, {**started, "exit": code, "time": time.time(), "said": closing_message(last)})
    if code == 0 and (folder / AFTERWARDS).is_dir():
        _begin_afterwards(folder)
    # Whatever still holds the other end of the output is not waited for.
    os._exit(0)


def _begin_afterwards(folder: Path) -> None:
    """Start what follows a run, unless that works already or has been done."""
    from stentor.studio.runs import detached

    if detached.ending(folder / AFTERWARDS).state == "finished":
        return
    with contextlib.suppress(StentorError), detached.exclusive(folder / AFTERWARDS, "") as lock:
        command = [sys.executable, "-m", "stentor.studio.runs.afterwards", str(folder)]
        detached.launch(folder / AFTERWARDS, command, lock, folder)


def write_ending(folder: Path, ending: dict[str, Any]) -> None:
    """Overwrite `ending.json` in place."""
    message = str(ending.get("said", ""))[:ENDING_BYTES]
    while len(data := json.dumps({**ending, "said": message}).encode()) > ENDING_BYTES:
        message = message[: len(message) * 3 // 4]
    with open(folder / "ending.json", "r+b") as file:
        file.write(data.ljust(ENDING_BYTES))
        file.flush()
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())


def process_start(pid: int) -> str | None:
    """When a process began, in hundredths of a second since the machine was started, which tells it from a later one of
    the same number whatever happens to the clock; None when it is gone or the system does not say."""
    try:
        return f"{100 * (psutil.Process(pid).create_time() - psutil.boot_time()):.0f}"
    except psutil.Error:
        return None


def closing_message(lines: list[str]) -> str:
    """The error paragraph at the end of a command's output (`stentor: ...`), or its last line."""
    text = [line for line in lines if line.strip()]
    for at in range(len(text) - 1, -1, -1):
        if text[at].startswith("stentor: "):
            return "\n".join([text[at].removeprefix("stentor: "), *text[at + 1 :]])
    return text[-1] if text else ""


def _pump(process: subprocess.Popen[bytes], path: Path, last: list[str]) -> None:
    """Copy the output line by line until it ends, and leave the last lines in `last`."""
    assert process.stdout
    file = None
    with contextlib.suppress(OSError):
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed below, whatever the disk says
    for raw in iter(lambda: process.stdout.readline(65536), b""):  # type: ignore[union-attr]
        line = without_secrets(raw.decode("utf-8", "replace")).rstrip("\n").rpartition("\r")[2]
        last[:] = [*last[-_LAST + 1 :], line]
        # A full disk costs the log, not the run.
        with contextlib.suppress(OSError):
            if file is not None and file.tell() < MOST_OUTPUT:
                file.write(line + "\n")
    # What could not be written would be tried again at closing.
    with contextlib.suppress(OSError):
        if file is not None:
            file.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
