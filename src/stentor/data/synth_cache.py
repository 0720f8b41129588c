"""Synthesis cache: utterances of the built-in voice, held in memory once synthesized.

Listing a `synth` source synthesizes every utterance (its exact duration and word times are metadata); loader workers
that are forked afterwards find the audio here instead of synthesizing it again in each epoch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.system import can_fork, usable_cores
from stentor.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES = 512 * 2**20
"""Size of the cache: about four hours of speech."""
CHUNK = 64
"""Utterances that a worker process takes at a time."""

_cache: OrderedDict[tuple[Any, ...], tuple[np.ndarray, list[dict[str, Any]]]] = OrderedDict()
"""PCM and word times by arguments."""
_num_bytes = 0

SynthArguments = dict[str, Any]
"""Arguments of `stentor.audio.synth.say`: text, voice, speed, pitch."""


def synthesized_audio(arguments: SynthArguments, rate: int) -> np.ndarray:
    """float32 [samples] at `rate` Hz; the same samples whether they come from the cache or are synthesized now."""
    import numpy as np

    from stentor.audio.io import pcm16
    from stentor.audio.synth import RATE, say

    key = tuple(arguments.values())
    if rate != RATE:
        return say(**arguments).audio_at(rate)
    if key not in _cache:
        speech = say(**arguments)
        _store(key, pcm16(speech.audio), speech.words)
    _cache.move_to_end(key)
    return _cache[key][0].astype(np.float32) / 32768


def synthesize_all(utterances: Sequence[SynthArguments]) -> Iterator[tuple[int, list[dict[str, Any]]] | str]:
    """(samples at 16 kHz, word times) of each utterance in order, or the reason why it cannot be synthesized. Uses this
    process's share of the cores where it can fork and there is enough to do; what the cache holds is not synthesized
    again."""
    cached = {tuple(arguments.values()) for arguments in utterances} & _cache.keys()
    missing = [arguments for arguments in utterances if tuple(arguments.values()) not in cached]
    results = _synthesize_missing(missing)
    for arguments in utterances:
        if (key := tuple(arguments.values())) in cached and key in _cache:
            pcm, words = _cache[key]
            yield len(pcm), words
        elif key in cached:  # it fell out of the cache since
            yield _cached(arguments, _synthesize(arguments))
        else:
            yield next(results)


def _synthesize_missing(utterances: Sequence[SynthArguments]) -> Iterator[tuple[int, list[dict[str, Any]]] | str]:
    jobs = max(1, int(usable_cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if jobs == 1 or not can_fork() or len(utterances) < 4 * CHUNK or multiprocessing.current_process().daemon:
        yield from (_cached(arguments, _synthesize(arguments)) for arguments in utterances)
        return
    with multiprocessing.get_context("fork").Pool(min(jobs, 8), initializer=plain_signals) as pool:
        for arguments, result in zip(utterances, pool.imap(_synthesize, utterances, CHUNK)):
            yield _cached(arguments, result)


def _cached(arguments: SynthArguments, result: Any) -> tuple[int, list[dict[str, Any]]] | str:
    if isinstance(result, str):
        return result
    pcm, words = result
    _store(tuple(arguments.values()), pcm, words)
    return len(pcm), words


def _synthesize(arguments: SynthArguments) -> tuple[np.ndarray, list[dict[str, Any]]] | str:
    from stentor.audio.io import pcm16
    from stentor.audio.synth import say

    try:
        speech = say(**arguments)
    except ConfigError as error:
        return str(error)
    return pcm16(speech.audio), speech.words


def _store(key: tuple[Any, ...], pcm: np.ndarray, words: list[dict[str, Any]]) -> None:
    global _num_bytes
    if key not in _cache:
        _cache[key] = pcm, words
        _num_bytes += pcm.nbytes
        while _num_bytes > MAX_BYTES and len(_cache) > 1:
            _num_bytes -= _cache.popitem(last=False)[1][0].nbytes


def plain_signals() -> None:
    """End at SIGTERM, whatever the parent does then, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
