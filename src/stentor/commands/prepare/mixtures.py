"""`stentor prepare mixtures`: simulated conversations as files, to train on or to score without making them again.

TO holds `manifest.jsonl` (records with segments, and words where they are known), `reference.rttm`, `audio/` with one
FLAC file each, and `summary.json`. Records are appended to `manifest.jsonl.part` as their audio is written, so that the
same command goes on after a kill; at the end they are put in order under the final name.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError, ConfigError, DataError, Stopped

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.commands.prepare.words.journal import Journal
    from stentor.data.cut import UnusableRecord
    from stentor.sources.base import Source

IN_A_FOLDER = 1000
"""Audio files in one folder."""
NAMED = 20
"""Unusable records of each reason that the summary names."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str | None
    config: Path | None
    to: Path
    jobs: int = 1


def prepare_mixtures(request: Request) -> None:
    """Write the mixtures of a source, or go on where a killed command stopped.

    Raises ConfigError for options that do not go together and for a folder that holds other mixtures, `Stopped` at a
    signal, and DataError when nothing could be written or over 1 % cannot be used.
    """
    from stentor.commands.prepare.words.journal import Journal, replace
    from stentor.data.dataset_report import MAX_BAD
    from stentor.data.rttm import write_rttm

    source = _source(request)
    cuts = list(source.cuts())
    settings = {"source": source.model_dump(mode="json", by_alias=True), "records": _fingerprint(cuts)}
    manifest, summary_file = request.to / "manifest.jsonl", request.to / "summary.json"
    if manifest.is_file() and summary_file.is_file():
        if json.loads(summary_file.read_text("utf-8"))["settings"] != settings:
            raise ConfigError(f"{request.to} holds other mixtures: give another folder as --to, or delete it.")
        print(f"{manifest} is complete; delete it to make it anew.", flush=True)
        return
    request.to.mkdir(parents=True, exist_ok=True)
    journal = Journal(manifest.with_name("manifest.jsonl.part"), settings)
    names = [_audio_name(i, cut) for i, cut in enumerate(cuts)]
    todo = [i for i, cut in enumerate(cuts) if not _done(cut, request.to / names[i], journal)]
    if len(todo) < len(cuts):
        print(f"Going on: {len(cuts) - len(todo):,} of {len(cuts):,} mixtures were done before.", flush=True)
    with journal:
        _make_all(cuts, names, todo, request, journal)
    outcomes = list(_outcomes(journal, cuts))
    records = [o["record"] for o in outcomes if "record" in o]
    replace(manifest, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    write_rttm(request.to / "reference.rttm", {r["id"]: r.get("segments", []) for r in records})
    summary = _summary(records, [o for o in outcomes if "dropped" in o])
    replace(summary_file, json.dumps({**summary, "settings": settings}, indent=1, ensure_ascii=False) + "\n")
    journal.path.unlink()
    print(
        f"{summary['records']:,} mixtures, {summary['hours']:.2f} hours, {summary['speakers']:,} speakers, "
        f"{summary['overlap']:.1%} of the speech overlaps\nwritten: {manifest} and {request.to / 'reference.rttm'}",
        flush=True,
    )
    lost = len(outcomes) - len(records)
    if lost > MAX_BAD * len(outcomes) or not records:
        first = [message for about in summary["dropped"].values() for message in about["first"]][:NAMED]
        raise DataError(
            f"{lost:,} of {len(outcomes):,} records cannot be used. The first are:\n  " + "\n  ".join(first)
        )


def _source(request: Request) -> Source:
    from stentor.config.load import load, parse_source
    from stentor.sources.base import Source

    if (request.data is None) == (request.config is None):
        raise ConfigError(
            "Say what to mix: as type=conversation,source.type=...,count=..., or with --config FILE, a YAML file that "
            "holds the keys of one source."
        )
    if request.data is not None:
        return parse_source(request.data)
    source = load(request.config, (), Source).config
    assert isinstance(source, Source)
    return source


def _audio_name(index: int, cut: Cut | UnusableRecord) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in cut.id)
    return f"audio/{index // IN_A_FOLDER:04d}/{name}.flac"


def _done(cut: Cut | UnusableRecord, audio: Path, journal: Journal) -> bool:
    from stentor.data.cut import UnusableRecord

    return cut.id in journal.places and (isinstance(cut, UnusableRecord) or audio.exists())


def _make_all(
    cuts: Sequence[Cut | UnusableRecord], names: Sequence[str], todo: list[int], request: Request, journal: Journal
) -> None:
    from stentor.commands.prepare.corpus import progress

    def stop(number: int, _frame: object) -> None:
        raise Stopped(
            f"Stopped by {signal.Signals(number).name}; {len(journal.places):,} of {len(cuts):,} mixtures are in "
            f"{request.to}. Run the same command to go on."
        )

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with progress("mixing", "mixtures") as bar:
            for outcome in _made(cuts, names, todo, request):
                journal.add([outcome])
                bar(len(journal.places), len(cuts))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _made(
    cuts: Sequence[Cut | UnusableRecord], names: Sequence[str], todo: list[int], request: Request
) -> Iterator[dict[str, Any]]:
    """Outcomes in the order of `todo`; made by forked processes, which have the cuts (and voices) in memory."""
    import multiprocessing

    global _work
    _work = (cuts, names, request.to)
    if request.jobs == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(_make, todo)
        return
    with multiprocessing.get_context("fork").Pool(request.jobs, initializer=_start) as pool:
        yield from pool.imap(_make, todo, 8)


_work: tuple[Sequence[Any], Sequence[str], Path]


def _start() -> None:
    """In a helper process: end when the parent ends, however it does."""

    from stentor.data.processes import end_with_parent, plain_signals

    plain_signals()
    end_with_parent()


def _make(index: int) -> dict[str, Any]:
    """Write the audio of one mixture; `{"id", "record"}`, or `{"id", "dropped", "message"}` of one that is none."""
    from stentor.audio.io import write
    from stentor.data.cut import RATE, UnusableRecord, record_from_cut, segments_of
    from stentor.data.load_audio import load_audio

    cuts, names, to = _work
    cut = cuts[index]
    if isinstance(cut, UnusableRecord):
        return {"id": cut.id, "dropped": cut.reason, "message": cut.message}
    try:
        write(to / names[index], load_audio(cut, RATE), RATE)
    except AudioError as error:
        return {"id": cut.id, "dropped": error.reason, "message": f"{cut.id}: {error}"}
    # What says how to make the audio is not needed any more.
    made = {"audio_path", "start", "parts", "mixed_turn", "made_noise", "voice"}
    record = {k: v for k, v in record_from_cut(cut).items() if k not in made}
    segments = record.get("segments") or segments_of(cut)
    return {"id": cut.id, "record": {"id": cut.id, "audio_path": names[index], **record, "segments": segments}}


def _outcomes(journal: Journal, cuts: Sequence[Cut | UnusableRecord]) -> Iterator[dict[str, Any]]:
    """What became of each record, in order."""
    with open(journal.path, "rb") as file:
        for cut in cuts:
            file.seek(journal.places[cut.id])
            yield json.loads(file.readline())


def _summary(records: list[dict[str, Any]], dropped: list[dict[str, Any]]) -> dict[str, Any]:
    spoken = shared = 0.0
    counts: Counter[int] = Counter()
    for record in records:
        counts[len({s["speaker"] for s in record["segments"]})] += 1
        once, more = _overlap(record["segments"])
        spoken, shared = spoken + once, shared + more
    reasons = Counter(d["dropped"] for d in dropped)
    return {
        "records": len(records),
        "hours": round(sum(r["duration"] for r in records) / 3600, 4),
        "speakers": len({s["speaker"] for r in records for s in r["segments"]}),
        "speakers_per_record": {str(n): counts[n] for n in sorted(counts)},
        "speech_hours": round(spoken / 3600, 4),
        "overlap": round(shared / spoken, 4) if spoken else 0.0,
        "dropped": {
            reason: {"count": count, "first": [d["message"] for d in dropped if d["dropped"] == reason][:NAMED]}
            for reason, count in reasons.most_common()
        },
    }


def _overlap(segments: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds in which somebody speaks, and in which two or more do."""
    edges = sorted([(s["start"], 1) for s in segments] + [(s["end"], -1) for s in segments])
    spoken = shared = last = 0.0
    speaking = 0
    for at, change in edges:
        spoken += (at - last) * (speaking > 0)
        shared += (at - last) * (speaking > 1)
        speaking, last = speaking + change, at
    return spoken, shared


def _fingerprint(cuts: Sequence[Cut | UnusableRecord]) -> str:
    """Changes when a mixture is added, taken away, or is another."""
    from stentor.data.cut import UnusableRecord, segments_of

    digest = hashlib.sha256()
    for cut in cuts:
        facts = [cut.id] if isinstance(cut, UnusableRecord) else [cut.id, cut.duration, segments_of(cut)]
        digest.update(json.dumps(facts).encode())
    return f"{len(cuts)}:{digest.hexdigest()[:16]}"
