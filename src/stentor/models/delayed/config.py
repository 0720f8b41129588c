"""Delayed streams: models that read a frame of audio and the token before, and write a token for each frame (Zeghidour
et al. 2025, arXiv 2509.08753; Voxtral Realtime: arXiv 2602.11298)."""

from __future__ import annotations

import math

from pydantic import model_validator

from stentor.errors import ConfigError
from stentor.section import Section


class DelayedStream(Section):
    """Delay between a word and its output."""

    delay: float | tuple[float, float]
    """Seconds. Two of them: the least and the most, between which each clip's is drawn in training, so that one model
    serves every delay between them; for models that get their delay as input."""

    @model_validator(mode="after")
    def _ordered(self) -> DelayedStream:
        if not 0 < self.limits[0] <= self.limits[1]:
            raise ValueError("delay: give seconds above 0, or the least and the most, such as [0.16, 2.4]")
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the most seconds."""
        return self.delay if isinstance(self.delay, tuple) else (self.delay, self.delay)


def in_frames(seconds: float, rate: float) -> int:
    """Frames of a delay. Raises ConfigError where it is no whole number of them."""
    frames = seconds * rate
    if round(frames) < 1 or not math.isclose(round(frames), frames, abs_tol=1e-6):
        raise ConfigError(
            f"model.stream.delay: {seconds:g} s must be a whole number of frames of {1 / rate:g} s, one at least."
        )
    return round(frames)
