"""The side of the tests of warm.py: commands in processes forked from one that has imported everything."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Warm:
    """Starts warm.py when it is first needed. `environment(**extra)` is that of the commands; `folder` is for what they
    write."""

    def __init__(self, folder: Path, environment: Callable[..., dict[str, str]]):
        self.folder, self.environment, self.count = folder, environment, 0
        self.server: subprocess.Popen | None = None

    def __call__(
        self, commands: list[list[str]], processes: int, packages: Sequence[object] = (), **extra: str
    ) -> subprocess.CompletedProcess:
        """Runs `stentor ...` as that many processes, with folders of further packages."""
        request, files = self.request(commands, packages, extra)
        code = self.ask({**request, "processes": processes, "seconds": 300 + 60 * len(commands)})
        return subprocess.CompletedProcess(commands, code, *(file.read_text() for file in files))

    def start(self, arguments: Sequence[object], **extra: str) -> "Started":
        """Starts `stentor ...` and does not wait for it."""
        request, files = self.request([[str(a) for a in arguments]], (), extra)
        return Started(self, self.ask(request), files)

    def request(self, commands: list[list[str]], packages: Sequence[object], extra: dict[str, str]) -> tuple:
        """What warm.py is asked, and the files for what the command writes."""
        self.count += 1
        files = [self.folder / f"{self.count}.{name}" for name in ("stdout", "stderr")]
        for file in files:
            file.touch()
        places = {"stdout": str(files[0]), "stderr": str(files[1]), "packages": [str(p) for p in packages]}
        return {"commands": commands, "cwd": os.getcwd(), "environment": self.environment(**extra), **places}, files

    def ask(self, request: dict[str, Any]) -> Any:
        if self.server is None:
            command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.server = subprocess.Popen(command, env=self.environment(), text=True, **pipes)
        assert self.server.stdin and self.server.stdout
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def close(self) -> None:
        if self.server is not None:
            assert self.server.stdin
            self.server.stdin.close()  # a process that a command left behind may hold the other end of stdout
            self.server.wait(timeout=300)


class Started:
    """A command in the background, as `subprocess.Popen` has it; the head of a process group of its own."""

    def __init__(self, warm: Warm, pid: int, files: list[Path]):
        self.warm, self.pid, self.files = warm, pid, files
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.warm.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("stentor", timeout)
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        self.wait(timeout)
        return self.files[0].read_text(), self.files[1].read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
