"""Silence at the ends of recordings, cut off and put back.

A trimmed recording has a new file. Its record keeps in `untrimmed` the fields of before, with the name of the old file,
which stays in the data set until the recording is made again or deleted for good.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stentor.audio.io import probe, read
from stentor.studio.files import Record, files_of, locked
from stentor.studio.projects import DataSet

ROOM = 0.2
"""Seconds that stay before and after speech."""
LEAST = 0.1
"""Seconds of silence that are worth cutting off an end, beyond `ROOM`."""
TIMED = ("audio_path", "start", "duration", "words", "segments")
"""Keys of a record that change when it is trimmed."""


class TrimSpan(NamedTuple):
    """Part of a recording that stays, in seconds from its present beginning."""

    start: float
    end: float
    cut: float
    """Seconds that go."""
    audio_path: str
    """File that this was found in."""


def trim_span(
    record: Record, words: Sequence[dict[str, Any]], seconds: float, speech: tuple[float, float] | None
) -> TrimSpan | None:
    """The span of a recording of `seconds` with `speech` (its first and last second) and `words` with times, and `ROOM`
    around speech. None where nothing is to be cut, and where it was trimmed already."""
    if speech is None or "untrimmed" in record:
        return None
    start = max(0.0, min([speech[0] - ROOM, *(w["start"] for w in words)]))
    end = min(seconds, max([speech[1] + ROOM, *(w["end"] for w in words)]))
    start, end = (start if start >= LEAST else 0.0), (end if seconds - end >= LEAST else seconds)
    cut = start + seconds - end
    return TrimSpan(start, end, cut, record["audio_path"]) if cut else None


def trim(dataset: DataSet, spans: Mapping[str, TrimSpan]) -> dict[str, float]:
    """Cut recordings to these spans; answers the seconds that were cut, by id. Recordings that were made again, trimmed
    or removed meanwhile stay. Raises AudioError for a file that cannot be read, StentorError when the disk is full:
    then nothing has changed."""
    new: dict[str, Record] = {}
    with locked(dataset.folder), contextlib.ExitStack() as saved:
        for record in dataset.records():
            span = spans.get(record["id"])
            if span and span.audio_path == record["audio_path"] and "untrimmed" not in record:
                new[record["id"]] = saved.enter_context(_trimmed(dataset, record, span))
        dataset.rewrite(lambda r: new.get(r["id"], r))
    return {id: spans[id].cut for id in new}


def _trimmed(dataset: DataSet, record: Record, span: TrimSpan) -> contextlib.AbstractContextManager[Record]:
    path = dataset.audio(record)
    rate = probe(path).sample_rate
    audio = read(path, rate, (record.get("start") or 0.0) + span.start, span.end - span.start)
    shifted = {key: _shifted(record[key], span) for key in ("words", "segments") if record.get(key)}
    before = {key: record[key] for key in TIMED if key in record}
    fields = {key: value for key, value in record.items() if key not in TIMED}
    return dataset.saved({**fields, **shifted, "untrimmed": before}, audio, rate)


def _shifted(items: Iterable[dict[str, Any]], span: TrimSpan) -> list[dict[str, Any]]:
    """Words or segments on the clock of what stays, held to it."""
    shifted = []
    for item in items:
        times = {key: round(min(max(item[key], span.start), span.end) - span.start, 4) for key in ("start", "end")}
        inner = {"words": _shifted(item["words"], span)} if item.get("words") else {}
        shifted.append({**item, **times, **inner})
    return shifted


def restore(dataset: DataSet, ids: Iterable[str]) -> list[str]:
    """Undo `trim`; answers the ids of the recordings that are whole again: all but those whose old file is gone."""
    wanted = set(ids)
    with locked(dataset.folder):
        records = [r for r in dataset.records() if r["id"] in wanted and len(files_of(r)) > 1]
        trimmed = [r for r in records if dataset.audio(r["untrimmed"]).is_file()]
        whole = {}
        for record in trimmed:
            # Words that are gone were those of another text.
            fields = {k: v for k, v in record["untrimmed"].items() if k in record or k == "start"}
            whole[record["id"]] = {k: v for k, v in {**record, **fields}.items() if k != "untrimmed"}
        dataset.rewrite(lambda r: whole.get(r["id"], r))
        dataset.forget([{"audio_path": record["audio_path"]} for record in trimmed])
    return list(whole)
