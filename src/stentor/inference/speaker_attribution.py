"""Speaker attribution: assign the speakers of a diarization to the words and segments of a transcript."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from stentor.inference.vad import Window

SHORTEST = 0.4
"""Minimum seconds of speech for a separate window: less is too short to be recognised."""


class SpeakerTurns:
    """The segments of a diarization, `{"speaker", "start", "end"}` in seconds. May be empty."""

    def __init__(self, segments: Sequence[dict[str, Any]]):
        self.segments = sorted(segments, key=lambda s: (s["start"], s["end"]))
        self.names = list(dict.fromkeys(s["speaker"] for s in self.segments))
        self.starts = np.array([s["start"] for s in self.segments])
        self.ends = np.array([s["end"] for s in self.segments])
        self.indices = np.array([self.names.index(s["speaker"]) for s in self.segments], int)

    def speaker(self, start: float, end: float, before: str | None = None) -> str | None:
        """Return the speaker who talks most between two times; the nearest one if no one does; None without speakers.

        If several talk equally long, `before` (the previous speaker) is preferred, then the one who began last.
        """
        if not self.names:
            return None
        shared = np.minimum(self.ends, end) - np.maximum(self.starts, start)  # negative: how far away
        seconds = np.bincount(self.indices, np.maximum(shared, 0), len(self.names))
        near = np.flatnonzero(seconds >= seconds.max() - 1e-6) if shared.max() > 0 else self.indices[[shared.argmax()]]
        if before in self.names and self.names.index(before) in near:
            return before
        if len(near) == 1:
            return self.names[near[0]]
        return self.names[self.indices[np.where(np.isin(self.indices, near) & (shared > 0), self.starts, -1).argmax()]]

    def speakers(self, words: Sequence[dict[str, Any]]) -> list[str | None]:
        """Return the speaker of each word (`start`, `end`); the words are in order."""
        names: list[str | None] = []
        for word in words:
            names.append(self.speaker(word["start"], word["end"], names[-1] if names else None))
        return names

    def changes(self) -> list[tuple[float, float, str]]:
        """Return (start, end, speaker) of stretches with one speaker, in order and without overlap.

        If several talk, the one who began first counts until they stop. Stretches under `SHORTEST` are left out.
        """
        stretches: list[tuple[float, float, str]] = []
        for segment in self.segments:
            start, end, name = segment["start"], segment["end"], segment["speaker"]
            if stretches:
                start = max(start, stretches[-1][1])
            if end - start < SHORTEST:
                continue
            if stretches and stretches[-1][2] == name:
                stretches[-1] = (stretches[-1][0], end, name)
            else:
                stretches.append((start, end, name))
        return stretches


def divide_at_turns(windows: Sequence[Window], turns: SpeakerTurns, rate: int) -> list[Window]:
    """Return the windows, also cut in the middle between two consecutive speakers."""
    cuts = [round((a[1] + b[0]) / 2 * rate) for a, b in pairwise(turns.changes())]
    least = round(SHORTEST * rate)
    parts: list[Window] = []
    for window in windows:
        start = window.start
        for cut in cuts:
            if max(start, window.speech_start) + least <= cut <= window.speech_end - least:
                parts.append(window.part(start, cut))
                start = cut
        parts.append(window.part(start, window.end))
    return parts


def split_by_speaker(segment: dict[str, Any], words: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split a segment into one for each run of words of one speaker. `words` are those of its text, in order, with
    times and `speaker`."""
    starts, end = [], 0
    for word in words:
        starts.append(segment["text"].index(word["word"], end))
        end = starts[-1] + len(word["word"])
    firsts = [i for i in range(len(words)) if i == 0 or words[i]["speaker"] != words[i - 1]["speaker"]]
    parts = []
    for first, after in pairwise([*firsts, len(words)]):
        begin = 0 if first == 0 else starts[first]
        end = len(segment["text"]) if after == len(words) else starts[after]
        part = {**segment, "speaker": words[first]["speaker"], "text": segment["text"][begin:end].strip()}
        if len(firsts) > 1:
            part |= {"start": words[first]["start"], "end": words[after - 1]["end"]}
        parts.append(_ordered(part))
    return parts


def with_speaker(segment: dict[str, Any], turns: SpeakerTurns, before: str | None = None) -> dict[str, Any]:
    """Return the segment with the speaker who talks most in it; unchanged if there are no speakers."""
    name = turns.speaker(segment["start"], segment["end"], before)
    return segment if name is None else _ordered({**segment, "speaker": name})


def _ordered(segment: dict[str, Any]) -> dict[str, Any]:
    """Return the segment with its keys in the order of the JSON contract."""
    return {k: segment[k] for k in ("start", "end", "speaker", "text") if k in segment} | segment
