"""Fields of manifest records, checked: each error names the line, the key and what it should be."""

from collections.abc import Mapping
from typing import Any

from stentor.errors import DataError, RecordError

LONGEST = 1e7
"""Seconds (four months) beyond which no time of a recording lies."""


def seconds_field(record: dict[str, Any], key: str, where: str) -> float | None:
    """Seconds of a record, at least 0; None when the key is absent."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{where}: `{key}` must be a number of seconds, got {value!r}.")
    if not 0 <= value <= LONGEST:
        raise RecordError(f"{where}: `{key}` must be a number of seconds, got {str(value)[:20]}.", "wrong_range")
    return float(value)


def channel_of(fields: Mapping[str, Any] | None) -> int | None:
    """The channel, from 0, that a record or the custom keys of a cut name; None when they name none. A key `channel`
    that is no number, such as the name of a broadcaster, is none."""
    channel = (fields or {}).get("channel")
    return channel if type(channel) is int and channel >= 0 else None


def uem_field(value: Any, where: str) -> list[tuple[float, float]]:
    """The list `uem`, checked."""
    spans = value if isinstance(value, list) else [value]
    for span in spans:
        ends = {"start": span[0], "end": span[1]} if isinstance(span, list) and len(span) == 2 else {}
        start, end = seconds_field(ends, "start", where), seconds_field(ends, "end", where)
        if start is None or end is None or end <= start:
            raise DataError(f"{where}: `uem` is a list of [start, end] in seconds, got {span!r} in it.")
    return spans


def list_field(record: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list `words` or `segments`, checked."""
    items = record.get(key) or []
    if not isinstance(items, list):
        raise DataError(f"{where}: `{key}` must be a list, got {items!r}.")
    label = {"words": "word", "segments": "speaker"}[key]
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get(label), str):
            raise DataError(f'{where}: each of `{key}` needs "{label}", "start" and "end", got {item!r}.')
        start, end = seconds_field(item, "start", where), seconds_field(item, "end", where)
        if start is None or end is None or end < start:
            raise DataError(f'{where}: each of `{key}` needs "start" <= "end" in seconds, got {item!r}.')
    return items
