"""A process that has imported everything and forks for each command: the imports take longer than most commands do.

Reads one JSON object a line and answers each with a line. `{"commands", "processes", "cwd", "environment", "packages",
"stdout", "stderr", "seconds"}` runs `stentor ...` in that many forked processes (as the ranks of one group when there
are several; several commands as group.py does; `-c CODE` as Python has it), and is answered with the exit code. Without
"seconds" it is not waited for: the answer is the process's id, and `{"poll": id}` asks for its exit code, null while it
runs.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

PARTS = (
    "accelerate.utils",
    "lhotse.cut",
    "peft",
    "rapidfuzz",
    "scipy.optimize",
    "scipy.signal",
    "soundfile",
    "torch.distributed.fsdp",
    "torch.nn.attention.flex_attention",
    "torch.utils.data",
    "torch.utils.tensorboard",
    "transformers.tokenization_mistral_common",
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("llama", "qwen2", "qwen3", "voxtral", "wav2vec2", "whisper")
    ),
)
"""What commands import besides Stentor's own modules."""
LEFT_OUT = (".templates", "stentor.studio.")
"""Not needed by them: pages, with Gradio, whose import alone takes seconds."""


def imports() -> None:
    import group  # noqa: F401 (of the folder of this file, which is not on the path of commands)
    import stentor

    folder = Path(stentor.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        module = ".".join(("stentor", *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        if not module.endswith("__main__") and not any(part in module for part in LEFT_OUT):
            importlib.import_module(module)
    from stentor.cli import build
    from stentor.report.pages import environment

    build()
    pages = environment()
    for page in pages.list_templates(extensions=["html"]):
        pages.get_template(page)
    for name in PARTS:
        with contextlib.suppress(ImportError):  # of an extra that is not installed: a command that wants it says so
            importlib.import_module(name)


def end(work: Callable[[], object]) -> NoReturn:
    """Ends this process, which was forked for the work, with its exit code, as Python would; but it does not take
    apart all that is imported, which takes as long as many a command."""
    code: object = 1
    try:
        code = work()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class Forked:
    """What `subprocess.Popen` of `python -m stentor ...` is to `stentor.engine.launch`, from this process."""

    def __init__(self, command: list[str], env: dict[str, str], stdout=None, stderr=None, preexec_fn=None):
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if preexec_fn is not None:
                preexec_fn()
            for number, file in ((1, stdout), (2, stderr)):
                if file is not None:
                    os.dup2(file.fileno(), number)
            os.environ.clear()
            os.environ.update(env)
            end(lambda: stentor_command(command[3:]))

    def poll(self) -> int | None:
        if self.returncode is None and (child := os.waitpid(self.pid, os.WNOHANG)) != (0, 0):
            self.returncode = os.waitstatus_to_exitcode(child[1])
        return self.returncode

    def wait(self) -> int | None:
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def stentor_command(arguments: list[str]) -> int:
    """What `python -m stentor` does."""
    import stentor.cli
    from stentor.engine import launch
    from stentor.engine.signals import stop_at_once

    sys.argv = [str(Path(stentor.__file__).with_name("__main__.py")), *arguments]
    stop_at_once()
    launch.subprocess = SimpleNamespace(Popen=Forked)
    return stentor.cli.main()


def run(request: dict, rank: dict[str, str]) -> NoReturn:
    """The command, in a process that was forked for it."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"] | rank)
    sys.path[:1] = [request["cwd"], *request["packages"]]  # in the place of the folder of this file
    import group

    first, *more = request["commands"]
    if first[0] == "-c":
        end(lambda: exec(first[1], {"__name__": "__main__"}))
    end(lambda: group.one_after_the_other([first, *more]) if more else stentor_command(first))


ended: dict[int, int] = {}
"""Exit codes of processes by their ids, until they are asked for."""


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[child[0]] = os.waitstatus_to_exitcode(child[1])


def fork(request: dict, rank: dict[str, str]) -> int:
    child = os.fork()
    if child == 0:
        run(request, rank)
    return child


def answer(request: dict) -> int | None:
    if "poll" in request:
        reap()
        return ended.pop(request["poll"], None)
    return worst(request) if "seconds" in request else fork(request, {})


def worst(request: dict) -> int:
    """The worst exit code of the forked processes. After a failure of one, or `seconds`, the others are killed."""
    ranks: list[dict[str, str]] = [{}]
    if (count := request["processes"]) > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [group | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(count)]
    running = {fork(request, rank) for rank in ranks}
    until, code = time.monotonic() + request["seconds"], 0
    while running:
        reap()
        for child in running & ended.keys():
            running.remove(child)
            if exit_code := ended.pop(child):
                code = code or exit_code
                until = min(until, time.monotonic() + 20)
        if time.monotonic() > until:
            code = code or -signal.SIGKILL
            for left in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(left, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.005)
    return code


def main() -> None:
    gc.disable()
    imports()
    gc.freeze()  # what is imported stays: the processes need not look through it, nor copy it for that
    gc.enable()
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(answer(json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
