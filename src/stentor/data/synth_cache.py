"""Utterances of the built-in voice, kept in memory once spoken.

Listing a `synth` source speaks every utterance (its exact duration and word times are metadata); loader workers that
are forked afterwards find the audio here instead of speaking it again in each epoch.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.processes import plain_signals
from stentor.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

BYTES = 256 * 2**20
"""Size of the memory: about two hours of speech."""
AT_ONCE = 64
"""Utterances that a helper process is given at a time."""

_memory: OrderedDict[tuple[Any, ...], np.ndarray] = OrderedDict()
_held = 0

Request = dict[str, Any]
"""Arguments of `stentor.audio.synth.say`: text, voice, speed, pitch."""


def audio(request: Request, rate: int) -> np.ndarray:
    """float32 [samples] at `rate` Hz; the same samples whether they come from memory or are spoken now."""
    import numpy as np

    from stentor.audio.synth import RATE, say

    key = tuple(request.values())
    if rate != RATE:
        return say(**request).audio_at(rate)
    if key not in _memory:
        _keep(key, _pcm(say(**request).audio))
    _memory.move_to_end(key)
    return _memory[key].astype(np.float32) / 32768


def speak_all(requests: Sequence[Request]) -> Iterator[tuple[int, list[dict[str, Any]]] | str]:
    """(samples at 16 kHz, word times) of each request in order, or the reason why it cannot be spoken.

    Uses this process's share of the cores where it can fork and there is enough to do.
    """
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    jobs = max(1, jobs // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if jobs == 1 or len(requests) < 4 * AT_ONCE or multiprocessing.current_process().daemon:
        yield from (_kept(request, _speak(request)) for request in requests)
        return
    with multiprocessing.get_context("fork").Pool(min(jobs, 8), initializer=plain_signals) as pool:
        for request, spoken in zip(requests, pool.imap(_speak, requests, AT_ONCE)):
            yield _kept(request, spoken)


def _kept(request: Request, spoken: Any) -> tuple[int, list[dict[str, Any]]] | str:
    if isinstance(spoken, str):
        return spoken
    pcm, words = spoken
    _keep(tuple(request.values()), pcm)
    return len(pcm), words


def _speak(request: Request) -> tuple[np.ndarray, list[dict[str, Any]]] | str:
    from stentor.audio.synth import say

    try:
        speech = say(**request)
    except ConfigError as error:
        return str(error)
    return _pcm(speech.audio), speech.words


def _pcm(samples: np.ndarray) -> np.ndarray:
    """int16 [samples]."""
    import numpy as np

    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


def _keep(key: tuple[Any, ...], pcm: np.ndarray) -> None:
    global _held
    if key not in _memory:
        _memory[key] = pcm
        _held += pcm.nbytes
        while _held > BYTES and len(_memory) > 1:
            _held -= _memory.popitem(last=False)[1].nbytes
