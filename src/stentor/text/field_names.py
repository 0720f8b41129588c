"""Names that tables and JSON files give to the fields of a manifest's records: one table for all readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "audio_path": (
        *("audio_path", "audio_filepath", "audio_file_path", "audio_file", "audio", "audios", "wav_path"),
        *("wav_filename", "wav", "speech", "flac", "mp3", "opus", "ogg", "path", "file_path", "filepath", "file"),
        *("filename", "file_name", "audio_name", "datei", "dateiname", "fichier", "nom_du_fichier", "archivo"),
    ),
    "text": (
        *("text", "sentence", "transcription", "transcript", "transcriptions", "transcripts", "normalized_text"),
        *("normalised_text", "raw_text", "txt", "wrd", "json.text", "tgt_text"),
        *("texte", "texto", "testo", "transkript", "transkription"),
    ),
    "language": ("language", "language_id", "lang", "locale", "source_lang", "json.language", "sprache", "langue"),
    "speaker": (
        *("speaker", "speaker_id", "speaker_name", "spk_id", "spk", "client_id", "json.speaker"),
        *("sprecher", "locuteur"),
    ),
    "id": ("id", "utt_id", "utterance_id", "audio_id", "uid", "utt", "key", "__key__"),
    "start": ("start", "offset", "start_time", "begin", "begin_time", "start_ms", "offset_ms"),
    "end": ("end", "end_time", "stop", "end_ms"),
    "duration": ("duration", "audio_duration", "duration_ms", "json.duration"),
    "words": ("words",),
    "segments": ("segments",),
    "channel": ("channel",),
}
"""Names by the field they stand for; the first that is there counts. Times whose name ends in `_ms` are milliseconds,
others seconds."""
TIMES = ("start", "duration", "end")
_Named = Literal["audio_path", "text", "language", "speaker", "id", "start", "end", "duration", "channel"]
Field = Literal[_Named, "start_ms", "end_ms", "duration_ms"]
"""Fields whose column can be named."""


def plain_name(name: str) -> str:
    """A name in the form in which names are compared."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def fields_of(names: Iterable[str], fields: Iterable[str] = FIELD_NAMES) -> dict[str, str]:
    """For each field that one of the names stands for, that name as it is written."""
    written = {plain_name(name): name for name in reversed(list(names))}
    known = ((field, next((n for n in FIELD_NAMES[field] if n in written), None)) for field in fields)
    return {field: written[name] for field, name in known if name is not None}


def value_of(row: Mapping[str, Any], field: str) -> Any:
    """The first value of a row for a field that is not None."""
    return next((row[name] for name in FIELD_NAMES[field] if row.get(name) is not None), None)
