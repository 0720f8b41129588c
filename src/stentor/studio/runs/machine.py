"""This machine: the Hub within reach, weights on its disk, its GPUs, and how full its memory is while a run trains."""

import functools
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stentor.commands.doctor.hardware import gpu_names, memory
from stentor.data.system import usable_cores
from stentor.publish import hub
from stentor.studio.projects import Projects
from stentor.studio.texts import say

_REACH = 60.0
"""Seconds after which it is looked again whether the Hub can be reached."""


@dataclass(frozen=True)
class HubAccount:
    """Login of the Hub on this machine."""

    token: bool
    """Whether there is one."""
    name: str | None = None
    """Name of the account; None while the Hub has not answered."""
    asking: bool = False
    """Whether the Hub is being asked: look again later."""


@dataclass(frozen=True)
class Machine:
    """Equipment that a training has here."""

    cores: float
    """Cores that it may use."""
    memory_gb: float | None
    """Memory that it may use, in units of 1e9 bytes; None where the system does not say."""
    gpu: bool
    gpus: tuple[str, ...]
    """Names of the NVIDIA GPUs; empty until nvidia-smi has answered, and for a GPU of another make."""
    account: HubAccount | None
    """None for a person who may not publish here: it is the account of the studio's owner."""
    asking: bool
    """Whether something was not answered yet: look again later."""


def this_machine(projects: Projects, wait: float = 0.0) -> Machine:
    """Machine, GPUs and Hub account, as far as they are known after `wait` seconds."""
    smi = _gpu_names() if has_gpu() else None
    who = account(wait) if projects.publishes else None
    names = smi.result() if smi is not None and _answered(smi, wait) else ()
    asking = (smi is not None and not smi.done()) or (who is not None and who.asking)
    size = memory()
    return Machine(usable_cores(), size and size / 1e9, has_gpu(), names, who, asking)


@functools.cache
def _gpu_names() -> Future[tuple[str, ...]]:
    return _background(gpu_names)


def account(wait: float = 5.0) -> HubAccount:
    """The account of the Hub whose token is here. The Hub is asked in the background, once for each token; when it
    cannot be reached, again after a minute."""
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        return HubAccount(False)
    key = hashlib.blake2b(token.encode(), digest_size=16).hexdigest()
    with _asking:
        asked, when = _accounts.get(key, (None, 0.0))
        if asked is None or (asked.done() and asked.result() is None and time.monotonic() - when > _REACH):
            asked, when = _background(hub.account), time.monotonic()
            _accounts[key] = asked, when
    return HubAccount(True, asked.result() if _answered(asked, wait) else None, not asked.done())


_accounts: dict[str, tuple[Future[str | None], float]] = {}
_asking = threading.Lock()


def _background(function: Callable[[], Any]) -> Future[Any]:
    """The answer of a function in a thread that keeps no process alive."""
    future: Future[Any] = Future()

    def ask() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return future


def _answered(future: Future[Any], wait: float) -> bool:
    return bool(futures.wait([future], wait).done)


def reachable() -> bool:
    """Whether the Hub answers, as far as a second tells; remembered for a minute at most."""
    return _knock(time.monotonic() // _REACH)


@functools.lru_cache(maxsize=1)
def _knock(minute: float) -> bool:
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


@dataclass(frozen=True)
class MemoryBar:
    """One thing that fills up."""

    name: str
    text: str
    share: float | None
    """Amount of what there is; None where that is unknown."""


def bars(known: Mapping[str, float], busy: float | None) -> list[MemoryBar]:
    """Memory of a run's processes and its GPU, from its own metrics (`memory/rss_gb`, `memory/cuda_reserved_gb` ... in
    units of 1e9 bytes), and of the machine. `busy`: the share of time in which its GPU was busy."""
    import psutil

    machine = psutil.virtual_memory()
    total, used = machine.total / 1e9, (machine.total - machine.available) / 1e9
    shown = [_bar(say("memory_machine"), used, total)]
    if (gpu := known.get("memory/cuda_reserved_gb")) is not None:
        shown.insert(0, _bar(say("memory_gpu"), gpu, gpu + known.get("memory/cuda_free_gb", 0.0), busy))
    if run := known.get("memory/rss_gb", 0.0) + known.get("memory/workers_gb", 0.0):
        shown.insert(0, MemoryBar(say("memory_run"), say("memory_used", used=f"{run:.1f}"), run / total))
    return shown


def _bar(name: str, used: float, total: float, busy: float | None = None) -> MemoryBar:
    """`used` and `total` in units of 1e9 bytes, `busy` as a share."""
    text = say("memory_of", used=f"{used:.1f}", total=f"{total:.0f}")
    text += say("memory_busy", busy=f"{100 * busy:.0f}") if busy is not None else ""
    return MemoryBar(name, text, used / total if total else None)
