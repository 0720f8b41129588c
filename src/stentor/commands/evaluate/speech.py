"""Evaluation of models that speak: every record spoken and scored by second models, beside the recording decoded from
its codec tokens and the recording itself."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch.distributed as dist

from stentor.config.load import parse_section
from stentor.data.batch import Example, Prediction
from stentor.data.cut import language_of, record_from_cut, speaker_of, text_of
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.engine.device import Communicator
from stentor.engine.evaluate import EvalOptions, EvalSet
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.load import Model
from stentor.inference.speak import Utterance
from stentor.inference.speak.speaker import Speaker
from stentor.inference.speak.voice import Voice
from stentor.metrics.format import figure
from stentor.metrics.score import Score
from stentor.metrics.speech import real_time_factor
from stentor.tasks.speak import Speak, seed_of
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluator_for
from stentor.tasks.speak.evaluator_scores import evaluate_items, table
from stentor.tasks.speak.evaluator_scores import scores as evaluator_scores
from stentor.tasks.speak.generation import Generation
from stentor.text.normalize import Normalizer

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.cli.train import EvaluateOptions

VOICES = ("auto", "reference", "instruct", "none")
LENGTHS = ("recorded", "rule")
SPEECH_OPTIONS = ("recognizer", "embedder", "judge", "voice", "length", "generation", "denoise", "normalizer", "audio")
"""Options of `stentor evaluate` that are for models that speak."""
LEAST, MOST = 1.0, 20.0
"""Seconds of the recordings that are taken as references, where the speaker has such."""
TOGETHER = 64
"""Records that are handed to the model at once; it makes batches of them."""


def speech_options(options: EvaluateOptions) -> list[str]:
    """The options for models that speak that differ from their defaults, as `--NAME`."""
    declared = {field.name: field for field in fields(options)}
    return [f"--{name}" for name in SPEECH_OPTIONS if getattr(options, name) not in (declared[name].default, [])]


def check_options(options: EvaluateOptions) -> None:
    """Raises ConfigError for unknown values of the options for models that speak."""
    known = {"voice": VOICES, "length": LENGTHS, "normalizer": get_args(Normalizer)}
    for name, values in known.items():
        if getattr(options, name) not in values:
            raise ConfigError(f"Unknown --{name} {getattr(options, name)}; known: {', '.join(values)}.")


@dataclass
class _Job:
    model: Model
    task: Speak
    speaker: Speaker
    options: EvaluateOptions
    evaluators: list[SpeechEvaluator]
    items: list[Item]
    references: dict[str, Item]  # by id of a record, another recording of its speaker
    device: Any
    codes: dict[str, np.ndarray] = field(default_factory=dict)
    computing: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> int:
        return int(self.model.bundle.processor.sample_rate)


def evaluate(
    loaded: Model, eval_set: EvalSet, device: Accelerator, options: EvaluateOptions, max_bad: float
) -> tuple[dict[str, Score], list[Prediction], dict[str, Any]]:
    """(scores, predictions, settings that the speech was made with) of a data source.

    The scores: `loss` over all records; `wer` and `cer`, `similarity` and `voice_accuracy`, and the qualities of other
    evaluators, each also as `NAME_codec` and `NAME_real`; `real_time_factor`. Several processes share the records.
    """
    from stentor.commands.export.probe import losses_of
    from stentor.engine.evaluate import evaluate as score

    evaluators = _evaluators(options)
    speaker = _speaker(loaded, options)
    bundle, task = loaded.bundle, loaded.for_speech()
    bundle.processor.codec.to(str(device.device))  # type: ignore[attr-defined]
    control = Communicator(device.num_processes)
    without_samples = task.model_copy(update={"samples": 0})
    scores, _, _ = score(
        bundle, without_samples, losses_of(loaded), eval_set, device, control, EvalOptions(max_bad=max_bad)
    )
    items = sorted((item for items in eval_set.plan.epoch(0) for item in items), key=lambda item: item.cut.id)
    job = _Job(loaded, task, speaker, options, evaluators, items, _references(items), device.device)
    rows = sorted(_speak_all(job, control), key=lambda row: row["id"])
    if not rows:
        raise DataError(f"{options.data}: no record could be spoken.")
    numbers = {row["id"]: i for i, row in enumerate(rows)}
    references = [numbers.get(row["like"]) for row in rows]
    scores |= evaluator_scores(
        [row["evaluated"] for row in rows],
        [row["reference"]["text"] for row in rows],
        [row["reference"]["language"] for row in rows],
        [row["reference"]["speaker"] for row in rows],
        references if any(evaluator.gives == "voice" for evaluator in evaluators) else None,
        any(evaluator.relative for evaluator in evaluators),
        options.normalizer,
    )
    computing, seconds = control.sum([job.computing, job.seconds])
    scores["real_time_factor"] = real_time_factor(computing, seconds)
    predictions = [
        Prediction(row["id"], row["reference"], row["output"], row["seconds"], row["record"]) for row in rows
    ]
    voices = Counter(row["output"]["voice"] for row in rows)
    settings = {
        "voices": dict(voices),
        "length": options.length,
        "generation": speaker.generation.model_dump(),
        "denoise": speaker.denoise,
        "normalizer": options.normalizer,
        "judges": [evaluator.model_dump(mode="json", by_alias=True) for evaluator in evaluators],
    }
    return scores, predictions, settings


def text(scores: dict[str, Score], how: dict[str, Any], records: int) -> str:
    """The scores for people: how it was spoken, and a table of three columns."""
    apart = ("loss", "real_time_factor")
    kinds = {"reference": "like another recording of the speaker", "instruct": "by their instruct", "none": "freely"}
    voices = ", ".join(f"{count} {kinds[kind]}" for kind, count in how["voices"].items())
    length = "as long as the recordings" if how["length"] == "recorded" else "as long as the duration rule has it"
    settings = how["generation"]
    head = (
        f"{records} records spoken ({voices}; {length}; {settings['steps']} steps, guidance {settings['guidance']:g})  "
        + "  ".join(f"{name.replace('_', ' ')} {figure(name, scores[name].value)}" for name in apart if name in scores)
    )
    evaluated_scores = {name: score for name, score in scores.items() if name not in apart}
    return "\n".join([head, *(table(evaluated_scores) if evaluated_scores else [])])


def _speaker(loaded: Model, options: EvaluateOptions) -> Speaker:
    settings = loaded.for_speech().generation
    if options.generation is not None:
        settings = parse_section(options.generation, Generation, "--generation", settings)
    return loaded.speaker(settings.model_dump(), denoise=options.denoise)


def _evaluators(options: EvaluateOptions) -> list[SpeechEvaluator]:
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


def _speak_all(job: _Job, control: Communicator) -> list[dict[str, Any]]:
    """A row of plain data for each record of all processes."""

    rank = dist.get_rank() if control.world > 1 else 0
    reader = _Reader(job)
    rows: list[dict[str, Any]] = []
    rank_items = job.items[rank :: control.world]
    for start in range(0, len(rank_items), TOGETHER):
        part = rank_items[start : start + TOGETHER]
        ready = [(item, example) for item in part if (example := reader.example(item)) is not None]
        if not ready:
            continue
        waveforms, outputs = _speak(job, reader, ready)
        codec: Any = job.model.bundle.processor.codec  # type: ignore[attr-defined]
        columns = {
            "synthetic": waveforms,
            "codec": codec.decode([job.codes[item.cut.id] for item, _ in ready]),
            "real": [example.audio for _, example in ready],
        }
        languages = [example.language for _, example in ready]
        evaluations = evaluate_items(job.evaluators, columns, job.rate, languages, str(job.device))
        for (item, _), output, evaluated in zip(ready, outputs, evaluations, strict=True):
            shown = {kind: evaluated[kind] for kind in ("text", "quality") if kind in evaluated}  # no embeddings
            facts = {**output["facts"], **({"heard": shown} if shown else {})}
            row = {"id": item.cut.id, "reference": job.task.reference(item.cut), "output": facts}
            row |= {"seconds": item.cut.duration, "record": record_from_cut(item.cut)}
            rows.append({**row, "like": output["like"], "evaluated": evaluated})
    return [row for part in control.gather(rows) for row in part]


def _speak(
    job: _Job, reader: _Reader, ready: Sequence[tuple[Item, Example]]
) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    """The speech of some records, float32 [samples] each, and the facts about it."""
    utterances, like = [], []
    for item, example in ready:
        record = job.task.spoken(item.cut)
        kind, reference = _voice(job, reader, item, record.instruct)
        # A voice without a reference is compared with another recording of its speaker, or else with its own.
        like.append((kind, (reference or job.references.get(item.cut.id, item)).cut.id))
        utterances.append(
            Utterance(
                record.text,
                voice=reader.voice(reference) if kind == "reference" and reference is not None else None,
                language=record.language,
                instruct=record.instruct if kind == "instruct" else None,
                duration=example.extra["seconds"] if job.options.length == "recorded" else None,
                seed=seed_of(job.speaker.generation.seed, item.cut.id),
            )
        )
    began = time.perf_counter()
    # As it comes from the codec: trimming and levels would be measured along with the model.
    speeches = list(job.speaker.speak(utterances, finish=False))
    job.computing += time.perf_counter() - began
    outputs = []
    for (item, _), (kind, reference_id), speech in zip(ready, like, speeches, strict=True):
        job.seconds += speech.seconds
        facts = {
            "voice": kind,
            "seconds": round(speech.seconds, 3),
            "frames": speech.codes.shape[1],
            "seed": speech.seed,
        }
        if kind == "reference":
            facts["like"] = reference_id
        if job.options.audio is not None:
            facts["audio"] = str(_write(job.options.audio, item.cut.id, speech.audio, speech.rate))
        outputs.append({"facts": facts, "like": reference_id})
    return [speech.audio for speech in speeches], outputs


def _voice(job: _Job, reader: _Reader, item: Item, instruct: str | None) -> tuple[str, Item | None]:
    """What tells the voice of a record, and the record whose recording does."""
    if instruct and job.options.voice in ("auto", "instruct"):
        return "instruct", None
    reference = job.references.get(item.cut.id)
    if reference is not None and job.options.voice in ("auto", "reference") and reader.voice(reference) is not None:
        return "reference", reference
    return "none", None


def _references(items: Sequence[Item]) -> dict[str, Item]:
    """For each record another one of the same speaker that has a text, of a good length where there is one: the next by
    id. Records of speakers who are not known, or who have no other, are left out."""
    by_speaker: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.cut.id):
        speaker = speaker_of(item.cut)
        if speaker is not None and (text_of(item.cut) or "").strip():
            by_speaker.setdefault(speaker, []).append(item)
    references = {}
    for records in by_speaker.values():
        good = [item for item in records if LEAST <= item.cut.duration <= MOST]
        if len(good) < 2:
            good = records
        ids = [item.cut.id for item in good]
        for item in records:
            reference = good[bisect_right(ids, item.cut.id) % len(good)]
            if reference is not item:
                references[item.cut.id] = reference
    return references


class _Reader:
    """Records with their codes; each is counted once where it cannot be used."""

    def __init__(self, job: _Job):
        self.job = job
        self.reader = BatchDataset(job.task, job.model.bundle.processor, None, seed=0)

    def example(self, item: Item) -> Example | None:
        """The example of a record, whose codes are then in `job.codes`."""
        examples, _ = self.reader.examples([item])  # what cannot be read was counted with the loss
        if not examples:
            return None
        processor: Any = self.job.model.bundle.processor
        try:
            codes = self.job.codes[item.cut.id] = processor.codes(examples[0])
            processor.codec.decode([codes[:, :1]])
        except AudioError:
            return None
        examples[0].extra["seconds"] = codes.shape[1] / processor.codec.frame_rate
        return examples[0]

    def voice(self, item: Item) -> Voice | None:
        """The voice of a record."""
        if item.cut.id not in self.job.codes and self.example(item) is None:
            return None
        return Voice(self.job.codes[item.cut.id], text_of(item.cut) or "", language_of(item.cut), item.cut.id)


def _write(folder: Path, name: str, audio: np.ndarray, rate: int) -> Path:
    from stentor.audio.io import write

    path = folder / f"{re.sub(r'[^0-9A-Za-z._-]', '_', name).lstrip('.') or 'record'}.wav"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, audio, rate)
    return path
