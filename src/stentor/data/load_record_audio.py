"""Audio of a manifest record that a prediction carries, for reports and trackers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stentor.data.cut import turn_of
from stentor.data.fields import channel_of
from stentor.data.load_audio import crop, make_noise, turn_piece


def load_record(record: Mapping[str, Any], rate: int = 16000) -> np.ndarray | None:
    """The audio of a record as `record_from_cut` writes it: float32 [samples] at `rate` Hz, mono.

    Records with a `voice` are spoken again by the built-in voice; those with `hub` lie in the data set's cache, those
    with `tar` in a tar file; those with `parts` are joined again, turns of simulated conversations with their levels,
    rooms and noise. None when the record has none of these (audio that was in memory, codec tokens). Raises
    `AudioError` when a file cannot be read.
    """
    start, duration = record.get("start", 0.0), record.get("duration")
    if (turn := turn_of(record)) is not None:
        return _load_turn({k: v for k, v in record.items() if k != "mixed_turn"}, turn, rate)
    if isinstance(noise := record.get("made_noise"), dict) and not record.get("audio_path"):
        return crop(make_noise(noise, rate), start, duration, rate)
    if path := record.get("audio_path"):
        from stentor.audio.io import read
        from stentor.data.embedded_audio import audio_file

        with audio_file(path) as file:
            return read(file, rate=rate, start=start, duration=duration, channel=channel_of(record))
    if voice := record.get("voice"):
        from stentor.audio.synth import say

        return crop(say(**voice).audio_at(rate), start, duration, rate)
    if location := record.get("tar") or record.get("hub"):
        from stentor.data.embedded_audio import load_at

        return load_at(location, record.get("id", ""), rate, start, duration, channel_of(record))
    if parts := record.get("parts"):
        joined = np.zeros(round(record["duration"] * rate), np.float32)
        for part in parts:
            first = round(part["at"] * rate)
            audio = load_record(part, rate)[: len(joined) - first]  # type: ignore[index]  # parts always have audio
            joined[first : first + len(audio)] += audio
        return joined
    return None


def _load_turn(record: Mapping[str, Any], turn: Mapping[str, Any], rate: int) -> np.ndarray | None:
    """A turn of a simulated conversation, with its echo where the turn was not cut short."""
    seconds = turn["seconds"] * turn.get("speed", 1.0)
    dry = load_record({**record, "start": turn["first"], "duration": seconds}, rate)
    start, duration = record.get("start", 0.0), record["duration"]
    return None if dry is None else turn_piece(dry, turn, start, duration, rate, echo=True)
