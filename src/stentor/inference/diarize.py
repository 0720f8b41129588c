"""Who speaks when in recordings of any length: `stentor diarize` behind its options, and the same from Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from stentor.errors import AudioError, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from stentor.inference.load import Model
    from stentor.inference.recording import Recording
    from stentor.models.base import Bundle
    from stentor.tasks.diarize import Diarize

FORMATS = ("rttm", "json")


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
        from stentor.data.rttm import rttm_lines

        return "".join(f"{line}\n" for line in rttm_lines(name or Path(self["audio"]).stem, self.segments))


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
    from stentor.tasks.diarize.hear import hear
    from stentor.tasks.diarize.stitch import diarization

    rate = bundle.processor.sample_rate

    def blocks(recording: Recording) -> Iterator[np.ndarray]:
        for block in recording.blocks():
            yield block
            if on_audio:
                on_audio(len(block) / rate)

    for recording in recordings:
        try:
            (heard,) = hear(bundle, task, [blocks(recording)])
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


def listener(model: Model) -> Callable[[Recording], list[dict[str, Any]]]:
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


@dataclass
class Request:
    """The options of `stentor diarize`."""

    model: str
    audio: list[str]
    format: str = "rttm"
    out: str | None = None
    speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None
    device: str = "auto"


def diarize_files(request: Request) -> None:
    """Diarize and write. Unreadable files are named on standard error and left out, the others are done.

    Raises ConfigError for options that do not go together, and DataError at the end when files were left out.
    """
    formats = _formats(request)
    from stentor.inference.load import load
    from stentor.inference.progress import Files
    from stentor.inference.recording import FileRecording

    model = load(request.model, request.device)
    task = with_speakers(model.for_diarization(), request.speakers, request.min_speakers, request.max_speakers)
    files = Files(request.audio, request.out, "diarizing")
    recordings = [FileRecording(path, model.bundle.processor.sample_rate) for path in request.audio]
    with files:
        for found in diarize(model.bundle, task, recordings, request.model, files.left_out, files.window):
            name = next(files.names)
            if files.folder is None:
                text = found.rttm(name) if formats[0] == "rttm" else json.dumps(found, ensure_ascii=False) + "\n"
                if text:
                    files.print(text.rstrip("\n"))
            else:
                for format in formats:
                    text = found.rttm(name) if format == "rttm" else json.dumps(found, ensure_ascii=False, indent=2)
                    (files.folder / f"{name}.{format}").write_text(text, encoding="utf-8")
            files.file()
    files.check("diarized")


def _formats(request: Request) -> list[str]:
    formats = list(dict.fromkeys(f.strip().lower() for f in request.format.split(",") if f.strip()))
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise ConfigError(f"Unknown --format {', '.join(unknown) or '(empty)'}; known: {', '.join(FORMATS)}.")
    if len(formats) > 1 and request.out is None:
        raise ConfigError("Several formats cannot share standard output: give a folder with --out.")
    return formats
