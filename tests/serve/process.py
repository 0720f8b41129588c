"""`stentor serve` in a process of its own, looked at from outside."""

import os
import re
import subprocess
import sys
from pathlib import Path

from realtime import until

Address = tuple[str, int]


class Served:
    """A server of an `export`; its temporary files are in `folder`."""

    def __init__(self, model: Path, folder: Path, *options: str):
        self.folder, self.log = folder, folder.with_name("log")
        folder.mkdir()
        plugin = Path(__file__).with_name("meter_plugin.py")
        command = [sys.executable, "-m", "stentor", "serve", model, "--plugin", plugin, "--port", "0", *options]
        with self.log.open("w") as log:
            environment = {**os.environ, "TMPDIR": str(folder)}
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        host, port = re.search(r"http://([\d.]+):(\d+)", self.process.stdout.readline()).groups()
        self.address: Address = host, int(port)
        until(lambda: self.health()["status"] != "loading")

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *error: object) -> None:
        with self.process:
            self.process.kill()

    def health(self) -> dict:
        import httpx

        return httpx.get("http://{}:{}/health".format(*self.address)).json()

    @property
    def helpers(self) -> list[int]:
        """Its child processes."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [pid for pid in pids if parent(pid) == self.process.pid]

    def facts(self) -> dict[str, int]:
        """What grows where something leaks."""
        of = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (of / "status").read_text().splitlines())
        return {
            "rss_mib": int(status["VmRSS"].split()[0]) // 1024,
            "threads": int(status["Threads"]),
            "descriptors": len(list((of / "fd").iterdir())),
            "helpers": len(self.helpers),
            "files": len(list(self.folder.iterdir())),
        }


def parent(pid: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:  # it has ended meanwhile
        return None
    return None if state == "Z" else int(parent)
