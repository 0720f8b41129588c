"""Latency of streams: how long after a word was said it was known, and how often one was taken back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stentor.metrics.score import Score
from stentor.metrics.wer import matches
from stentor.text.normalize import bare
from stentor.text.written_words import written_words

Words = Sequence[Mapping[str, Any]]


@dataclass
class StreamedRecording:
    """A recording as it was heard: its events (see `stentor.inference.stream.base`), each with `done`, the second at
    which it would have been there on this machine, if the audio had come as it was spoken."""

    words: Words
    """Reference words, with `start` and `end` in seconds."""
    events: Sequence[Mapping[str, Any]]
    seconds: float
    computed: float
    """Seconds of computation."""

    def shown(self) -> list[tuple[float, float, list[str]]]:
        """All words that could be read after each event, with its `time` and `done`."""
        final: list[str] = []
        readings, partial = [], list[str]()
        for event in self.events:
            if event["type"] == "word":
                final.append(bare(event["word"]))
                partial = partial[1:]
            elif event["type"] == "partial":
                partial = [bare(word) for word in written_words(event["text"])]
            readings.append((event["time"], event["done"], [*final, *partial]))
        return readings


def stream_scores(recordings: Sequence[StreamedRecording]) -> dict[str, Score]:
    """Latencies in seconds, over the words that were recognised right: `final_p50`, `final_p90` (from a word's true end
    until it stays), `shown_p50` (until it can be read and is not taken back), `final_p90_computed` (with the time of
    computation); `first_p50`, from the start of the first word until there is anything; `churn`, words taken back for
    each word that stays; `rtf`, seconds of computation for each of audio."""
    final: list[float] = []
    computed: list[float] = []
    shown: list[float] = []
    first: list[float] = []
    taken_back = words = 0
    for recording in recordings:
        events = [event for event in recording.events if event["type"] == "word"]
        readings = recording.shown()
        truth = [bare(word["word"]) for word in recording.words]
        for i, k in matches(truth, [bare(event["word"]) for event in events]):
            end = recording.words[i]["end"]
            final.append(events[k]["time"] - end)
            computed.append(events[k]["done"] - end)
            shown.append(_since(readings, k) - end)
        if recording.words and (readings := [reading for reading in readings if reading[2]]):
            first.append(readings[0][0] - recording.words[0]["start"])
        taken_back += _taken_back([reading[2] for reading in readings])
        words += len(events)
    seconds = sum(recording.seconds for recording in recordings)
    quantiles = {
        "final_p50": (final, 0.5),
        "final_p90": (final, 0.9),
        "final_p90_computed": (computed, 0.9),
        "shown_p50": (shown, 0.5),
        "first_p50": (first, 0.5),
    }
    return {
        **{name: Score(_quantile(values, q), total=len(values)) for name, (values, q) in quantiles.items()},
        "churn": Score(taken_back / words if words else float("nan"), taken_back, words),
        "rtf": Score(sum(recording.computed for recording in recordings) / seconds if seconds else float("nan")),
    }


def _since(readings: Sequence[tuple[float, float, list[str]]], k: int) -> float:
    """When word `k` could be read as it stays."""
    last = readings[-1][2][k]
    since = readings[-1][0]
    for time, _, words in reversed(readings):
        if len(words) <= k or words[k] != last:
            break
        since = time
    return since


def _taken_back(readings: Sequence[list[str]]) -> int:
    """Words that were replaced or removed; a last word that was only continued does not count."""
    count = 0
    for before, after in pairwise(readings):
        for k, word in enumerate(before):
            goes_on = k == len(before) - 1 and k < len(after) and after[k].startswith(word)
            count += k >= len(after) or (after[k] != word and not goes_on)
    return count


def _quantile(values: Sequence[float], q: float) -> float:
    return round(float(np.quantile(values, q)), 4) if values else float("nan")
