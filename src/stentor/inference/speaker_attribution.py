"""Who said it: speakers for the words and segments of a transcript, from a diarization of the same recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from stentor.inference.vad import Window

SHORTEST = 0.4
"""Seconds of somebody's speech that are worth a window of their own: of less, a recogniser makes nothing."""


class Turns:
    """The segments of a diarization, `{"speaker", "start", "end"}` in seconds, asked who talks when. May be empty."""

    def __init__(self, segments: Sequence[dict[str, Any]]):
        self.segments = sorted(segments, key=lambda s: (s["start"], s["end"]))
        self.names = list(dict.fromkeys(s["speaker"] for s in self.segments))
        self.starts = np.array([s["start"] for s in self.segments])
        self.ends = np.array([s["end"] for s in self.segments])
        self.who = np.array([self.names.index(s["speaker"]) for s in self.segments], int)

    def speaker(self, start: float, end: float, before: str | None = None) -> str | None:
        """Who talks most between two times; the nearest speaker when nobody does, None when nobody does at all.

        Of speakers who talk equally long, `before`, who spoke before that; otherwise who began last.
        """
        if not self.names:
            return None
        shared = np.minimum(self.ends, end) - np.maximum(self.starts, start)  # negative: how far away
        seconds = np.bincount(self.who, np.maximum(shared, 0), len(self.names))
        near = np.flatnonzero(seconds >= seconds.max() - 1e-6) if shared.max() > 0 else self.who[[shared.argmax()]]
        if before in self.names and self.names.index(before) in near:
            return before
        if len(near) == 1:
            return self.names[near[0]]
        return self.names[self.who[np.where(np.isin(self.who, near) & (shared > 0), self.starts, -1).argmax()]]

    def speakers(self, words: Sequence[dict[str, Any]]) -> list[str | None]:
        """Who says each of the words (`start`, `end`), which are in order."""
        found: list[str | None] = []
        for word in words:
            found.append(self.speaker(word["start"], word["end"], found[-1] if found else None))
        return found

    def changes(self) -> list[tuple[float, float, str]]:
        """(start, end, speaker) of the stretches in which one speaker is followed, in order and apart.

        Where several talk, it is the one who began, until that one stops; stretches under `SHORTEST` are left out.
        """
        found: list[tuple[float, float, str]] = []
        for segment in self.segments:
            start, end, name = segment["start"], segment["end"], segment["speaker"]
            if found:
                start = max(start, found[-1][1])
            if end - start < SHORTEST:
                continue
            if found and found[-1][2] == name:
                found[-1] = (found[-1][0], end, name)
            else:
                found.append((start, end, name))
        return found


def divided(windows: Sequence[Window], turns: Turns, rate: int) -> list[Window]:
    """Windows that are cut where one speaker follows another: in the middle between the two."""
    cuts = [round((a[1] + b[0]) / 2 * rate) for a, b in pairwise(turns.changes())]
    least = round(SHORTEST * rate)
    found: list[Window] = []
    for window in windows:
        at = window.start
        for cut in cuts:
            if at + least <= cut <= window.end - least:
                found.append(_part(window, at, cut))
                at = cut
        found.append(_part(window, at, window.end))
    return found


def _part(window: Window, start: int, end: int) -> Window:
    speech_start = min(max(window.speech_start, start), end)
    return replace(
        window,
        start=start,
        end=end,
        speech_start=speech_start,
        speech_end=max(speech_start, min(window.speech_end, end)),
    )


def said_by(
    segment: dict[str, Any], words: Sequence[dict[str, Any]], spans: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """A segment as one for each run of words of one speaker. `words` have times and `speaker`; `spans` are their
    characters [start, end) in the segment's text."""
    firsts = [i for i in range(len(words)) if i == 0 or words[i]["speaker"] != words[i - 1]["speaker"]]
    found = []
    for first, after in pairwise([*firsts, len(words)]):
        begin = 0 if first == 0 else spans[first][0]
        end = len(segment["text"]) if after == len(words) else spans[after][0]
        times = {"start": words[first]["start"], "end": words[after - 1]["end"]}
        own = {"speaker": words[first]["speaker"], "text": segment["text"][begin:end].strip()}
        found.append(_ordered({**segment, **times, **own} if len(firsts) > 1 else {**segment, **own}))
    return found


def with_speakers(segment: dict[str, Any], turns: Turns, before: str | None = None) -> dict[str, Any]:
    """The segment with whoever talks most in it; as it is when nobody talks anywhere."""
    name = turns.speaker(segment["start"], segment["end"], before)
    return segment if name is None else _ordered({**segment, "speaker": name})


def _ordered(segment: dict[str, Any]) -> dict[str, Any]:
    """Keys in the order of the contract."""
    first = ("start", "end", "speaker", "text")
    return {k: segment[k] for k in first if k in segment} | {k: v for k, v in segment.items() if k not in first}
