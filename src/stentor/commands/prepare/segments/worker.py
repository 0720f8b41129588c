"""Worker of `stentor prepare segments`: a recording through stages, to the segments that are kept and dropped."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stentor.audio.io import encode
from stentor.audio.selection import Selection
from stentor.data.cut import Cut, UnusableRecord, audio_path, divided, language_of, text_of
from stentor.data.fields import channel_of
from stentor.data.load_audio import load_audio
from stentor.errors import AudioError
from stentor.inference.recording import DecodedRecording
from stentor.inference.segments.base import Reject, Segment, Stage
from stentor.pipeline.runner import Record, RecordWithFiles, Results, reject
from stentor.pipeline.worker import Worker


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


@dataclass
class Opened:
    """A recording on its way through the stages."""

    work: Work
    recording: DecodedRecording
    segments: list[Segment]
    rejects: list[dict[str, Any]] = field(default_factory=list)
    counts: list[list[float]] = field(default_factory=list)
    """Segments and seconds that each stage received and kept."""

    def add(self, stage: str, results: Sequence[Segment | Reject]) -> None:
        """Segments after a stage."""
        given = [len(self.segments), seconds(self.segments)]
        self.segments = [s for s in results if isinstance(s, Segment)]
        self.rejects += [{"stage": stage, **asdict(r)} for r in results if isinstance(r, Reject)]
        self.counts.append([*given, len(self.segments), seconds(self.segments)])


def _opened(work: Work, in_files: bool) -> Opened | UnusableRecord:
    cut = work.cut
    if isinstance(cut, UnusableRecord):
        return cut
    path = audio_path(cut)
    if not cut.has_recording:
        return UnusableRecord(cut.id, "no_file", f"{cut.id}: a text without audio; give recordings.")
    if path is None and in_files:
        message = f"{cut.id}: its audio is no part of one file, which segments could point into: take --audio."
        return UnusableRecord(cut.id, "no_file", message)
    try:
        if path is None:
            recording = DecodedRecording([load_audio(cut, cut.sampling_rate)], cut.sampling_rate, cut.id)
        else:
            recording = DecodedRecording.of_file(
                path, cut.id, cut.start, cut.duration, Selection(channel_of(cut.custom))
            )
    except AudioError as error:
        return reject(cut, error)
    return Opened(work, recording, [whole(cut, recording)] if work.segments is None else list(work.segments))


class SegmentsWorker(Worker):
    """Recordings to `{"id", "segments", "rejects", "counts"}` as plain data; `counts` holds how many segments and
    seconds each stage was given and kept. With `audio_folder`, segments become FLAC files there; `in_files`: recordings
    that are no part of one audio file are rejects, as no segment could point into them."""

    def __init__(self, stages: Sequence[tuple[str, Stage]], audio_folder: Path | None = None, in_files: bool = True):
        self.stages, self.audio_folder, self.in_files = stages, audio_folder, in_files

    def setup(self, device: str) -> None:
        for _, stage in self.stages:
            stage.setup(device)

    def process(self, group: Sequence[Work]) -> Results:
        opened = [_opened(work, self.in_files) for work in group]
        recordings = [each for each in opened if isinstance(each, Opened)]
        try:
            for name, stage in self.stages:
                results = stage.process_many([(each.recording, each.segments) for each in recordings])
                for each, result in zip(recordings, results, strict=True):
                    each.add(name, result)
            return divided(each if isinstance(each, UnusableRecord) else self._outcome(each) for each in opened)
        except AudioError as error:
            if len(group) > 1:  # one of them is meant: the others continue without it
                return self.join([self.process(alone) for alone in self.split(group)])
            assert not isinstance(group[0].cut, UnusableRecord)
            return [], [reject(group[0].cut, error)]

    def _outcome(self, opened: Opened) -> Record:
        segments, files = opened.segments, dict[Path, bytes]()
        if self.audio_folder is not None:
            segments = [self._encoded(opened.work.index, opened.recording, s, files) for s in segments]
        outcome = {
            "id": opened.work.id,
            "segments": [asdict(s) for s in segments],
            "rejects": opened.rejects,
            "counts": opened.counts,
        }
        return RecordWithFiles(outcome, files) if files else outcome

    def _encoded(self, index: int, recording: DecodedRecording, segment: Segment, files: dict[Path, bytes]) -> Segment:
        """The segment with the place of its audio, which is added to `files`."""
        assert self.audio_folder is not None
        path = f"{index // 1000:04d}/{index:07d}-{round(segment.start * 1000):09d}.flac"
        files[self.audio_folder / path] = encode(segment.audio(recording, recording.rate), recording.rate, path)
        return segment.measured(audio_path=f"{self.audio_folder.name}/{path}")


def whole(cut: Cut, recording: DecodedRecording) -> Segment:
    """All of a recording, to the millisecond, with what is known of it."""
    known = {"language": language_of(cut), "text": text_of(cut)}
    measures = {key: value for key, value in known.items() if value}
    return Segment(0.0, math.floor(recording.seconds * 1000) / 1000, measures)


def seconds(segments: Sequence[Segment]) -> float:
    return round(sum(segment.seconds for segment in segments), 3)
