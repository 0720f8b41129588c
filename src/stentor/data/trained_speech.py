"""Trained speech: what the clips were like that a recogniser was trained on, so that it is given such clips afterwards.

A model that heard 0.1 to 0.3 seconds of quiet around speech is lost where a clip begins with speech, and one that never
heard a pause of a second inside a clip is lost after one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from stentor.audio.activity import speech_with_room
from stentor.data.batch import Example
from stentor.data.cut import RATE, words_of
from stentor.data.load_audio import load_audio
from stentor.errors import AudioError

if TYPE_CHECKING:
    from lhotse.cut import Cut

LEAST_ROOM, MOST_ROOM = 0.1, 0.5
"""Seconds of room that a clip is given. Where training clips have less, clips are given as they are: at so small a room
soft consonants would be cut off."""
MOST_PAUSE = 2.0
"""Seconds of silence that a window holds at most, however long the pauses in training were."""
LISTENED = 64
"""Clips without word times whose audio is read to measure their room."""


@dataclass
class TrainedSpeech:
    """Room, length and pauses of the training clips, all in seconds. None: unknown, as in exports of before it was
    written down; clips are then given as they are."""

    room: float | None = None
    """Quiet before and after the speech of a clip."""
    longest: float | None = None
    """The longest clip."""
    pause: float | None = None
    """The longest pause between two words of a clip, where word times are known."""

    @classmethod
    def of_export(cls, facts: Mapping[str, Any]) -> TrainedSpeech:
        """From the contents of preprocessor_config.json."""
        return cls(**facts.get("trained_speech", {}))

    def measure(self, cuts: Sequence[Cut]) -> None:
        """Take note of training clips. Their room is the median, by word times, or where there are none in the audio
        of `LISTENED` clips."""
        rooms = []
        for cut in cuts:
            self.longest = max(self.longest or 0.0, cut.duration)
            if words := words_of(cut):
                rooms += [words[0]["start"], cut.duration - words[-1]["end"]]
                self.pause = max(self.pause or 0.0, *(b["start"] - a["end"] for a, b in pairwise(words)), 0.0)
        for cut in [] if rooms else cuts[:: max(1, len(cuts) // LISTENED)]:
            rooms += _audible_room(cut)
        if rooms:
            room = round(min(median(rooms), MOST_ROOM), 3)
            self.room = room if room >= LEAST_ROOM else None

    def window_seconds(self, limit: float) -> float:
        """Longest window of speech, before it is given its room, for a model that takes clips of up to `limit`."""
        longest = min(limit, self.longest or limit)
        return longest - 2 * (self.room or 0.0) if longest > 4 * (self.room or 0.0) else longest

    @property
    def pause_limit(self) -> float | None:
        """Longest silence that a window may hold: as in training, but at least the room around it. None: unknown."""
        return None if self.room is None or self.pause is None else max(self.room, min(self.pause, MOST_PAUSE))


class StreamedSpeech(TrainedSpeech):
    """Pad of a model whose transcript of a file is that of a stream, where speech gets no silence around it."""

    def __init__(self, trained: TrainedSpeech):
        super().__init__(None, trained.longest, trained.pause)

    def measure(self, cuts: Sequence[Cut]) -> None:
        super().measure(cuts)
        self.room = None


def with_room(
    trained: TrainedSpeech | None, processor: Any, examples: Sequence[Example]
) -> tuple[list[Example], list[float]]:
    """The examples with as much quiet around their speech as the model heard in training, and the seconds by which
    each begins earlier. A clip that would get too long for the model stays as it is, and so do all where no room is
    known."""
    if trained is None or trained.room is None:
        return list(examples), [0.0] * len(examples)
    limit = processor.max_seconds
    roomy, earlier = [], []
    for example in examples:
        assert example.audio is not None
        audio, seconds = speech_with_room(example.audio, processor.sample_rate, trained.room)
        if limit is not None and len(audio) > max(limit * processor.sample_rate, len(example.audio)):
            audio, seconds = example.audio, 0.0
        roomy.append(dataclasses.replace(example, audio=audio))
        earlier.append(seconds)
    return roomy, earlier


def _audible_room(cut: Cut) -> list[float]:
    """Seconds before and after the speech of a clip; empty without speech, or without readable audio."""
    try:
        audio = load_audio(cut)
    except AudioError:
        return []
    trimmed, earlier = speech_with_room(audio, RATE, 0.0)
    return [-earlier, (len(audio) - len(trimmed)) / RATE + earlier] if len(trimmed) < len(audio) else []
