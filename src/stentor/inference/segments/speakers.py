"""`speakers`: cut segments by speaker, with a diarization model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Reject, Segment, Stage, loaded

if TYPE_CHECKING:
    from stentor.inference.recording import Recording

Turn = tuple[float, float, frozenset[str]]
"""Start, end and speakers."""


class SpeakersStage(Stage):
    """Cut segments where the speaker changes and drop overlapped speech. Sets `speaker` to the id of the recording and
    the speaker's name from the diarization of the recording."""

    type: Literal["speakers"] = "speakers"
    model: str
    """Diarization model: run folder, export or Hub id, trained for the task `diarize`."""
    shortest: float = Field(1.0, ge=0)
    """Minimum seconds of a part; shorter ones are dropped."""
    pause: float = Field(0.5, ge=0)
    """Maximum seconds without a speaker that are added to the neighbouring speaker."""

    reasons: ClassVar = {
        "overlap": "several people speak at once",
        "no_speaker": "the diarization model finds no speaker",
        "too_short": "less speech of one speaker than `shortest`",
    }
    _device: str = "cpu"

    def setup(self, device: str) -> None:
        from stentor.inference.diarize import require_speakers

        self._device = device
        require_speakers(loaded(self.model, device).for_diarization(), self.model)

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        turns = loaded(self.model, self._device).speaker_segments()(recording) if segments else []
        for segment in segments:
            for start, end, names in joined(stretches(turns, segment.start, segment.end), self.pause):
                part = segment.part(start, end)
                if part.seconds <= 0:  # less than a millisecond
                    continue
                if len(names) != 1:
                    yield part.drop("overlap" if names else "no_speaker", len(names), 1)
                elif part.seconds < self.shortest:
                    yield part.drop("too_short", round(part.seconds, 3), self.shortest)
                else:
                    yield part.measured(speaker=f"{recording.name}/{next(iter(names))}")


def stretches(turns: Sequence[dict[str, Any]], start: float, end: float) -> list[Turn]:
    """Divide [start, end] into stretches with constant speakers."""
    inside = [t for t in turns if t["start"] < end and t["end"] > start]
    times = sorted({start, end, *(min(max(t[k], start), end) for t in inside for k in ("start", "end"))})
    return _merged(
        [
            (a, b, frozenset(t["speaker"] for t in inside if t["start"] <= a and t["end"] >= b))
            for a, b in pairwise(times)
        ]
    )


def joined(turns: Sequence[Turn], pause: float) -> list[Turn]:
    """Return the stretches, with silent ones of up to `pause` seconds added to the single speaker before or after."""
    result: list[Turn] = []
    for i, (start, end, names) in enumerate(turns):
        if not names and end - start <= pause:
            beside = [t[2] for t in (*result[-1:], *turns[i + 1 : i + 2]) if len(t[2]) == 1]
            names = beside[0] if beside else names
        result.append((start, end, names))
    return _merged(result)


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    runs = (list(run) for _, run in groupby(turns, key=lambda turn: turn[2]))
    return [(run[0][0], run[-1][1], run[0][2]) for run in runs]
