"""`stentor prepare mixtures`: simulated conversations as files, to train on or to score without making them again.

TO holds `manifest.jsonl` (records with segments, and words where they are known), `reference.rttm`, `audio/` with one
FLAC file each, and `summary.json`. Records are appended to `manifest.jsonl.part` as their audio is written, so that the
same command resumes after a kill; at the end they are put in order under the final name.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.audio.io import encode
from stentor.commands.prepare_options import MixturesOptions
from stentor.config.load import load, parse_source
from stentor.data.cut import RATE, Cut, UnusableRecord, divided, record_from_cut, segments_of
from stentor.data.load_audio import load_audio
from stentor.data.record_table import RecordTable
from stentor.data.rttm import write_rttm
from stentor.errors import AudioError, ConfigError, DataError
from stentor.pipeline.executor import make_executor
from stentor.pipeline.journal import Fingerprint, made_before, remove_journal, write_json, write_jsonl
from stentor.pipeline.runner import RecordsInJournal, RecordWithFiles, refuse_rejects, reject, summarize
from stentor.pipeline.worker import Worker
from stentor.sources.base import Source

FOLDER_ITEMS = 1000
"""Audio files in one folder."""
GENERATION_KEYS = {"audio_path", "start", "channel", "parts", "mixed_turn", "made_noise", "voice"}
"""Keys that say how to generate the audio, which a stored record does not need."""


def prepare_mixtures(options: MixturesOptions) -> None:
    """Write the mixtures of a source, or resume where a killed command stopped. Raises ConfigError for options that do
    not go together and for a folder that holds other mixtures, `Stopped` at a signal, and DataError when nothing could
    be written or over 1 % cannot be used."""
    source = _source(options)
    digest = Fingerprint(_description)
    cuts = RecordTable(Mixture(index, cut) for index, cut in enumerate(digest.through(source.cuts())))
    settings = {"source": source.model_dump(mode="json", by_alias=True), "records": str(digest)}
    manifest = options.to / "manifest.jsonl"
    if made_before(options.to, settings, "mixtures") is not None:
        return
    worker = MixturesWorker(options.to)
    executor = make_executor(options, fork=True)  # a forked process has the voices that were generated in memory
    groups = [cuts[index : index + 1] for index in range(len(cuts))]
    work = RecordsInJournal(manifest, settings, "mixing", "mixtures", worker.is_written)
    journal = work.run(worker, executor, groups)
    records, rejects = journal.outcomes(mixture.id for mixture in cuts)
    write_jsonl(manifest, records)
    write_rttm(options.to / "reference.rttm", {r["id"]: r.get("segments", []) for r in records})
    summary = {**_summary(records), "dropped": summarize(rejects)}
    write_json(options.to / "summary.json", {**summary, "settings": settings})
    remove_journal(journal.path)
    print(
        f"{summary['records']:,} mixtures, {summary['hours']:.2f} hours, {summary['speakers']:,} speakers, "
        f"{summary['overlap']:.1%} of the speech overlaps\nwritten: {manifest} and {options.to / 'reference.rttm'}",
        flush=True,
    )
    refuse_rejects([reject.message for reject in rejects], len(cuts))
    if not cuts:
        raise DataError("There is nothing to mix: the source has no records.")


def _source(options: MixturesOptions) -> Source:
    if (options.data is None) == (options.config is None):
        raise ConfigError(
            "Say what to mix: as type=conversation,source.type=...,count=..., or with --config FILE, a YAML file that "
            "holds the keys of one source."
        )
    if options.data is not None:
        return parse_source(options.data)
    source = load(options.config, (), Source).config
    assert isinstance(source, Source)
    return source


def _description(cut: Cut | UnusableRecord) -> list[Any]:
    """Settings that tell one mixture from another."""
    return [cut.id] if isinstance(cut, UnusableRecord) else [cut.id, cut.duration, segments_of(cut)]


@dataclass(frozen=True)
class Mixture:
    """A mixture, and its number in the source."""

    index: int
    cut: Cut | UnusableRecord

    @property
    def id(self) -> str:
        return self.cut.id

    @property
    def audio_path(self) -> str:
        """Relative to the folder."""
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.id)
        return f"audio/{self.index // FOLDER_ITEMS:04d}/{name}.flac"


class MixturesWorker(Worker):
    """The audio and the manifest records of mixtures."""

    def __init__(self, folder: Path):
        self.folder = folder

    def is_written(self, mixture: Mixture) -> bool:
        return isinstance(mixture.cut, UnusableRecord) or (self.folder / mixture.audio_path).exists()

    def process(self, group: Sequence[Mixture]) -> tuple[list[RecordWithFiles], list[UnusableRecord]]:
        return divided(self._mix(mixture) for mixture in group)

    def _mix(self, mixture: Mixture) -> RecordWithFiles | UnusableRecord:
        cut, path = mixture.cut, mixture.audio_path
        if isinstance(cut, UnusableRecord):
            return cut
        try:
            audio = encode(load_audio(cut, RATE), RATE, path)
        except AudioError as error:
            return reject(cut, error)
        record = {k: v for k, v in record_from_cut(cut).items() if k not in GENERATION_KEYS}
        segments = record.get("segments") or segments_of(cut)
        record = {"id": cut.id, "audio_path": path, **record, "segments": segments}
        return RecordWithFiles(record, {self.folder / path: audio})


def _summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    speech = overlap = 0.0
    counts: Counter[int] = Counter()
    for record in records:
        counts[len({s["speaker"] for s in record["segments"]})] += 1
        seconds = _speech_and_overlap(record["segments"])
        speech, overlap = speech + seconds[0], overlap + seconds[1]
    return {
        "records": len(records),
        "hours": round(sum(r["duration"] for r in records) / 3600, 4),
        "speakers": len({s["speaker"] for r in records for s in r["segments"]}),
        "speakers_per_record": {str(n): counts[n] for n in sorted(counts)},
        "speech_hours": round(speech / 3600, 4),
        "overlap": round(overlap / speech, 4) if speech else 0.0,
    }


def _speech_and_overlap(segments: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds in which somebody speaks, and in which two or more do."""
    edges = sorted([(s["start"], 1) for s in segments] + [(s["end"], -1) for s in segments])
    speech = overlap = last = 0.0
    speaking = 0
    for time, change in edges:
        speech += (time - last) * (speaking > 0)
        overlap += (time - last) * (speaking > 1)
        speaking, last = speaking + change, time
    return speech, overlap
