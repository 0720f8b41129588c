"""Spans: stretches of time as [start, end] in seconds, and segments, which also name the speaker."""

from collections.abc import Iterable, Mapping
from typing import Any


def merge_spans(spans: Iterable[Iterable[float]]) -> list[list[float]]:
    """[start, end] spans in order, overlapping and touching ones merged."""
    merged: list[list[float]] = []
    for start, end in sorted((a, b) for a, b in spans):
        if merged and start <= merged[-1][1] + 1e-6:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def clip_spans(spans: Iterable[Iterable[float]], duration: float) -> list[list[float]]:
    """`merge_spans` of what lies between 0 and `duration`, to 1 us."""
    inside = [(round(max(a, 0.0), 6), round(min(b, duration), 6)) for a, b in spans]
    return merge_spans((a, b) for a, b in inside if b > a)


def merge_segments(segments: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The segments in order of start with overlapping ones of one speaker merged, and how many were merged away.
    Segments that only touch stay apart."""
    merged: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}  # by speaker
    count = 0
    for segment in sorted(segments, key=lambda s: (s["start"], s["end"])):
        count += 1
        previous = last.get(segment["speaker"])
        # To the microsecond: a start plus a duration is off by less than that.
        if previous is not None and segment["start"] < previous["end"] - 1e-6:
            previous["end"] = max(previous["end"], segment["end"])
        else:
            merged.append(dict(segment))
            last[segment["speaker"]] = merged[-1]
    return merged, count - len(merged)
