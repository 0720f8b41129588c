"""Between manifest records (the JSONL contract) and lhotse cuts, and from a cut to its audio.

A cut is metadata: nothing here opens audio except `load`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError, DataError

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

FIELDS = ("id", "audio_path", "text", "start", "duration", "language", "language_id", "speaker", "words", "segments")


@dataclass
class Unusable:
    """A record that was read but cannot be used; it is counted under `reason` and listed, never trained on."""

    id: str
    reason: str
    message: str


def cut_from_record(record: dict[str, Any], folder: Path, where: str) -> Cut | Unusable:
    """A lhotse cut from one manifest record.

    `folder` is what relative paths start from; `where` ("file.jsonl:12") is named in errors. The audio file's header
    is read only when the record has no duration. Raises `DataError` when the record breaks the contract.
    """
    from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
    from lhotse.supervision import AlignmentItem

    path = record.get("audio_path")
    if not isinstance(path, str) or not path:
        raise DataError(f"{where}: the record has no `audio_path`; each line needs one (see docs/data.md).")
    file = folder / path
    start = _number(record, "start", where, 0.0)
    duration = _number(record, "duration", where, None)
    name = str(record.get("id") or (f"{path}@{start:g}" if start else path))
    text = record.get("text")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{where}: `text` must be a string, got {text!r}.")
    if duration is None:
        from stentor.audio.io import probe

        try:
            duration = probe(file).duration - start
        except AudioError as error:
            return Unusable(name, error.reason, f"{where}: {error}")
        if duration <= 0:
            return Unusable(name, "empty", f"{where}: {file} ends before the record's start at {start:g} s.")
    # The sampling rate and sample count of the file itself are found when it is read: `load` resamples whatever comes.
    total = start + duration
    recording = Recording(
        id=str(file), sources=[AudioSource("file", [0], str(file))], sampling_rate=16000,
        num_samples=round(total * 16000), duration=total,
    )
    language = record.get("language", record.get("language_id"))
    extra = {k: v for k, v in record.items() if k not in FIELDS}
    base: dict[str, Any] = {"recording_id": recording.id, "channel": 0, "language": language}
    if record.get("segments"):
        supervisions = [
            SupervisionSegment(
                id=f"{name}-{i}", start=float(s["start"]), duration=float(s["end"]) - float(s["start"]),
                speaker=s.get("speaker"), text=s.get("text"), **base,
            )
            for i, s in enumerate(record["segments"])
        ]
        if text is not None:
            extra["text"] = text
    else:
        words = record.get("words")
        alignment = None
        if words:
            try:
                alignment = {
                    "word": [AlignmentItem(w["word"], w["start"], round(w["end"] - w["start"], 6)) for w in words]
                }
            except (KeyError, TypeError):
                raise DataError(f'{where}: each of `words` needs "word", "start" and "end".') from None
        supervisions = [
            SupervisionSegment(
                id=name, start=0.0, duration=duration, text=text, speaker=record.get("speaker"), alignment=alignment, **base
            )
        ]
    return MonoCut(
        id=name, start=start, duration=duration, channel=0, recording=recording, supervisions=supervisions,
        custom=extra or None,
    )


def record_from_cut(cut: Cut) -> dict[str, Any]:
    """The manifest record of a cut (the inverse of `cut_from_record`, with an absolute `audio_path`)."""
    record: dict[str, Any] = {"id": cut.id, "audio_path": audio_path(cut)}
    if getattr(cut, "start", 0):
        record["start"] = cut.start
    record["duration"] = round(cut.duration, 6)
    for key, value in (("text", text_of(cut)), ("language", language_of(cut)), ("speaker", speaker_of(cut))):
        if value is not None:
            record[key] = value
    if words := words_of(cut):
        record["words"] = words
    if len(cut.supervisions) > 1:
        record["segments"] = [
            {"speaker": s.speaker, "start": s.start, "end": round(s.end, 6), **({"text": s.text} if s.text else {})}
            for s in cut.supervisions
        ]
    return {**record, **(getattr(cut, "custom", None) or {})}


def audio_path(cut: Cut) -> str | None:
    """The audio file of a cut, or None for generated, mixed and in-memory audio."""
    recording = getattr(cut, "recording", None)
    if recording is None or not recording.sources or recording.sources[0].type != "file":
        return None
    return str(recording.sources[0].source)


def text_of(cut: Cut) -> str | None:
    """The transcript: supervisions' texts in order of time, joined with spaces; None when no supervision has one."""
    if (custom := getattr(cut, "custom", None)) and custom.get("text") is not None:
        return custom["text"]
    texts = [s.text for s in sorted(cut.supervisions, key=lambda s: s.start) if s.text is not None]
    return " ".join(texts) if texts else None


def speaker_of(cut: Cut) -> str | None:
    """The speaker when there is exactly one."""
    speakers = {s.speaker for s in cut.supervisions}
    return speakers.pop() if len(speakers) == 1 else None


def language_of(cut: Cut) -> str | None:
    """The first language that a supervision names."""
    return next((s.language for s in cut.supervisions if s.language), None)


def set_language(cut: Cut, language: str) -> None:
    """Give the language to supervisions that name none."""
    for s in cut.supervisions:
        s.language = s.language or language


def words_of(cut: Cut) -> list[dict[str, Any]]:
    """Word times `{"word", "start", "end"}` in seconds from the start of the cut; empty when unknown."""
    items = [
        (s.start if shift else 0.0, item)
        for s in cut.supervisions
        for shift in (len(cut.supervisions) > 1,)
        for item in (s.alignment or {}).get("word", [])
    ]
    return [
        {"word": item.symbol, "start": round(base + item.start, 6), "end": round(base + item.end, 6)}
        for base, item in items
    ]


def field_of(cut: Cut, key: str) -> Any:
    """A manifest field of a cut by its manifest name; None when absent."""
    if key == "id":
        return cut.id
    if key in ("speaker", "language", "text", "words", "audio_path"):
        return {
            "speaker": speaker_of, "language": language_of, "text": text_of, "words": words_of, "audio_path": audio_path
        }[key](cut)
    if key == "duration":
        return cut.duration
    return (getattr(cut, "custom", None) or {}).get(key)


def load(cut: Cut, rate: int = 16000) -> np.ndarray:
    """The audio of a cut: float32 [samples] at `rate` Hz, mono. Raises `AudioError`.

    Spoken cuts (custom key `voice`, from the `synth` source) are generated; mixed cuts are summed track by track;
    files are read with stentor.audio.io; anything else is left to lhotse.
    """
    import numpy as np

    custom = getattr(cut, "custom", None) or {}
    if "voice" in custom:
        from stentor.audio.synth import say

        return say(**custom["voice"]).audio_at(rate)
    if hasattr(cut, "tracks"):
        mix = np.zeros(round(cut.duration * rate), np.float32)
        for track in cut.tracks:
            if not hasattr(track.cut, "recording") and not hasattr(track.cut, "tracks"):
                continue  # lhotse's padding
            part = load(track.cut, rate)
            at = round(track.offset * rate)
            part = part[: len(mix) - at]
            mix[at : at + len(part)] += part
        return mix
    path = audio_path(cut)
    if path is not None:
        from stentor.audio.io import read

        return read(path, rate=rate, start=cut.start, duration=cut.duration)
    try:
        audio = cut.resample(rate).load_audio() if cut.sampling_rate != rate else cut.load_audio()
    except Exception as error:  # lhotse raises many kinds; each means that this one cut cannot be read
        raise AudioError(f"{cut.id}: lhotse could not read the audio ({error}).") from error
    return np.asarray(audio.mean(axis=0), np.float32)


def _number(record: dict[str, Any], key: str, where: str, default: Any) -> Any:
    value = record.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise DataError(f"{where}: `{key}` must be a number of seconds, got {value!r}.")
    return float(value)
