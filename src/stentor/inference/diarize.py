"""Diarization of recordings of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stentor.data.rttm import format_rttm
from stentor.errors import AudioError, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.load import Model
    from stentor.inference.recording import Recording
    from stentor.models.base import Bundle
    from stentor.tasks.diarize import Diarize


class Diarization(dict[str, Any]):
    """Who speaks when in a recording, as the JSON has it, with its main parts as attributes."""

    @property
    def segments(self) -> list[dict[str, Any]]:
        """`{"speaker", "start", "end"}` in order of time, seconds; speakers may overlap."""
        return self["segments"]

    @property
    def speakers(self) -> list[str]:
        """Names in order of arrival; what was labelled, for models that do not tell speakers apart."""
        return self["speakers"]

    def rttm(self, name: str | None = None) -> str:
        """The lines of an RTTM file; `name` stands for the recording, by default the stem of its path."""
        return "".join(f"{line}\n" for line in format_rttm(name or Path(self["audio"]).stem, self.segments))


def diarize(
    bundle: Bundle,
    task: Diarize,
    recordings: Iterable[Recording],
    model: str = "",
    on_error: Callable[[str, AudioError], None] | None = None,
    on_audio: Callable[[float], None] | None = None,
) -> Iterator[Diarization]:
    """`{"audio", "duration", "speakers", "segments", "model"}` for each recording, in their order.

    Of a recording, one window after the other is held, and what the model says about it. How windows are put together
    is in `task.windows` (see `with_speakers`). An unreadable recording raises its AudioError, or with `on_error` is
    handed there and left out. `on_audio` is told the seconds of audio that were read.
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
            (heard,) = run_windows(bundle, task, [blocks(recording)])
        except AudioError as error:
            named = error if recording.name in str(error) else AudioError(f"{recording.name}: {error}", error.reason)
            if on_error is None:
                raise named from None
            on_error(recording.name, named)
            continue
        segments = diarization(heard, task.windows, task.labels.permutes, task.labels.names)
        yield Diarization(
            audio=recording.name,
            duration=round(heard.duration, 3),
            speakers=list(dict.fromkeys(s["speaker"] for s in segments)),
            segments=segments,
            model=model,
        )


def segments_by(model: Model) -> Callable[[Recording], list[dict[str, Any]]]:
    """Who speaks when in a recording, by this model, for `stentor.inference.transcribe.transcribe`.

    Raises ConfigError when the model was trained for another task, or does not tell speakers apart.
    """
    task = model.for_diarization()
    if not task.labels.permutes:
        labelled = " and ".join(task.labels.names)
        raise ConfigError(f"{model.name} labels {labelled}, not speakers: give another diarizer.")

    def segments(recording: Recording) -> list[dict[str, Any]]:
        (found,) = diarize(model.bundle, task, [recording.at(model.bundle.processor.sample_rate)], model.name)
        return found.segments

    return segments


def with_speakers(
    task: Diarize, speakers: int | None = None, least: int | None = None, most: int | None = None
) -> Diarize:
    """The task with what is known of the number of speakers in each recording, in the place of what it says itself.

    Raises ConfigError when that cannot be.
    """
    if speakers is None and least is None and most is None:
        return task
    if not task.labels.permutes:
        raise ConfigError(
            f"This model labels {' and '.join(task.labels.names)}, not speakers: leave out the number of speakers."
        )
    known = {"speakers": speakers, "min_speakers": least, "max_speakers": most}
    try:
        windows = type(task.windows).model_validate({**task.windows.model_dump(by_alias=True), **known})
    except ValidationError as error:
        said = str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"]))
        raise ConfigError(f"The number of speakers: {said}.") from None
    return task.model_copy(update={"windows": windows})
