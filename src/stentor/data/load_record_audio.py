"""From the manifest record that a prediction carries to its sound, for reports and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def load_record(record: Mapping[str, Any], rate: int = 16000) -> np.ndarray | None:
    """The audio of a record as `record_from_cut` writes it: float32 [samples] at `rate` Hz, mono.

    Records with a `voice` are spoken again by the built-in voice; those with `hub` lie in the data set's cache, those
    with `tar` in a tar file; those with `parts` are joined again, turns of simulated conversations with their levels,
    rooms and noise. None when the record has none of these (audio that was in memory, codec tokens). Raises
    `AudioError` when a file cannot be read.
    """
    if (shaped := record.get("mixed_turn")) is not None:
        return _part({k: v for k, v in record.items() if k != "mixed_turn"}, shaped, rate)
    if (noise := record.get("made_noise")) is not None:
        from stentor.data.load_audio import make_noise

        return _piece(make_noise(noise, rate), record, rate)
    if path := record.get("audio_path"):
        from stentor.audio.io import read

        return read(path, rate=rate, start=record.get("start", 0.0), duration=record.get("duration"))
    if voice := record.get("voice"):
        from stentor.audio.synth import say

        return _piece(say(**voice).audio_at(rate), record, rate)
    if place := record.get("tar") or record.get("hub"):
        from stentor.data.embedded_audio import at

        return at(place, record.get("id", ""), rate, record.get("start", 0.0), record.get("duration"))
    if parts := record.get("parts"):
        import numpy as np

        joined = np.zeros(round(record["duration"] * rate), np.float32)
        for part in parts:
            first = round(part["at"] * rate)
            audio = load_record(part, rate)[: len(joined) - first]  # type: ignore[index]  # parts always have audio
            joined[first : first + len(audio)] += audio
        return joined
    return None


def _piece(audio: np.ndarray, record: Mapping[str, Any], rate: int) -> np.ndarray:
    """What a record means of audio that was made as a whole."""
    first = round(record.get("start", 0.0) * rate)
    seconds = record.get("duration")
    return audio[first:] if seconds is None else audio[first : first + round(seconds * rate)]


def _part(record: Mapping[str, Any], shaped: Mapping[str, Any], rate: int) -> np.ndarray | None:
    """A turn of a simulated conversation, with its echo where the turn is whole."""
    from stentor.data.load_audio import shape

    whole = load_record({**record, "start": shaped["first"], "duration": shaped["seconds"]}, rate)
    if whole is None:
        return None
    first = round((record.get("start", 0.0) - shaped["first"]) * rate)
    last = first + round(record["duration"] * rate)
    audio = shape(whole, dict(shaped), rate)
    return audio[first:] if last >= len(whole) - 1 else audio[first:last]
