"""What a model needs that this machine may have: the Hub within reach, weights on its disk, a GPU."""

import functools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_REACH = 60.0
"""Seconds for which it is remembered whether the Hub can be reached."""
_seen: list[tuple[float, bool]] = []


def reachable() -> bool:
    """Whether the Hub answers, as far as a second tells; remembered for a minute."""
    if not _seen or time.monotonic() - _seen[-1][0] > _REACH:
        _seen[:] = [(time.monotonic(), _knock())]
    return _seen[-1][1]


def _knock() -> bool:
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # only the proxy knows
    place = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((str(place.hostname), place.port or 443), 1.0):
            return True
    except OSError:
        return False


def on_disk(model: Mapping[str, Any]) -> bool:
    """Whether the pretrained parts that a section `model` names are on this machine already."""
    from huggingface_hub import try_to_load_from_cache

    sources = [s["from"] for s in (model, *(v for v in model.values() if isinstance(v, dict))) if s.get("from")]
    return all(Path(n).is_dir() or isinstance(try_to_load_from_cache(n, "config.json"), str) for n in sources)


@functools.cache
def has_gpu() -> bool:
    """Whether there is a GPU, without the seconds that importing torch takes."""
    return Path("/dev/kfd").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
