"""Known speakers: names for the speakers of a recording, from a few seconds of each.

The samples are put before the recording, and whoever the diarizer hears in a sample has its name from there on: so any
diarizer can do it, by the rule by which it follows speakers through a recording.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stentor.audio.selection import WHOLE
from stentor.serve.errors import ApiError, blaming
from stentor.serve.recordings import UploadedRecording

FIELD = "known_speaker_references"
SHORTEST, LONGEST = 2.0, 10.0
PAUSE = 1.0
"""Seconds of silence after each sample."""

Diarizer = Callable[[Any], list[dict[str, Any]]]


def write_references(urls: Sequence[str], recording: UploadedRecording) -> list[UploadedRecording]:
    """Recordings of the audio of data URLs, in the folder of the one that they are for. Raises ApiError for what is
    none."""
    references = []
    for number, url in enumerate(urls, 1):
        head, _, data = url.partition(",")
        path = recording.path.with_name(f"reference{number}")
        try:
            if not (head.startswith("data:") and head.endswith(";base64")):
                raise ValueError
            path.write_bytes(base64.b64decode(data, validate=True))
        except ValueError:
            raise ApiError(400, "A reference is a data URL of audio: data:audio/wav;base64,...", FIELD) from None
        references.append(replace(recording, path=path, name=f"reference {number}", most_seconds=LONGEST))
    return references


def naming(diarizer: Diarizer, names: Sequence[str], references: Sequence[UploadedRecording]) -> Diarizer:
    """The diarizer, giving those who are heard in `references` their names. It raises ApiError for a reference that is
    no audio of 2 to 10 s."""

    def segments(recording: Any) -> list[dict[str, Any]]:
        introduced = _Introduced(recording, references)
        turns = diarizer(introduced)
        named: dict[str, str] = {}
        for name, (start, end) in zip(names, introduced.spans, strict=True):
            shares: dict[str, float] = defaultdict(float)
            for turn in turns:
                shares[turn["speaker"]] += max(0.0, min(turn["end"], end) - max(turn["start"], start))
            if shares and max(shares.values()) > 0:
                named.setdefault(max(shares, key=shares.__getitem__), name)
        first = introduced.spans[-1][1] + PAUSE
        return [
            {
                "speaker": named.get(turn["speaker"], turn["speaker"]),
                "start": round(max(0.0, turn["start"] - first), 3),
                "end": round(turn["end"] - first, 3),
            }
            for turn in turns
            if turn["end"] > first
        ]

    return segments


class _Introduced:
    """A recording after its references."""

    selection = WHOLE

    def __init__(self, recording: Any, references: Sequence[UploadedRecording]):
        self.recording, self.references = recording, references
        self.name, self.rate, self.notes = recording.name, recording.rate, recording.notes
        self.spans: list[tuple[float, float]] = []

    def at(self, rate: int) -> _Introduced:
        # The same object: it is asked for its spans when it has been read, at whatever rate.
        self.recording, self.rate = self.recording.at(rate), rate
        return self

    def blocks(self) -> Iterator[np.ndarray]:
        start = 0.0
        for reference in self.references:
            with blaming(FIELD):
                audio = np.concatenate([np.zeros(0, np.float32), *reference.at(self.rate).blocks()])
            seconds = len(audio) / self.rate
            if seconds < SHORTEST:
                raise ApiError(400, f"{reference.name} is shorter than {SHORTEST:g} s.", FIELD)
            self.spans.append((start, start + seconds))
            start += seconds + PAUSE
            yield np.pad(audio, (0, round(PAUSE * self.rate)))
        yield from self.recording.blocks()
