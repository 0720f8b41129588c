"""Rows of an evaluation of speech: each record's clips and what the evaluators answer for them, as plain data."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.io import encode, probe, read
from stentor.commands.evaluate.on_cluster import answers
from stentor.commands.evaluate.speech_clips import Clips, FileClips, ModelClips, is_recorded, naming, reference_of
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.config.load import parse_section
from stentor.data.cut import field_of, language_of, record_from_cut
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.mixing import DropCounter
from stentor.errors import ConfigError
from stentor.inference.model import Model
from stentor.metrics.speech import REFERENCE
from stentor.pipeline.runner import RecordWithFiles, Results
from stentor.pipeline.worker import Worker
from stentor.sources.speech_list import SCORED_TEXT
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips, evaluator_for
from stentor.tasks.speak.evaluator_scores import evaluate_items
from stentor.tasks.speak.generation import Generation
from stentor.tasks.speak.task import Speak

TOGETHER = 64
"""Records that are handed to the model at once; it makes batches of them."""


class SpeechRows:
    """Makes the rows of records."""

    def __init__(
        self, producer: FileClips | ModelClips, evaluators: Sequence[SpeechEvaluator], device: str, task: Speak
    ):
        self.producer, self.evaluators, self.device, self.task = producer, evaluators, device, task
        self.embedder = next((evaluator for evaluator in evaluators if evaluator.gives == "voice"), None)
        self.embeddings: dict[str, Any] = {}
        """Embeddings of references, by their files."""

    def rows(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """A row for each record whose audio can be used."""
        rows: list[dict[str, Any]] = []
        for start in range(0, len(items), TOGETHER):
            for clips, evaluated in self._evaluated(self.producer.clips(items[start : start + TOGETHER])):
                item = clips.item
                shown = {kind: evaluated[kind] for kind in ("text", "quality") if kind in evaluated}  # no embeddings
                facts = {**clips.facts, **({"heard": shown} if shown else {})}
                reference = self.task.reference(item.cut)
                if (scored := field_of(item.cut, SCORED_TEXT)) is not None:
                    reference["text"] = scored
                row = {"id": item.cut.id, "reference": reference, "output": facts}
                seconds = item.cut.duration if is_recorded(item) else facts["seconds"]
                row |= {"seconds": seconds, "record": record_from_cut(item.cut), "like": clips.like}
                if (path := reference_of(item)) is not None and self.embedder is not None:
                    if path not in self.embeddings:
                        self.embeddings[path] = self._embedded(item, path, self.embedder)
                    evaluated["voice"][REFERENCE] = self.embeddings[path]
                rows.append({**row, "own_reference": path is not None, "evaluated": evaluated})
        return rows

    def _evaluated(self, clips: Sequence[Clips]) -> list[tuple[Clips, dict[str, dict[str, Any]]]]:
        """Each record's clips with the evaluators' outputs."""
        pairs: list[tuple[Clips, dict[str, dict[str, Any]]]] = []
        for rate, group in groupby(clips, lambda clip: clip.rate):
            part = list(group)
            columns = {name: [clip.columns.get(name) for clip in part] for clip in part for name in clip.columns}
            languages = [language_of(clip.item.cut) for clip in part]
            evaluated = evaluate_items(self.evaluators, columns, rate, languages, self.device)
            pairs += zip(part, evaluated, strict=True)
        return pairs

    def _embedded(self, item: Item, path: str, evaluator: SpeechEvaluator) -> Any:
        """The embedding of a record's reference, as it is in its file: SIM-o."""
        with naming(item):
            rate = probe(path).sample_rate
            audio, language = read(path, rate), language_of(item.cut)
        return evaluate_clips(evaluator, [audio], rate, [language], self.device)[0]


def model_clips(loaded: Model, options: EvaluateOptions, others: dict[str, Item], device: str) -> ModelClips:
    """The speech of a model with the settings of the command, whose `length` is not `auto`. Raises ConfigError."""
    task, changes = loaded.for_speech(), {}
    trained = task.generation
    if options.generation is not None:
        settings = parse_section(options.generation, Generation, "--generation", trained).model_dump()
        before = trained.model_dump()
        changes = {key: value for key, value in settings.items() if value != before[key]}
    speaker = loaded.speaker(changes, recognizer=options.recognizer, denoise=options.denoise)
    speaker.codec.to(device)
    return ModelClips(loaded, task, speaker, options.voice, options.length, options.audio, others)


def evaluators_of(options: EvaluateOptions) -> list[SpeechEvaluator]:
    evaluators = []
    if options.recognizer is not None:
        evaluators.append(evaluator_for(options.recognizer, "text"))
    if options.embedder is not None:
        evaluators.append(evaluator_for(options.embedder, "voice"))
    evaluators += [parse_section(spec, SpeechEvaluator, "--judge") for spec in options.judge]
    for kind, noun in (("text", "recogniser"), ("voice", "embedder")):
        if sum(evaluator.gives == kind for evaluator in evaluators) > 1:
            raise ConfigError(f"More than one {noun} is given: their answers cannot be one score. Take one at a time.")
    return evaluators


class SpeechWorker(Worker):
    """Groups of records to `{"id", "row"}`, with what `ModelClips` counts in the first of a group: `computing` and
    `seconds`. The row of a record whose audio cannot be used is None."""

    def __init__(self, options: EvaluateOptions, others: dict[str, Item], speech: SpeechRows | None = None):
        self.options, self.others, self.speech = options, others, speech

    def setup(self, device: str) -> None:
        if self.speech is None:
            self.speech = self._loaded(device)
        self.clips = self.speech.producer
        if isinstance(self.clips, ModelClips):
            self.clips.write = self._keep

    def _loaded(self, device: str) -> SpeechRows:
        from stentor.commands.evaluate.records import place_model
        from stentor.inference.load import load

        loaded = load(str(self.options.model), device)
        device = str(place_model(loaded, device).device)
        clips = model_clips(loaded, self.options, self.others, device)
        return SpeechRows(clips, evaluators_of(self.options), device, clips.task)

    def _keep(self, path: Path, audio: np.ndarray, rate: int) -> None:
        """Speech is written where the command runs."""
        self.files[str(path)] = encode(audio, rate, str(path), "wav")

    def process(self, group: Sequence[Item]) -> Results:
        assert self.speech is not None  # `setup`
        self.files: dict[str, bytes] = {}
        self.clips.computing = self.clips.seconds = 0.0
        rows = {row["id"]: row for row in self.speech.rows(group)}
        outputs = []
        for item in group:
            row = rows.get(item.cut.id)
            path = None if row is None else row["output"].get("audio")
            files = {Path(path): self.files[path]} if path in self.files else {}
            outputs.append(RecordWithFiles({"id": item.cut.id, "row": _with_voices(row, np.ndarray.tolist)}, files))
        outputs[0].record.update(computing=self.clips.computing, seconds=self.clips.seconds)
        return list(outputs), []

    def name(self, group: Sequence[Item]) -> str:
        return group[0].cut.id


def _with_voices(row: dict[str, Any] | None, convert: Callable[[Any], Any]) -> dict[str, Any] | None:
    """The row with other embeddings: JSON has no arrays."""
    if row is None or "voice" not in row["evaluated"]:
        return row
    voices = {column: convert(embedding) for column, embedding in row["evaluated"]["voice"].items()}
    return {**row, "evaluated": {**row["evaluated"], "voice": voices}}


def kept_rows(
    options: EvaluateOptions,
    others: dict[str, Item],
    items: Sequence[Item],
    dropped: DropCounter,
    speech: SpeechRows | None = None,
    rank: int = 0,
) -> tuple[list[dict[str, Any]], float, float]:
    """(the rows of records, seconds that speaking them took, seconds of speech). Records of which every process died
    are counted in `dropped`. With `speech` they are made here, else on a cluster; either way the same command resumes.
    Raises as `answers` does."""
    worker, cuts = SpeechWorker(options, others, speech), [item.cut for item in items]
    rows, computing, seconds = [], 0.0, 0.0
    for line in answers(options, worker, items, TOGETHER, cuts, "records", rank):
        if "record" not in line:
            dropped.add(line["dropped"], line["message"])
            continue
        record = line["record"]
        computing, seconds = computing + record.get("computing", 0.0), seconds + record.get("seconds", 0.0)
        if (row := _with_voices(record["row"], lambda values: np.asarray(values, np.float32))) is not None:
            rows.append(row)
    return rows, computing, seconds
