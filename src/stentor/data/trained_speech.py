"""Trained speech: statistics of the clips that a recogniser was trained on, so that it gets similar clips in use.

A model trained with 0.1 to 0.3 seconds of quiet around speech fails where a clip begins with speech, and one trained
without pauses of a second inside a clip fails after one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from stentor.audio.activity import FRAME, EnergyDetector, runs, speech_with_room
from stentor.data.batch import Example
from stentor.data.cut import RATE, words_of
from stentor.data.load_audio import load_audio
from stentor.data.supervised import checked_words
from stentor.errors import AudioError

if TYPE_CHECKING:
    from lhotse.cut import Cut

LEAST_ROOM, MOST_ROOM = 0.1, 0.5
"""Seconds of room that a clip is given. Where training clips have less, clips are not changed: with so little room soft
consonants would be cut off."""
LONG_PAUSE = 2.0
"""Seconds of silence that a window does not hold, unless the model was trained with longer pauses."""
LISTENED = 64
"""Clips without word times whose audio is read to measure their room and long pauses."""


@dataclass
class TrainedSpeech:
    """Room, length and pauses of the training clips in seconds. None: unknown; clips are then not changed."""

    room: float | None = None
    """Quiet before and after the speech of a clip."""
    longest: float | None = None
    """The longest clip."""
    pause: float | None = None
    """The longest pause between two words of a clip; where no word times are known, one of more than `LONG_PAUSE`
    that is heard."""

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
            words = words_of(cut)
            if words and len(words) == len(checked_words(cut)):  # else pauses would hold words
                rooms += [words[0]["start"], cut.duration - words[-1]["end"]]
                self.pause = max(self.pause or 0.0, *(b["start"] - a["end"] for a, b in pairwise(words)), 0.0)
        for cut in [] if rooms else cuts[:: max(1, len(cuts) // LISTENED)]:
            room, pause = _heard(cut)
            rooms += room
            self.pause = max(self.pause or 0.0, pause) if pause > LONG_PAUSE else self.pause
        if rooms:
            middle = round(min(median(rooms), MOST_ROOM), 3)
            self.room = middle if middle >= LEAST_ROOM else None

    def window_seconds(self, limit: float) -> float:
        """Longest window of speech, before it is given its room, for a model that takes clips of up to `limit`."""
        longest = min(limit, self.longest or limit)
        return longest - 2 * (self.room or 0.0) if longest > 4 * (self.room or 0.0) else longest

    @property
    def pause_limit(self) -> float | None:
        """Longest silence that a window may hold: as in training, but at least the room around it. None: unknown, or
        clips are cut tightly and have no long pauses."""
        if self.pause is None or (self.room is None and self.pause <= LONG_PAUSE):
            return None
        return max(self.room or 0.0, self.pause)


class StreamedSpeech(TrainedSpeech):
    """Statistics for a model that transcribes files as streams, in which no silence is added around speech."""

    def __init__(self, trained: TrainedSpeech):
        super().__init__(None, trained.longest, trained.pause)

    def measure(self, cuts: Sequence[Cut]) -> None:
        super().measure(cuts)
        self.room = None


def measured(known: TrainedSpeech | None, cuts: Iterable[Cut]) -> TrainedSpeech | None:
    """Return what a model knows of its training clips, these included. One pretrained on clips of all kinds (None) only
    takes note of long pauses."""
    trained = known or TrainedSpeech()
    trained.measure(list(cuts))
    if known is None:
        return TrainedSpeech(pause=trained.pause) if (trained.pause or 0.0) > LONG_PAUSE else None
    return trained


def with_room(
    trained: TrainedSpeech | None, processor: Any, examples: Sequence[Example]
) -> tuple[list[Example], list[float]]:
    """The examples with as much quiet around their speech as in the model's training clips, and the seconds by which
    each begins earlier. Clips that would get too long for the model stay unchanged, as do all where no room is
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


def _heard(cut: Cut) -> tuple[list[float], float]:
    """Seconds before and after the speech of a clip, and of its longest pause; none without speech, or without readable
    audio."""
    try:
        audio = load_audio(cut)
    except AudioError:
        return [], 0.0
    speech = runs(EnergyDetector().activity([audio], RATE).speech)
    pause = max((float(b - a) * FRAME for a, b in zip(speech[:-1, 1], speech[1:, 0])), default=0.0)
    trimmed, earlier = speech_with_room(audio, RATE, 0.0)
    return [-earlier, (len(audio) - len(trimmed)) / RATE + earlier] if len(trimmed) < len(audio) else [], pause
