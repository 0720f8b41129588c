"""`stentor studio` as a user starts it: a process of its own on a free port of this machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class StudioProcess:
    """A studio over `folder`; `address` is the page that it printed last, `log` all that it printed."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder.with_name(folder.name + ".log")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.process: subprocess.Popen | None = None

    def start(self, wait: float = 120, *options: str, **variables: str) -> None:
        """Starts it, again if need be, and waits at most so many seconds until it answers (its first page; the rest of
        it may still be loading)."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ACCELERATE"))}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **variables}
        command = [sys.executable, "-m", "stentor", "studio", "--port", str(self.port), "--folder", str(self.folder)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )
        until = time.monotonic() + wait
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/studio/ready", timeout=wait):
                    self.address = re.findall(r"http://\S+", self.log.read_text())[-1]
                    return
            except OSError:
                ended = self.process.poll()
                assert ended is None and time.monotonic() < until, f"exit {ended}:\n{self.log.read_text()[-3000:]}"
                time.sleep(0.02)

    def kill(self) -> None:
        """As by a crash or a cut of power, but for the trainings."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends it and every command that it started."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_commands()

    def empty(self) -> None:
        """Ends every command that it started, and deletes what it has of a person."""
        self._end_commands()
        for folder in self.folder.iterdir():
            for made in folder.iterdir() if folder.is_dir() else ():
                shutil.rmtree(made) if made.is_dir() else made.unlink()

    def _end_commands(self) -> None:
        from stentor.studio.runs import detached

        for lock in self.folder.rglob("run.lock"):
            detached.end(lock.parent, kill=True)
