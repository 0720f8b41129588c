"""JSON documents: lists of records, objects that hold one, records by their ids, and exports of Label Studio."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.errors import DataError, RecordError
from stentor.text.field_names import FIELD_NAMES, fields_of

DOCUMENTS = ("JSON list", "JSON object", "JSON objects over several lines", "JSON records by their ids", "Label Studio")
_BLANK = " \r\n\t"


@dataclass
class Objects:
    """The records of a document."""

    layout: str
    where: str
    records: Sequence[Any]
    """Objects; what is none is an error where it is read."""
    remarks: tuple[str, ...] = ()
    zipped = damaged = False

    def numbered(self) -> Iterator[tuple[int, Any]]:
        for number, record in enumerate(self.records, 1):
            wrong = f"{self.where}: record {number} must be an object, got {record!s:.60}."
            yield number, record if isinstance(record, dict) else RecordError(wrong)


def read_document(text: str, where: str) -> Objects | None:
    """The records of a JSON text that is more than lines of JSON; None for what is no JSON document. Raises DataError
    for a document with several lists."""
    text, values, ends, decode = text.strip(f"\ufeff{_BLANK}"), [], [0], json.JSONDecoder().raw_decode
    try:
        while ends[-1] < len(text):
            value, end = decode(text, ends[-1])
            values.append(value)
            ends.append(end + len(text[end : end + 100]) - len(text[end : end + 100].lstrip(f"{_BLANK},")))
    except (ValueError, RecursionError):
        return None
    if len(values) > 1:  # objects of one line each are lines of JSON
        return Objects(DOCUMENTS[2], where, values) if "\n" in text[: ends[1]].rstrip() else None
    document = values[0] if values else None
    if isinstance(document, list):
        tasks = any(isinstance(task, dict) and isinstance(task.get("data"), dict) for task in document[:1])
        return _label_studio(document, where) if tasks else Objects(DOCUMENTS[0], where, document)
    if not isinstance(document, dict) or "audio_path" in fields_of(document):
        return Objects(DOCUMENTS[1], where, [document]) if isinstance(document, dict) else None
    lists = {k: v for k, v in document.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
    if len(lists) > 1:
        names = ", ".join(f"`{name}`" for name in lists)
        raise DataError(f"{where}: it holds several lists ({names}): write each into a file of its own.")
    for name, records in lists.items():
        return Objects(f"{DOCUMENTS[0]} in `{name}`", where, records)
    if document and all(isinstance(value, dict) for value in document.values()):
        return Objects(DOCUMENTS[3], where, [{"id": name, **value} for name, value in document.items()])
    if document and all(isinstance(v, str) and k.lower().endswith(AUDIO_SUFFIXES) for k, v in document.items()):
        return Objects(DOCUMENTS[3], where, [{"audio_path": name, "text": said} for name, said in document.items()])
    return None


def _label_studio(tasks: Sequence[Any], where: str) -> Objects:
    """The transcripts of tasks: a record for each region with a text, or for the whole recording."""
    records: list[Any] = []
    given = [(task, _annotations(task)) for task in tasks]
    results = [r for _, found in given for r in (found[-1].get("result") or () if found else ())]
    texts = dict.fromkeys(str(r.get("from_name")) for r in results if (r.get("value") or {}).get("text"))
    control = next(iter(fields_of(texts, ["text"]).values() if len(texts) > 1 else texts), None)
    if control is None and texts:
        names = ", ".join(f"`{name}`" for name in texts)
        raise DataError(
            f"{where}: it has texts of several controls ({names}): give that of the transcript `text` as its name."
        )
    older = empty = 0
    for number, (task, found) in enumerate(given, 1):
        data = task.get("data") if isinstance(task, dict) else None
        name = fields_of(data, ["audio_path"]).get("audio_path") if isinstance(data, dict) else None
        if not isinstance(data, dict) or name is None:
            records.append(f"task {number}, which has no audio in its `data`")
            continue
        regions, about = _regions(found[-1].get("result") or (), control) if found else ([], {})
        older, empty = older + max(0, len(found) - 1), empty + (not regions)
        shared = {k: v for k, v in data.items() if k != name and k not in FIELD_NAMES["text"]} | about
        records += [{"audio_path": data[name], **shared, **region} for region in regions]
    notes = [f"Not read: {older} older annotations; the last of each task counts."] if older else []
    notes += [f"Left out: {empty} tasks without a transcript."] if empty else []
    if others := [f"`{name}`" for name in texts if name != control]:
        notes.append(f"Not read: the texts of {', '.join(others)}; those of `{control}` are the transcripts.")
    return Objects(DOCUMENTS[4], where, records, tuple(notes))


def _annotations(task: Any) -> list[dict[str, Any]]:
    """The annotations of a task that were not cancelled."""
    found = (task.get("annotations") or task.get("completions") or ()) if isinstance(task, dict) else ()
    return [annotation for annotation in found if not annotation.get("was_cancelled")]


def _regions(results: Any, control: str | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Text, times and speaker of each region of an annotation, in the order of time, and what was chosen for the whole
    recording: its language, say. `control`: the name of the control that has the transcripts."""
    regions: dict[str, dict[str, Any]] = {}
    for number, result in enumerate(results):
        value, region = result.get("value") or {}, regions.setdefault(str(result.get("id", number)), {})
        region |= {key: value[key] for key in ("start", "end") if key in value}
        if (texts := value.get("text")) and str(result.get("from_name")) == control:
            region["text"] = " ".join(texts) if isinstance(texts, list) else str(texts)
        if labels := value.get("labels"):
            region["speaker"] = str(labels[0])
        for field in fields_of([str(result.get("from_name"))], ["language", "speaker"]) if value.get("choices") else ():
            region[field] = str(value["choices"][0])
    about = {k: v for r in regions.values() if "text" not in r and "start" not in r for k, v in r.items()}
    return sorted((r for r in regions.values() if "text" in r), key=lambda region: region.get("start", 0.0)), about
