"""Live diarization, and a stream whose words have speakers.

Every `step` seconds the model reads a speaker cache followed by the last seconds of audio. The cache has, for each
speaker so far, the stretches in which the model was most certain and no one else spoke. The output that is active in a
speaker's stretches is that speaker; one that is active in none of them is a new speaker. This is the speaker cache of
Streaming Sortformer (Medennikov et al. 2025) with audio instead of embeddings, for any diarization model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.audio.resampler import Resampler
from stentor.errors import ConfigError
from stentor.inference.diarize import require_speakers
from stentor.inference.speaker_attribution import SpeakerTurns
from stentor.inference.stream.base import Event
from stentor.inference.stream.stream import BLOCK, Stream
from stentor.models.base import Bundle
from stentor.tasks.diarize.aggregate import NAME, hysteresis, stretches
from stentor.tasks.diarize.inference import label_audio
from stentor.tasks.diarize.speakers import nonoverlapping_frames
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.tracking import LINK
from stentor.text.written_words import joined

LONGEST = 20.0
"""Maximum seconds of audio in one step."""
STRETCH = (0.3, 1.0)
"""Minimum and maximum seconds of a stretch in the cache."""
FIRST = 2.0
"""Seconds of audio before the first step."""
HISTORY = 60.0
"""Seconds of segments that are kept for late words."""


@dataclass(eq=False)
class Stretch:
    """Audio, float32 [samples], in which only one speaker talks."""

    audio: np.ndarray
    frames: int
    margin: float
    """Probability of this speaker minus that of the others, mean over the frames."""


class OnlineDiarizer:
    """Live diarization of one recording; see `Model.online_diarizer`. Memory and time per step do not grow."""

    def __init__(
        self,
        bundle: Bundle,
        task: Diarize,
        name: str = "",
        step: float = 0.5,
        wait: float = 0.5,
        cache: float = 3.0,
        least: float = 0.7,
    ):
        """`step`: seconds between two steps; `wait`: seconds of audio after a frame before its speakers are decided;
        `cache`: maximum seconds of each speaker in the cache; `least`: seconds that a new speaker must talk alone.
        Raises ConfigError if the model, `name`, does not distinguish speakers."""
        require_speakers(task, name)
        self.bundle, self.task = bundle, task
        processor: Any = bundle.processor
        self.rate, self.frame_seconds = processor.sample_rate, processor.frame_seconds
        slots = task.labels.slots or task.labels.classes
        self.most = min(slots, task.windows.bounds[1] or slots)
        """Maximum number of speakers: as many as the model distinguishes at once, or as `task.windows` allows."""
        seconds = min(task.windows.window or task.chunk, LONGEST)
        self._step, self._wait, self._least = max(1, self._frames(step)), self._frames(wait), self._frames(least)
        self._cache_frames = max(1, self._frames(min(cache, seconds / 2 / self.most)))
        self._window_frames = max(self._frames(seconds) - self.most * self._cache_frames, self._step + self._wait)
        self.cache: list[list[Stretch]] = []
        """Stretches of each speaker."""
        self.names: list[str | None] = []
        """Names in order of first appearance; None for a new speaker without a decided frame."""
        self.segments: list[dict[str, Any]] = []
        """Segments `{"speaker", "start", "end"}` in seconds: those of the last minute, and always the last one."""
        self._audio = np.zeros(0, np.float32)
        self._first = self._end = self._decided = 0
        """Frames: the first of `_audio`, and the ends of what was read and of what was decided."""

    @property
    def decided(self) -> float:
        """Seconds of audio whose speakers are decided."""
        return self._decided * self.frame_seconds

    def feed(self, samples: np.ndarray) -> None:
        """Add audio, float32 [samples] at `rate` Hz."""
        self._audio = np.concatenate([self._audio, samples])
        while len(self._audio) >= self._samples(self._end + self._step):
            self._end += self._step
            if self._end >= self._frames(FIRST):
                self._look(self._end - self._wait)

    def finish(self) -> None:
        """End the recording."""
        while self._samples(self._end) < len(self._audio):
            self._end += 1
        if self._end > self._decided:
            self._look(self._end)

    def speaker(self, start: float, end: float, before: str | None = None) -> str | None:
        """Return the speaker who talks most between two times in seconds; see `SpeakerTurns.speaker`."""
        return SpeakerTurns(self.segments).speaker(start, end, before)

    def _frames(self, seconds: float) -> int:
        return round(seconds / self.frame_seconds)

    def _samples(self, frame: int) -> int:
        """Return the position in `_audio` at which a frame begins."""
        size = self.frame_seconds * self.rate
        return round(frame * size) - round(self._first * size)

    def _look(self, until: int) -> None:
        """Read the window that ends with frame `_end`; the speakers of the frames up to `until` become final."""
        first = max(self._end - self._window_frames, 0)
        self._audio, self._first = self._audio[self._samples(first) :], first
        margins, active, slots = self._hear(self._audio[: self._samples(self._end)])
        alone = nonoverlapping_frames(active)
        new = [slot for slot in range(active.shape[1]) if slot not in slots and self._somebody(alone[:, slot])]
        new = sorted(new, key=lambda slot: int(alone[:, slot].argmax()))[: self.most - len(slots)]
        self.cache += [[] for _ in new]
        self.names += [None for _ in new]
        fresh = slice(max(self._decided - first, 0), max(until - first, 0))
        for speaker, slot in enumerate([*slots, *new]):
            if slot is not None:
                lately = slice(0, len(active)) if slot in new else fresh  # everything that a new speaker has said
                self._remember(speaker, alone[:, slot], margins[:, slot], lately)
                for start, end in stretches(active[fresh, slot]) + fresh.start:
                    self._add(speaker, int(first + start), int(first + end))
        # A new speaker without a segment in the next step was a known one.
        stay = [k for k, name in enumerate(self.names) if name is not None or k >= len(slots)]
        self.cache, self.names = [self.cache[k] for k in stay], [self.names[k] for k in stay]
        self._decided = max(until, self._decided)
        past = self.decided - HISTORY
        self.segments = [s for s in self.segments[:-1] if s["end"] > past] + self.segments[-1:]

    def _hear(self, window: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int | None]]:
        """Return, for the window, the probability of each of the model's speakers minus that of the others, [T, S];
        their activity, bool [T, S]; and the column of each known speaker, None if unclear."""
        from scipy.optimize import linear_sum_assignment

        cached = [(speaker, stretch) for speaker, known in enumerate(self.cache) for stretch in known]
        audio = np.concatenate([*(stretch.audio for _, stretch in cached), window])
        ((scores, active, *_),) = label_audio(self.bundle, self.task, [audio])
        windows = self.task.windows
        if windows.threshold is not None or not self.task.labels.exclusive:
            active = hysteresis(scores, windows.threshold or 0.5, windows.offset)
        margins = 2 * scores - scores.sum(1, keepdims=True)
        owners = np.repeat([speaker for speaker, _ in cached], [stretch.frames for _, stretch in cached])
        agreement = np.array([scores[: len(owners)][owners == k].mean(0) for k in range(len(self.cache))])
        slots: list[int | None] = [None] * len(self.cache)
        least = LINK if len(self.cache) < self.most else 0.0  # no threshold if there cannot be a new speaker
        if len(self.cache):
            for speaker, slot in zip(*linear_sum_assignment(agreement, maximize=True), strict=True):
                if agreement[speaker, slot] >= least:
                    slots[speaker] = int(slot)
        start = 0
        for speaker, stretch in cached:
            if (slot := slots[speaker]) is not None:
                stretch.margin = (stretch.margin + float(margins[start : start + stretch.frames, slot].mean())) / 2
            start += stretch.frames
        return margins[start:], active[start:], slots

    def _somebody(self, alone: np.ndarray) -> bool:
        return any(end - start >= max(self._least, self._frames(STRETCH[0])) for start, end in stretches(alone))

    def _remember(self, speaker: int, alone: np.ndarray, margins: np.ndarray, lately: slice) -> None:
        """Update a speaker's cache with the most certain stretches of the cache and of the frames `lately`."""
        least, most = self._frames(STRETCH[0]), min(self._frames(STRETCH[1]), self._cache_frames)
        pool = list(self.cache[speaker])
        for run_start, run_end in (stretches(alone[lately]) + lately.start).tolist():
            for start in range(run_start, run_end - least + 1, most):
                end = min(start + most, run_end)
                samples = slice(*(self._samples(self._first + frame) for frame in (start, end)))
                pool.append(Stretch(self._audio[samples], end - start, float(margins[start:end].mean())))
        room, chosen = self._cache_frames, set()
        for stretch in sorted(pool, key=lambda stretch: -stretch.margin):
            if stretch.frames <= room:
                chosen.add(stretch)
                room -= stretch.frames
        self.cache[speaker] = [stretch for stretch in pool if stretch in chosen]

    def _add(self, speaker: int, start: int, end: int) -> None:
        """Add a segment of a speaker from frame `start` to `end`, or extend the last one."""
        if (name := self.names[speaker]) is None:
            name = self.names[speaker] = NAME.format(1 + sum(known is not None for known in self.names))
        times = {"start": round(start * self.frame_seconds, 3), "end": round(end * self.frame_seconds, 3)}
        last = next((s for s in self.segments if s["speaker"] == name and s["end"] == times["start"]), None)
        if last is None:
            self.segments.append({"speaker": name, **times})
        else:
            last["end"] = times["end"]


class SpeakerStream:
    """Live transcription with speakers, as `Stream`: each word event also has `speaker`, None before any speaker.

    A word becomes final when the diarizer has decided the speakers up to its end, at most its `step` plus `wait` later.
    Until then it is part of the partial text.
    """

    def __init__(self, stream: Stream, diarizer: OnlineDiarizer, rate: int | None = None):
        """`rate`: sample rate in Hz, by default the recogniser's. Raises ConfigError without word times."""
        if not stream.recogniser.timed:
            raise ConfigError(
                "This recogniser has no word times, which are needed to assign speakers: use a model for the task "
                "words, or leave out the diarizer."
            )
        self.stream, self.diarizer = stream, diarizer
        self.rate = rate or stream.recogniser.rate
        self._resampler = Resampler(self.rate, diarizer.rate)
        self._block = round(self.rate * BLOCK)
        self._fed = np.zeros(0, np.float32)
        self._samples = 0
        self._waiting: list[Event] = []
        self._partial = self._shown = ""
        self._before: str | None = None

    def feed(self, samples: np.ndarray) -> list[Event]:
        """Add audio, float32 [samples] from -1 to 1, and return the new events."""
        self._fed = np.concatenate([self._fed, self.stream.checked(samples)])
        events: list[Event] = []
        while len(self._fed) >= self._block:
            block, self._fed = self._fed[: self._block], self._fed[self._block :]
            self._diarize(block)
            events += self._known(self.stream.feed(block))
        return events

    def finish(self) -> list[Event]:
        """End the recording and return the remaining events."""
        self._diarize(self.stream.checked(self._fed), last=True)
        self.diarizer.finish()
        events = self.stream.feed(self._fed) + self.stream.finish()
        return self._known(events, ended=True)

    def _diarize(self, samples: np.ndarray, last: bool = False) -> None:
        self._samples += len(samples)
        self.diarizer.feed(self._resampler.add(samples, last))

    def _known(self, events: list[Event], ended: bool = False) -> list[Event]:
        """Return the events, new and waiting, that can be emitted now, in order."""
        for event in events:
            if event["type"] == "partial":
                self._partial = event["text"]
            else:
                self._waiting.append(event)
        known: list[Event] = []
        while self._waiting and (ended or self._waiting[0].get("end", 0.0) <= self.diarizer.decided):
            event = {**self._waiting.pop(0), "time": self._time()}
            if event["type"] == "word":
                self._before = self.diarizer.speaker(event["start"], event["end"], self._before)
                event["speaker"] = self._before
            known.append(event)
        text = joined([*(event["word"] for event in self._waiting if event["type"] == "word"), self._partial])
        if text != self._shown:
            self._shown = text
            known.append({"type": "partial", "text": text, "time": self._time()})
        return known

    def _time(self) -> float:
        return round(self._samples / self.rate, 3)
