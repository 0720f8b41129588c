"""Process groups of commands that tests kill in the middle."""

import os
import time
from collections.abc import Callable
from subprocess import Popen


def wait_for(happened: Callable[[], bool], process: Popen | None = None, seconds: float = 180.0) -> None:
    """Wait until it happened; the process must not end before."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def lives(group: int) -> bool:
    """Whether a process of the group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def environment(**extra: str) -> dict[str, str]:
    """The environment of a subprocess: one thread, no network, nothing of the launching test run's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "ACCELERATE"))}
    return {**inherited, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", **extra}
