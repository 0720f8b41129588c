"""From the manifest record that a prediction carries to its sound, for reports and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def load_record(record: Mapping[str, Any], rate: int = 16000) -> np.ndarray | None:
    """The audio of a record as `record_from_cut` writes it: float32 [samples] at `rate` Hz, mono.

    Records with a `voice` are spoken again by the built-in voice. None when the record has neither a file nor a voice
    (cuts that were joined or mixed in memory). Raises `AudioError` when the file cannot be read.
    """
    if voice := record.get("voice"):
        from stentor.audio.synth import say

        return say(**voice).audio_at(rate)
    if path := record.get("audio_path"):
        from stentor.audio.io import read

        return read(path, rate=rate, start=record.get("start", 0.0), duration=record.get("duration"))
    return None
