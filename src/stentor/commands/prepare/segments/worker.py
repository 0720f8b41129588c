"""Worker of `stentor prepare segments`: a recording through stages, to the segments that are kept and dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.audio.io import encode
from stentor.commands.prepare.executor import RecordWorker, Worker
from stentor.commands.prepare.pipeline import RecordWithFiles, reject
from stentor.data.cut import UnusableRecord, audio_path, divided, language_of
from stentor.data.fields import channel_of
from stentor.errors import AudioError
from stentor.inference.recording import DecodedRecording
from stentor.inference.segments.base import Reject, Segment, Stage

if TYPE_CHECKING:
    from lhotse.cut import Cut


Outcome = dict[str, Any] | RecordWithFiles
"""Of a recording; with the audio of its segments, where that is asked for."""


@dataclass(frozen=True)
class Work:
    """A recording, and its segments so far: none when no stage has seen it."""

    index: int
    """In the data."""
    cut: Cut | UnusableRecord
    segments: Sequence[Segment] | None = None

    @property
    def id(self) -> str:
        return self.cut.id


class SegmentsWorker(RecordWorker, Worker[Sequence[Work], "tuple[list[Outcome], list[UnusableRecord]]"]):
    """Recordings to `{"id", "segments", "rejects", "counts"}` as plain data; `counts` holds how many segments and
    seconds each stage was given and kept. With `audio_folder`, segments become FLAC files there."""

    def __init__(self, stages: Sequence[tuple[str, Stage]], audio_folder: Path | None = None):
        self.stages, self.audio_folder = stages, audio_folder

    def setup(self, device: str) -> None:
        for _, stage in self.stages:
            stage.setup(device)

    def process(self, group: Sequence[Work]) -> tuple[list[Outcome], list[UnusableRecord]]:
        return divided(self._recording(work) for work in group)

    def _recording(self, work: Work) -> Outcome | UnusableRecord:
        cut = work.cut
        if isinstance(cut, UnusableRecord):
            return cut
        path = audio_path(cut)
        if path is None:
            message = f"{cut.id}: its audio is not a part of one file, which segments could point into."
            return UnusableRecord(cut.id, "no_file", message)
        try:
            recording = DecodedRecording.of_file(path, cut.id, cut.start, cut.duration, channel_of(cut.custom))
            segments = [whole(cut, recording)] if work.segments is None else list(work.segments)
            rejects: list[dict[str, Any]] = []
            counts: list[list[float]] = []
            for name, stage in self.stages:
                counts_before, results = [len(segments), seconds(segments)], list(stage.process(recording, segments))
                segments = [s for s in results if isinstance(s, Segment)]
                rejects += [{"stage": name, **asdict(r)} for r in results if isinstance(r, Reject)]
                counts.append([*counts_before, len(segments), seconds(segments)])
            files: dict[Path, bytes] = {}
            if self.audio_folder is not None:
                segments = [self._encoded(work.index, recording, segment, files) for segment in segments]
        except AudioError as error:
            return reject(cut, error)
        outcome = {"id": cut.id, "segments": [asdict(s) for s in segments], "rejects": rejects, "counts": counts}
        return RecordWithFiles(outcome, files) if files else outcome

    def _encoded(self, index: int, recording: DecodedRecording, segment: Segment, files: dict[Path, bytes]) -> Segment:
        """The segment with the place of its audio, which is added to `files`."""
        assert self.audio_folder is not None
        path = f"{index // 1000:04d}/{index:07d}-{round(segment.start * 1000):09d}.flac"
        files[self.audio_folder / path] = encode(segment.audio(recording, recording.rate), recording.rate, path)
        return segment.measured(audio_path=f"{self.audio_folder.name}/{path}")


def whole(cut: Cut, recording: DecodedRecording) -> Segment:
    """All of a recording, to the millisecond."""
    language = language_of(cut)
    return Segment(0.0, math.floor(recording.seconds * 1000) / 1000, {"language": language} if language else {})


def seconds(segments: Sequence[Segment]) -> float:
    return round(sum(segment.seconds for segment in segments), 3)
