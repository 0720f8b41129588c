"""Long recordings into records: cut at their pauses, with a first transcript of a model for a person to correct."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.audio.activity import EnergyDetector
from stentor.errors import AudioError
from stentor.inference.model import Model
from stentor.inference.recording import FileRecording
from stentor.inference.vad import Detector, cut
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import Record, name_from
from stentor.studio.uploaded_audio import Upload, checked, enterable, fingerprint, read, shown

LONGEST = 15.0
"""Seconds of the longest piece: easy to correct by ear, and short enough for every model."""
RATE = 16000
"""Hz at which pauses are looked for."""
_EDGE = 0.2
"""Seconds around speech that belong to a piece."""
Draft = Callable[["np.ndarray", int], str]
"""The transcript of float32 mono [samples] at a rate in Hz."""


def pieces(upload: Upload, longest: float = LONGEST, detector: Detector | None = None) -> list[tuple[float, float]]:
    """(start, end) in seconds of the pieces of a recording that hold speech, in order, each at most `longest`.

    Raises AudioError for a file that is refused (see `uploads.checked`).
    """
    checked(upload)
    activity = (detector or EnergyDetector()).activity(FileRecording(upload.path, RATE).blocks(), RATE)
    edge = round(_EDGE * RATE)
    spans = [
        (max(w.start, w.speech_start - edge) / RATE, min(w.end, w.speech_end + edge) / RATE)
        for w in cut(activity, RATE, longest)
    ]
    return [(start, end) for start, end in spans if end > start]


def draft_by(model: Model, language: str | None = None) -> Draft:
    """Drafts of a model that transcribes (`stentor.inference.load.load`)."""

    def draft(audio: np.ndarray, rate: int) -> str:
        return model.transcribe(audio, rate=rate, language=language, keep_failed=True).text

    return draft


@dataclass(frozen=True)
class SplitProgress:
    """How far a recording is."""

    done: int
    of: int
    record: Record | None
    """What was saved; None for a piece that the data set had already, or that could not be used."""
    refused: str = ""
    """Why it could not be used."""


def split_into(
    dataset: DataSet,
    upload: Upload,
    draft: Draft | None = None,
    language: str | None = None,
    speaker: str | None = None,
    longest: float = LONGEST,
    detector: Detector | None = None,
) -> Iterator[SplitProgress]:
    """Save the pieces of a recording, one after the other, each on the disk when it is answered.

    With `draft` each has a text marked `draft: true` until a person edits it; without, an empty one. Whatever ends this
    in the middle, the same call goes on: pieces of the same file that the data set has are passed over, and those that
    were removed from it do not come back. Raises AudioError for a file that is refused, StentorError when the disk is
    full; the pieces before that stay.
    """
    name = shown(upload.name)
    digest = fingerprint(upload.path)
    file = enterable(upload)
    _, rate = checked(file)
    source = name_from(name.rpartition(".")[0] or name)
    known = {(r.get("source_id"), r.get("source_start")) for r in [*dataset.records(), *dataset.removed()]}
    spans = pieces(file, longest, detector)
    if not spans:
        raise AudioError(f"{name}: no speech stands out of the background, so there is nothing to split.", "silent")
    for done, (start, end) in enumerate(spans, 1):
        offset = round(start, 3)
        if (digest, offset) in known:
            yield SplitProgress(done, len(spans), None)
            continue
        try:
            audio = read(file, rate, start, end - start)
        except AudioError as error:  # a damaged stretch of an otherwise good recording
            yield SplitProgress(done, len(spans), None, str(error))
            continue
        text = draft(audio, rate).strip() if draft is not None else ""
        extra: dict[str, Any] = {"source": source, "source_id": digest, "source_start": offset}
        if text:
            extra["draft"] = True
        yield SplitProgress(done, len(spans), dataset.add(audio, rate, text, language, speaker, **extra))
