"""Diarization of recordings of any length."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.rttm import format_rttm
from stentor.errors import AudioError, ConfigError
from stentor.inference.options import SpeakerCount
from stentor.inference.recording import Recording
from stentor.models.base import Bundle
from stentor.section.explain import validated
from stentor.tasks.diarize.task import Diarize


class Diarization(dict[str, Any]):
    """Diarization (who spoke when): the dict of the JSON output, with its main parts as attributes."""

    @property
    def segments(self) -> list[dict[str, Any]]:
        """Segments in order of time, `{"speaker", "start", "end"}`, in seconds. Speakers may overlap."""
        return self["segments"]

    @property
    def warning(self) -> str | None:
        """Message if fewer speakers were found than requested; otherwise None."""
        return self.get("warning")

    @property
    def speakers(self) -> list[str]:
        """Speaker names in order of first appearance; for models that do not distinguish speakers, the labels."""
        return self["speakers"]

    def rttm(self, name: str | None = None) -> str:
        """Return the text of an RTTM file. `name`: name of the recording, by default the stem of its path."""
        lines = format_rttm(name or Path(self["audio"]).stem, self.segments, self.get("channel", 0))
        return "".join(f"{line}\n" for line in lines)


def diarize(
    bundle: Bundle,
    task: Diarize,
    recordings: Iterable[Recording],
    model: str = "",
    on_error: Callable[[str, AudioError], None] | None = None,
    on_audio: Callable[[float], None] | None = None,
) -> Iterator[Diarization]:
    """Yield a diarization for each recording, in the order of the recordings.

    Only one window of audio and the model's outputs are in memory. `task.windows` has the number of speakers and the
    settings of the aggregation (see `with_speakers`). `on_error` is called with the name and the AudioError of an
    unreadable recording, which is skipped; if None, the error is raised. `on_audio` is called with seconds of audio.
    """
    from stentor.tasks.diarize.aggregate import diarization
    from stentor.tasks.diarize.inference import run_windows

    rate = bundle.processor.sample_rate

    def blocks(recording: Recording) -> Iterator[np.ndarray]:
        for block in recording.blocks():
            yield block
            if on_audio:
                on_audio(len(block) / rate)

    for recording in recordings:
        try:
            (outputs,) = run_windows(bundle, task, [blocks(recording)])
        except AudioError as error:
            named = error if recording.name in str(error) else AudioError(f"{recording.name}: {error}", error.reason)
            if on_error is None:
                raise named from None
            on_error(recording.name, named)
            continue
        segments = diarization(outputs, task.windows, task.labels.permutes, task.labels.names)
        result = Diarization(
            audio=recording.name,
            duration=round(outputs.duration, 3),
            speakers=list(dict.fromkeys(s["speaker"] for s in segments)),
            segments=segments,
            model=model,
            **recording.selection.keys,
            **({"notes": list(recording.notes)} if recording.notes else {}),
        )
        least, count = task.windows.bounds[0], len(result.speakers)
        if task.labels.permutes and least > 1 and count < least:
            result["warning"] = (
                f"{recording.name}: found {count} speaker{'s' * (count != 1)}, not {least}. The model distinguishes "
                f"{task.labels.slots} at a time, and there are no more different voices."
            )
        yield result


def require_speakers(task: Diarize, name: str) -> None:
    """Raise ConfigError if the model called `name` does not distinguish speakers."""
    if not task.labels.permutes:
        raise ConfigError(f"{name} labels {' and '.join(task.labels.names)}, not speakers: give another diarizer.")


def with_speakers(task: Diarize, count: SpeakerCount) -> Diarize:
    """Return the task with this number of speakers instead of its own. Raises ConfigError if that is impossible."""
    known = {"speakers": count.speakers, "min_speakers": count.min_speakers, "max_speakers": count.max_speakers}
    if set(known.values()) == {None}:
        return task
    if not task.labels.permutes:
        raise ConfigError(
            f"This model labels {' and '.join(task.labels.names)}, not speakers: leave out the number of speakers."
        )
    windows = validated(type(task.windows), {**task.windows.model_dump(by_alias=True), **known}, "Number of speakers: ")
    return task.model_copy(update={"windows": windows})
