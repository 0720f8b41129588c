"""Cuts and manifest records: conversion between the JSONL contract and lhotse cuts, and the fields of a cut.

A cut is metadata: nothing here opens audio. Word times follow lhotse's convention: an alignment counts seconds from the
start of the *recording*, so that cutting a cut shorter leaves it true; `words_of` gives seconds from the start of the
cut. The recordings that `cut_from_record` makes always say 16 kHz: the file's own rate is known when it is read, and
`load_audio` resamples it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.fields import channel_of, list_field, seconds_field, uem_field
from stentor.data.spans import clip_spans
from stentor.data.storage import as_path, join
from stentor.data.supervised import checked_words, supervised
from stentor.errors import AudioError, DataError
from stentor.text.languages import known_code

if TYPE_CHECKING:
    from lhotse import AudioSource, MonoCut, Recording
    from lhotse.cut import Cut as Cut
    from lhotse.supervision import SupervisionSegment
else:
    Cut = Any  # for types alone: importing lhotse takes two seconds

FIELDS = ("id", "audio_path", "text", "start", "duration", "language", "language_id", "speaker", "words", "segments")
RATE = 16000
PART_KEYS = ("voice", "shar", "hub", "tar", "codes", "mixed_turn", "uem", "channel")
"""Custom keys that describe the parts of a mixed cut and not the mixture."""
AUDIO_KEYS = ("audio_path", "start", "duration", "channel", "voice", "mixed_turn", "made_noise")
"""Keys of a record that its audio is read from (see stentor.data.load_audio)."""

TURN_KEYS = {"first", "seconds", "level"}


@dataclass
class UnusableRecord:
    """A record that was read but cannot be used; it is counted under `reason` and listed, never trained on."""

    id: str
    reason: str
    message: str


def divided(records: Iterable[Any]) -> tuple[list[Any], list[UnusableRecord]]:
    """The usable and the unusable records, each in their order."""
    listed = list(records)
    unusable = [record for record in listed if isinstance(record, UnusableRecord)]
    return [record for record in listed if not isinstance(record, UnusableRecord)], unusable


def cut_from_record(record: dict[str, Any], folder: Path, where: str) -> Cut | UnusableRecord:
    """A lhotse cut from one manifest record. `folder` is what relative paths start from; `where` ("file.jsonl:12") is
    named in errors. The audio file's header is read only when the record has no duration. Raises `DataError` when the
    record breaks the contract."""
    from lhotse import AudioSource

    path = record.get("audio_path")
    if not isinstance(path, str) or not path:
        raise DataError(f"{where}: the record has no `audio_path`; each line needs one (see docs/data.md).")
    check_text_fields(record, where)
    file = join(folder, path)
    start = seconds_field(record, "start", where) or 0.0
    duration = seconds_field(record, "duration", where)
    name = record_name(record)
    if duration is None:
        from stentor.audio.io import probe
        from stentor.data.embedded_audio import audio_file

        try:
            with audio_file(file) as local:
                length = probe(local).duration
        except AudioError as error:
            return UnusableRecord(name, error.reason, f"{where}: {error}")
        duration = length - start
        if duration <= 0:
            problem = f"ends before the record's start at {start:g} s" if length else "has no samples"
            return UnusableRecord(name, "empty", f"{where}: {file} {problem}.")
    elif duration == 0:
        return UnusableRecord(name, "empty", f"{where}: the record's duration is 0.")
    recording = recording_of(str(file), start + duration, [AudioSource("file", [0], str(file))])
    return cut_with_recording(record, name, recording, start, duration, where)


def record_name(record: dict[str, Any]) -> str:
    """The id of a manifest record; where it has none, its file, start and channel."""
    start = f"@{record['start']:g}" if record.get("start") else ""
    channel = "" if channel_of(record) is None else f"#{channel_of(record)}"
    return record.get("id") or f"{record.get('audio_path')}{start}{channel}"


def recording_of(name: str, seconds: float, sources: Sequence[AudioSource] = ()) -> Recording:
    """A recording of so many seconds, without sources where its audio is made or lies elsewhere."""
    from lhotse import Recording

    return Recording(name, list(sources), RATE, num_samples=round(seconds * RATE), duration=seconds)


def check_text_fields(record: dict[str, Any], where: str, others: Sequence[str] = ()) -> None:
    """Raises `DataError` for keys that must hold text, and `others`, and hold something else."""
    for key in ("id", "text", "translation", "language", "language_id", "speaker", *others):
        if (value := record.get(key)) is not None and not isinstance(value, str):
            raise DataError(f"{where}: `{key}` must be a string, got {value!r}.")


def cut_with_recording(
    record: dict[str, Any], name: str, recording: Recording, start: float, duration: float, where: str
) -> MonoCut:
    """The cut of a manifest record: `duration` seconds from `start` of its recording. Raises `DataError`."""
    from lhotse import MonoCut

    words, segments = list_field(record, "words", where), list_field(record, "segments", where)
    extra = {k: v for k, v in record.items() if k not in FIELDS}
    if segments and record.get("text") is not None:
        extra["text"] = record["text"]
    if record.get("segments") == []:
        extra["segments"] = []  # no one speaks; without the key the speakers are unknown
    if extra.get("uem") is not None:
        extra["uem"] = [[start + a, start + b] for a, b in uem_field(extra["uem"], where)]
    cut = MonoCut(name, start, duration, channel=0, supervisions=[], recording=recording, custom=extra or None)
    cut.supervisions = _supervisions(cut, record, words, segments)
    return cut


def _supervisions(
    cut: MonoCut, record: dict[str, Any], words: list[dict[str, Any]], segments: list[dict[str, Any]]
) -> list[SupervisionSegment]:
    """One supervision for the whole record, or one per segment; a word belongs to the segment it lies deepest in."""
    from lhotse import SupervisionSegment
    from lhotse.supervision import AlignmentItem

    spans = [(f"{cut.id}-{i}", s["start"], round(s["end"] - s["start"], 6), s) for i, s in enumerate(segments)]
    supervisions = [
        SupervisionSegment(
            id=name,
            recording_id=cut.recording.id,
            start=start,
            duration=duration,
            text=fields.get("text"),
            language=record.get("language") or record.get("language_id"),
            speaker=fields.get("speaker"),
        )
        for name, start, duration, fields in spans or [(cut.id, 0.0, cut.duration, record)]
    ]
    for word in words:
        item = AlignmentItem(word["word"], cut.start + word["start"], round(word["end"] - word["start"], 6))
        segment = max(supervisions, key=lambda s: min(s.end, word["end"]) - max(s.start, word["start"]))
        segment.alignment = segment.alignment or {"word": []}
        segment.alignment["word"].append(item)
    return supervisions


def record_from_cut(cut: Cut) -> dict[str, Any]:
    """The manifest record of a cut (the inverse of `cut_from_record`, with an absolute `audio_path`). `audio_path` is
    None for cuts whose audio is not simply (a part of) one file. Where it can be had again, the record says how:
    `voice` for generated speech, `parts` for joined cuts, each with `at` seconds."""
    path = audio_path(cut)
    record: dict[str, Any] = {"id": cut.id, "audio_path": path and str(as_path(path).absolute())}
    if cut.start:
        record["start"] = round(cut.start, 6)
    record["duration"] = round(cut.duration, 6)
    for key, value in (("text", text_of(cut)), ("language", language_of(cut)), ("speaker", speaker_of(cut))):
        if value is not None:
            record[key] = value
    if words := [word for word, _ in checked_words(cut)]:
        record["words"] = words
    supervisions = cut.supervisions
    if (uem := uem_of(cut)) is not None:
        record["uem"] = uem
    several = len(supervisions) > 1 or any(s.start > 0.001 or s.end < cut.duration - 0.001 for s in supervisions)
    if several and all(s.speaker for s in supervisions):
        record["segments"] = [
            {"speaker": s.speaker, "start": round(max(s.start, 0.0), 6), "end": round(min(s.end, cut.duration), 6)}
            | ({"text": s.text} if s.text else {})
            for s in supervisions
            if s.end > 0 and s.start < cut.duration
        ]
    if parts := _joined_parts(cut):
        record["parts"] = parts
    return {**record, **{k: v for k, v in custom_of(cut).items() if k not in record}}


def _joined_parts(cut: Cut) -> list[dict[str, Any]]:
    """Where each part of a joined cut starts, and its audio; empty for other cuts and for parts without a file."""
    from lhotse.cut import MixedCut, PaddingCut

    if not isinstance(cut, MixedCut) or cut.transforms:
        return []
    tracks = [t for t in cut.tracks if not isinstance(t.cut, PaddingCut)]
    parts = [
        {"at": t.offset, **{k: r[k] for k in AUDIO_KEYS if r.get(k) is not None}}
        for t in tracks
        for r in [record_from_cut(t.cut)]
    ]
    simple = all(t.snr is None and not t.mute for t in tracks) and all(
        p.keys() & {"audio_path", "voice", "made_noise"} for p in parts
    )
    return parts if simple else []


def audio_path(cut: Cut) -> str | None:
    """The one audio file that a cut is (a part of), mixed to mono; None for any other kind of audio."""
    from lhotse.cut.data import DataCut

    if not isinstance(cut, DataCut) or cut.recording is None or cut.recording.transforms:
        return None
    sources = cut.recording.sources
    if len(sources) != 1 or sources[0].type != "file":
        return None
    channels = [cut.channel] if isinstance(cut.channel, int) else list(cut.channel)
    return str(sources[0].source) if channels == list(sources[0].channels) else None


def turn_of(custom: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The key `mixed_turn` of a cut's custom keys or of a record (see stentor.data.load_audio); None where there is
    none, or only a column of that name."""
    turn = (custom or {}).get("mixed_turn")
    return turn if isinstance(turn, dict) and turn.keys() >= TURN_KEYS else None


def is_spoken(cut: Cut) -> bool:
    """Whether the cut is an utterance of the built-in voice: its recording has no audio but the key `voice`."""
    from lhotse.cut.data import DataCut

    in_file = not isinstance(cut, DataCut) or cut.recording is None or cut.recording.sources
    return not in_file and cut.has_custom("voice")


def text_of(cut: Cut) -> str | None:
    """The transcript: supervisions' texts in order of time, joined with spaces; None when no supervision has one."""
    from lhotse.cut import MixedCut

    if isinstance(cut, MixedCut):
        texts = [text_of(t.cut) for t in sorted(cut.tracks, key=lambda t: t.offset) if not t.mute]
    elif (cut.custom or {}).get("text") is not None:
        return cut.custom["text"]
    else:
        texts = [s.text for s in sorted(cut.supervisions, key=lambda s: s.start)]
    known = [text for text in texts if text is not None]
    return " ".join(text for text in known if text) if known else None


def speaker_of(cut: Cut) -> str | None:
    """The speaker when there is exactly one."""
    speakers = {s.speaker for s in cut.supervisions}
    return speakers.pop() if len(speakers) == 1 else None


def language_of(cut: Cut) -> str | None:
    """The first language that a supervision names, as its code where the table of languages has it."""
    language = next((s.language for s in cut.supervisions if s.language), None)
    return known_code(language) if language else None


def set_language(cut: Cut, language: str) -> list[str]:
    """Give the language to all supervisions. Returns the code of the cut's own, where it is another one."""
    own = language_of(cut)
    for *_, supervision in supervised(cut):
        supervision.language = language
    return [own] if own and own != known_code(language) else []


def set_channel(cut: Cut, channel: int) -> None:
    """Give the channel to the recordings of a cut that name none."""
    from lhotse.cut import MixedCut
    from lhotse.cut.data import DataCut

    if isinstance(cut, MixedCut):
        for track in cut.tracks:
            set_channel(track.cut, channel)
    elif isinstance(cut, DataCut) and channel_of(cut.custom) is None:
        cut.custom = {**(cut.custom or {}), "channel": channel}


def set_silent(cut: Cut) -> Cut:
    """The cut as one in which no one speaks, in place, unless a supervision or the key `segments` says otherwise."""
    from lhotse.cut import MixedCut
    from lhotse.cut.data import DataCut

    if isinstance(cut, MixedCut):
        for track in cut.tracks if not cut.supervisions else ():
            set_silent(track.cut)
    elif isinstance(cut, DataCut) and not cut.supervisions:
        cut.custom = {"segments": [], **(cut.custom or {})}
    return cut


def set_translation(cut: Cut) -> bool:
    """Make the record's `translation` its text, in place; of joined records each one's. Whether there is one: a part of
    a mixture without speech needs none."""
    from lhotse.cut import MixedCut
    from lhotse.cut.data import DataCut

    if isinstance(cut, MixedCut):
        return all(set_translation(track.cut) for track in cut.tracks if not track.mute)
    translation = custom_of(cut).get("translation")
    if not isinstance(cut, DataCut) or not isinstance(translation, str) or not translation.strip():
        return text_of(cut) is None
    cut.custom = {**(cut.custom or {}), "text": translation}
    return True


def words_of(cut: Cut) -> list[dict[str, Any]]:
    """Words `{"word", "start", "end"}` whose times can be right, in order, seconds from the start of the cut."""
    return sorted((w for w, fault in checked_words(cut) if not fault), key=lambda w: w["start"])


def custom_of(cut: Cut) -> dict[str, Any]:
    """The record's other keys. Of a mixed cut: those on which all its parts agree."""
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, MixedCut):
        parts = [custom_of(t.cut) for t in cut.tracks if not isinstance(t.cut, PaddingCut)]
        parts = [p for p in parts if not isinstance(p.get("made_noise"), dict)]
        shared = {k: v for k, v in parts[0].items() if all(k in p and p[k] == v for p in parts)} if parts else {}
        return {k: v for k, v in shared.items() if k not in PART_KEYS}
    # Corpora prepared by lhotse keep their extras (gender, chapter ...) on the supervision.
    fields: dict[str, Any] = {}
    if len(cut.supervisions) == 1:
        (supervision,) = cut.supervisions
        fields = {**({"gender": supervision.gender} if supervision.gender else {}), **(supervision.custom or {})}
    return {**fields, **(cut.custom or {})}


def segments_of(cut: Cut) -> list[dict[str, Any]]:
    """Speaker segments: `{"speaker", "start", "end"}` in order of start, seconds from the start of the cut. Any kind of
    cut, also a window of one: what reaches beyond the cut is clipped, overlapping or touching segments of one speaker
    are merged. Supervisions that name no speaker are left out."""
    spans: dict[str, list[list[float]]] = {}
    for at, _, supervision in supervised(cut):
        if supervision.speaker:
            start = at + supervision.start
            spans.setdefault(supervision.speaker, []).append([start, start + supervision.duration])
    merged = [
        {"speaker": speaker, "start": start, "end": end}
        for speaker, times in spans.items()
        for start, end in clip_spans(times, cut.duration)
    ]
    return sorted(merged, key=lambda s: (s["start"], s["end"], s["speaker"]))


def uem_of(cut: Cut) -> list[list[float]] | None:
    """The parts of the cut that are scored (NIST's UEM): [start, end] in seconds from the start of the cut, in order,
    merged, clipped to it. None when it has no UEM: all of it is scored. The custom key `uem` counts from the start of
    the recording, so that it stays true for windows of a cut."""
    spans = _scored(cut)
    return None if spans is None else clip_spans(spans, cut.duration)


def _scored(cut: Cut, at: float = 0.0) -> list[list[float]] | None:
    """The UEM of a cut, or of the parts of a mixed cut: those that have none count whole when someone speaks there."""
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, PaddingCut):
        return None
    if not isinstance(cut, MixedCut):
        uem = (cut.custom or {}).get("uem")
        return None if uem is None else [[at + a - cut.start, at + b - cut.start] for a, b in uem]
    parts = [(t, _scored(t.cut, at + t.offset)) for t in cut.tracks if not t.mute]
    if all(spans is None for _, spans in parts):
        return None
    unmarked = [track for track, spans in parts if spans is None and track.cut.supervisions]
    spoken = [[at + t.offset, at + t.offset + t.cut.duration] for t in unmarked]
    return spoken + [span for _, spans in parts for span in spans or []]


def field_of(cut: Cut, key: str) -> Any:
    """A manifest field of a cut by its manifest name; None when absent."""
    getter = _GETTERS.get(key)
    return custom_of(cut).get(key) if getter is None else getter(cut)


_GETTERS: dict[str, Callable[[Cut], Any]] = {
    **{key: attrgetter(key) for key in ("id", "start", "duration")},
    "speaker": speaker_of,
    "language": language_of,
    "text": text_of,
    "words": words_of,
    "audio_path": audio_path,
}
