"""Columns of data sets on the Hub: the names that are understood, and the speaker segments in three of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stentor.data.cut import UnusableRecord
from stentor.data.rttm import RttmLine
from stentor.errors import DataError
from stentor.section import Section
from stentor.sources.annotated import labels_within
from stentor.text.field_names import FIELD_NAMES

RESERVED = ("audio_path", "start", "words", "segments", "language_id")
"""Columns that never become keys of a record, where these mean something else."""
USUAL = {
    **{
        field: tuple(name for name in FIELD_NAMES[field] if name not in RESERVED)
        for field in ("text", "language", "speaker", "id", "duration")
    },
    "starts": ("timestamps_start",),
    "ends": ("timestamps_end",),
    "speakers": ("speakers",),
}
"""Column names that are understood without being named."""
SEGMENTS = ("starts", "ends", "speakers")
"""Columns that together hold the speaker segments of a recording; without all of them none is used."""
COMPUTED = ("characters_per_second", "repeats")


class Columns(Section):
    """Columns of the data set. Null: the column is found by its usual names, if it exists."""

    audio: str | None = None
    """The recording: a column of audio, of encoded bytes, or of paths."""
    text: str | None = None
    """Transcript."""
    translation: str | None = None
    """Translation of the transcript, for `task.translate`. Null: the column `translation`."""
    language: str | None = None
    """Language of the record, as a code or as the preset's data set spells it."""
    speaker: str | None = None
    """Speaker."""
    id: str | None = None
    """Id of the record. Null: a usual name, or records are numbered."""
    duration: str | None = None
    """Length of the audio in seconds, or in milliseconds if the name ends in `_ms`. Without one, headers are read."""
    starts: str | None = None
    """Starts of the speaker segments, a list of seconds, for diarization. Null: the column `timestamps_start`."""
    ends: str | None = None
    """Ends of the speaker segments. Null: the column `timestamps_end`."""
    speakers: str | None = None
    """Speakers of the segments. Null: the column `speakers`."""


def segment_keys(
    name: str, values: Mapping[str, Any], columns: Mapping[str, str], seconds: float, where: str
) -> dict[str, Any] | UnusableRecord:
    """The keys of a record for the speaker segments of a row. Raises `DataError` when its three lists do not fit each
    other."""
    try:
        rows = list(zip(*(values[key] or () for key in SEGMENTS), strict=True))
        lines = [RttmLine(name, float(start), float(end), str(speaker), where) for start, end, speaker in rows]
    except (TypeError, ValueError) as error:
        named = ", ".join(f"'{columns[key]}'" for key in SEGMENTS)
        raise DataError(f"{where}: {named} must be lists of one length, seconds and names ({error}).") from None
    return labels_within(name, lines, None, 0.0, seconds, "the audio")
