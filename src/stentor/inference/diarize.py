"""Diarization of recordings of any length."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from stentor.data.rttm import format_rttm
from stentor.errors import AudioError, ConfigError
from stentor.inference.options import SpeakerCount
from stentor.inference.recording import Recording
from stentor.models.base import Bundle
from stentor.tasks.diarize.task import Diarize


class Diarization(dict[str, Any]):
    """Speaker diarization of a recording, as in the JSON contract, with its main parts as attributes."""

    @property
    def segments(self) -> list[dict[str, Any]]:
        """`{"speaker", "start", "end"}` in order of time, seconds; speakers may overlap."""
        return self["segments"]

    @property
    def warning(self) -> str | None:
        """A sentence where there are fewer speakers than were asked for."""
        return self.get("warning")

    @property
    def speakers(self) -> list[str]:
        """Names in order of arrival; what was labelled, for models that do not tell speakers apart."""
        return self["speakers"]

    def rttm(self, name: str | None = None) -> str:
        """The lines of an RTTM file; `name` stands for the recording, by default the stem of its path."""
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
    """`{"audio", "duration", "speakers", "segments", "model"}` for each recording, in their order, and `warning` where
    there are fewer speakers than `task.windows` asks for.

    Of a recording, only one window of audio and the model's outputs are held. How windows are aggregated is in
    `task.windows` (see `with_speakers`). An unreadable recording raises its AudioError, or with `on_error` is
    handed there and left out. `on_audio` is called with the seconds of audio that were read.
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
            **({} if recording.channel is None else {"channel": recording.channel}),
        )
        least, count = task.windows.bounds[0], len(result.speakers)
        if task.labels.permutes and least > 1 and count < least:
            result["warning"] = (
                f"{recording.name}: {count} speaker{'s' * (count != 1)}, not {least}: the model tells "
                f"{task.labels.slots} apart at a time, and no more voices differ."
            )
        yield result


def require_speakers(task: Diarize, name: str) -> None:
    """Raise ConfigError when the model of this name does not tell speakers apart."""
    if not task.labels.permutes:
        raise ConfigError(f"{name} labels {' and '.join(task.labels.names)}, not speakers: give another diarizer.")


def with_speakers(task: Diarize, count: SpeakerCount) -> Diarize:
    """The task with what is known of the number of speakers in each recording, in the place of its own settings.

    Raises ConfigError when that cannot be.
    """
    known = {"speakers": count.speakers, "min_speakers": count.min_speakers, "max_speakers": count.max_speakers}
    if set(known.values()) == {None}:
        return task
    if not task.labels.permutes:
        raise ConfigError(
            f"This model labels {' and '.join(task.labels.names)}, not speakers: leave out the number of speakers."
        )
    try:
        windows = type(task.windows).model_validate({**task.windows.model_dump(by_alias=True), **known})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"The number of speakers: {first.get('ctx', {}).get('error', first['msg'])}.") from None
    return task.model_copy(update={"windows": windows})
