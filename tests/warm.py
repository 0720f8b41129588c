"""A process that has imported everything and forks for each command: the imports take longer than most commands do.

Reads one JSON object a line, `{"commands", "processes", "cwd", "environment", "stdout", "stderr", "seconds"}`, runs
`stentor ...` in that many forked processes (as the ranks of one group when there are several; several commands as
group.py does), and answers with the exit code in a line of its own.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

PARTS = (
    "accelerate.utils",
    "lhotse.cut",
    "peft",
    "scipy.optimize",
    "soundfile",
    "torch.distributed.fsdp",
    "torch.nn.attention.flex_attention",
    "torch.utils.data",
    "torch.utils.tensorboard",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "qwen3", "wav2vec2", "whisper")),
)
"""What commands import besides Stentor's own modules."""


def imports() -> None:
    import stentor

    for module in pkgutil.walk_packages(stentor.__path__, "stentor."):
        if not module.name.endswith("__main__") and ".templates" not in module.name:
            importlib.import_module(module.name)
    for name in PARTS:
        with contextlib.suppress(ImportError):  # of an extra that is not installed: a command that wants it says so
            importlib.import_module(name)


def run(request: dict, rank: dict[str, str]) -> NoReturn:
    """The command, in a process that was forked for it; ends as `python -m stentor` does."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"] | rank)
    import group
    import stentor.cli

    first, *more = request["commands"]
    sys.argv = [str(Path(stentor.__file__).with_name("__main__.py")), *first]
    sys.exit(group.one_after_the_other([first, *more]) if more else stentor.cli.main())


def answer(request: dict) -> int:
    """The worst exit code of the forked processes. After a failure of one, or `seconds`, the others are killed."""
    ranks: list[dict[str, str]] = [{}]
    if (count := request["processes"]) > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [group | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(count)]
    running = []
    for rank in ranks:
        child = os.fork()
        if child == 0:
            run(request, rank)
        running.append(child)
    end, code = time.monotonic() + request["seconds"], 0
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in running:
            running.remove(child)
            if exit_code := os.waitstatus_to_exitcode(status):
                code = code or exit_code
                end = min(end, time.monotonic() + 20)
        elif time.monotonic() > end:
            code = code or -signal.SIGKILL
            for left in running:
                os.killpg(left, signal.SIGKILL)
            end = float("inf")
        else:
            time.sleep(0.01)
    return code


def main() -> None:
    imports()
    for line in sys.stdin:
        sys.stdout.write(f"{answer(json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
