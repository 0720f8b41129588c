"""Material of a round: what recognisers labelled and what was spoken, as manifests that are trained on; and what the
sets that measure the rounds must not share with it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stentor.commands.prepare.run import prepare_run
from stentor.config.prepare.base import Preparation
from stentor.config.schema import Config
from stentor.data.cut import Cut, UnusableRecord, audio_path
from stentor.data.fields import channel_of
from stentor.data.storage import full_path, join
from stentor.dataloading.leakage import KINDS, leakage
from stentor.errors import ConfigError, DataError
from stentor.pipeline.journal import OtherSettings, read_jsonl, write_jsonl
from stentor.sources.base import Source

MANIFEST, REJECTS, SUMMARY = "manifest.jsonl", "rejects.jsonl", "summary.json"
"""Output files of the steps `labels` and `speech`."""
BULKY = {"hypotheses"}
"""Keys of labels that training does not read."""
Amounts = dict[str, float]
"""`records` and `hours`."""
Place = tuple[str, int | None, float]
"""Where a record begins: the path of its recording, the channel and the second."""


class Entry:
    """The condition for material to enter a round: nothing that people have transcribed, and as long as the records
    that are trained on."""

    def __init__(self, human: Iterable[Cut], min_seconds: float, max_seconds: float):
        self.min_seconds, self.max_seconds = min_seconds, max_seconds
        self.transcribed: dict[str, list[tuple[int | None, float, float]]] = defaultdict(list)
        """By path: channel, start and end in seconds of each stretch of the recording that people have transcribed."""
        for cut in human:
            if place := _place_of(cut):
                path, channel, start = place
                self.transcribed[path].append((channel, start, start + cut.duration))

    def refused(self, place: Place, seconds: float) -> str | None:
        """Reason why a record of so many seconds from this place does not enter; None where it does. No channel is the
        mean of all of them."""
        path, channel, start = place
        for other, begin, end in self.transcribed.get(path, ()):
            if start < end and begin < start + seconds and (channel == other or None in (channel, other)):
                return "human"
        if seconds > self.max_seconds:
            return "too_long"
        return "too_short" if seconds < self.min_seconds else None


def prepared(steps: Iterable[Preparation], plugins: list[Path]) -> list[Path]:
    """Do the steps that are not done; answers their folders. A step is done where nothing of it is kept, too, and where
    it could not use some records: those of data sets are judged by `data.max_bad`, before any round."""
    folders = []
    for step in steps:
        try:
            prepare_run([step], plugins)
        except OtherSettings:
            raise ConfigError(
                f"The settings have changed since {step.to} was made: set them back, or delete {step.to.parent} to do "
                "that round again."
            ) from None
        except DataError as error:
            if not (step.to / SUMMARY).is_file():
                raise
            print(error, flush=True)
        folders.append(step.to)
    return folders


def gather(folders: Mapping[Path, Mapping[str, Cut]], to: Path, entry: Entry) -> tuple[Amounts, dict[str, Amounts]]:
    """Write one manifest `to` of those in the folders, each given with the recordings that it is made of by id; answers
    what entered, and what was left out by reason."""
    left: dict[str, Amounts] = defaultdict(lambda: {"records": 0, "hours": 0.0})
    entered = {"records": 0, "hours": 0.0}
    ids: set[str] = set()
    places: set[Place] = set()

    def records() -> Iterator[dict[str, Any]]:
        for folder, recordings in folders.items():
            for record in read_jsonl(folder / MANIFEST):
                path = full_path(str(join(folder, record["audio_path"])))
                place = _origin(record, recordings) or (path, channel_of(record), record.get("start") or 0.0)
                reason = "same_place" if place in places else entry.refused(place, record["duration"])
                _count(entered if reason is None else left[reason], record)
                if reason is None:
                    name = record["id"] if record["id"] not in ids else f"{folder.name}/{record['id']}"
                    ids.add(name)
                    places.add(place)
                    yield {k: v for k, v in record.items() if k not in BULKY} | {"id": name, "audio_path": path}
            for record in read_jsonl(folder / REJECTS):
                _count(left[record["reason"]], record)

    write_jsonl(to, records())
    return entered, {reason: dict(amounts) for reason, amounts in left.items()}


def _origin(record: Mapping[str, Any], recordings: Mapping[str, Cut]) -> Place | None:
    """Where a segment was cut from, which may have become a file of its own."""
    cut = recordings.get(record.get("recording", ""))
    return None if cut is None else _place_of(cut, record["offset"])


def _place_of(cut: Cut, offset: float = 0.0) -> Place | None:
    path = audio_path(cut)
    return None if path is None else (full_path(path), channel_of(cut.custom), round(cut.start + offset, 6))


def _count(amounts: Amounts, record: dict[str, Any]) -> None:
    amounts["records"] += 1
    amounts["hours"] += (record.get("duration") or 0.0) / 3600


ALWAYS = ("ids", "recordings")
"""Traits that no set may share with the data of the rounds."""


def refuse_leaks(config: Config, human: Sequence[Cut], unlabelled: Sequence[Cut]) -> None:
    """Raise DataError where the test set shares ids, recordings, speakers or texts with the training data, with what is
    to be labelled or with recordings whose voices are spoken in; where another test set, or the set that decides,
    shares ids or recordings with these; and where a test set shares them with the set that decides or with the records
    that calibrate the labels."""
    improve = config.improve
    assert improve is not None
    learned = {"data.train": human, "improve.unlabelled": unlabelled}
    if improve.speech is not None and improve.speech.references is not None:
        learned["improve.speech.references"] = _usable(improve.speech.references)
    test, (decides, apart) = improve.reports(config.data), improve.decides(config.data)
    choose = {} if improve.labels.labelled is None else {"improve.labels.labelled": _usable(improve.labels.labelled)}
    if apart:
        choose[f"data.eval.{decides}"] = _usable(config.data.eval[decides])
    strict = [kind for kind in KINDS if kind not in improve.may_share]
    problems = []
    for name, source in config.data.test.items():
        measured = _usable(source)
        problems += _shared(f"data.test.{name}", measured, learned, strict if name == test else ALWAYS)
        problems += _shared(f"data.test.{name}", measured, choose, ALWAYS)
    if apart:
        name = f"data.eval.{decides}"
        problems += _shared(name, choose[name], learned, ALWAYS)
    if problems:
        may = any(kind in problem for problem in problems for kind in ("speakers", "texts"))
        meant = ", or, where that is meant, say so with `improve.may_share`" if may else ""
        raise DataError(
            f"{'; '.join(problems)}. Its figures would say nothing about new speakers and texts. Take these records "
            f"out (`exclude:` of a source){meant}."
        )


def _usable(source: Source) -> list[Cut]:
    return [cut for cut in source.cuts() if not isinstance(cut, UnusableRecord)]


def _shared(name: str, cuts: Sequence[Cut], learned: Mapping[str, Sequence[Cut]], kinds: Sequence[str]) -> list[str]:
    """A sentence for each of the data that the set shares something of these kinds with."""
    problems = []
    for key, data in learned.items():
        shared = leakage(data, {name: cuts})[name]
        counts = [f"{shared[kind][0]:,} of {shared[kind][1]:,} {kind}" for kind in kinds if shared[kind][0]]
        if counts:
            problems.append(f"`{name}` shares {', '.join(counts)} with `{key}`")
    return problems
