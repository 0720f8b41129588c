"""Channels of a recording: one of them, or their mean."""

import logging

import numpy as np

from stentor.errors import AudioError

log = logging.getLogger("stentor")

CANCELLED = 0.01
"""Power of the mean, relative to the loudest channel, under which the channels cancel each other out. Of two channels
that have nothing in common it is 0.5, of speech on one of two 0.25."""
MOST = 64
"""Most channels of an array; with more it is no audio, or the wrong way round."""
_warned: set[str] = set()


def to_mono(samples: np.ndarray, name: str, channel: int | None = None) -> np.ndarray:
    """`samples` [frames, channels] as [frames]: the mean of the channels, or `channel` alone (from 0).

    Of channels that cancel each other out (one is the other upside down) the first loud one is taken, with a warning
    for each `name`. Raises `AudioError` (`no_channel`) for a channel that is not there.
    """
    count = samples.shape[1]
    if channel is not None:
        if channel >= count:
            raise AudioError(
                f"{name} has {count} channel{'s' * (count > 1)}, counted from 0: there is no channel {channel}.",
                "no_channel",
            )
        return np.ascontiguousarray(samples[:, channel])
    if count == 1:
        return np.ascontiguousarray(samples[:, 0])
    mono = samples.mean(axis=1)
    powers = np.square(samples).mean(axis=0) if len(samples) else np.zeros(count)
    if not np.square(mono).sum() < CANCELLED * len(mono) * powers.max():
        return mono
    first = int(np.argmax(powers > 0.1 * powers.max()))
    if name not in _warned:
        _warned.add(name)
        log.warning(
            "%s: its channels cancel each other out (opposite polarity), so only channel %d is used.", name, first
        )
    return np.ascontiguousarray(samples[:, first])


def frames_first(audio: np.ndarray) -> np.ndarray:
    """An array [samples], [samples, channels] (as soundfile reads it) or [channels, samples] (as torchaudio does) as
    [samples, channels]: the shorter side are the channels. Raises `AudioError` for anything else."""
    if audio.ndim not in (1, 2) or not audio.size or (audio.ndim == 2 and min(audio.shape) > MOST):
        raise AudioError(
            f"Audio must be [samples], [samples, channels] or [channels, samples], not {list(audio.shape)}.", "empty"
        )
    if audio.ndim == 1:
        return audio[:, None]
    return audio.T if audio.shape[0] < audio.shape[1] else audio
