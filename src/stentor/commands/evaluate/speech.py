"""Evaluation of synthetic speech, a model's or in files: every record scored by second models, beside the recording
decoded from its codec tokens and the recording itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import torch.distributed as dist

from stentor.commands.evaluate.speech_clips import (
    FileClips,
    ModelClips,
    check_references,
    is_recorded,
    others_of_speakers,
    reference_of,
)
from stentor.commands.evaluate.speech_rows import SpeechRows, evaluators_of, kept_rows, model_clips
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.data.batch import Prediction
from stentor.data.cut import divided
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.mixing import DropCounter
from stentor.engine.device import Communicator
from stentor.errors import ConfigError, DataError
from stentor.inference.model import Model
from stentor.metrics.format import figure
from stentor.metrics.score import Score
from stentor.metrics.speech import mean, real_time_factor
from stentor.sources.base import Source
from stentor.sources.speech_list import SpeechList
from stentor.tasks.speak.evaluator import SpeechEvaluator
from stentor.tasks.speak.evaluator_scores import scores as evaluator_scores
from stentor.tasks.speak.evaluator_scores import table
from stentor.tasks.speak.task import Speak
from stentor.text.normalize import DEFAULT, Normalizer

if TYPE_CHECKING:
    from accelerate import Accelerator

VOICES = ("auto", "reference", "instruct", "none")
LENGTHS = ("auto", "recorded", "rule")
APART = ("loss", "real_time_factor")
"""Scores that are no row of the table."""


@dataclass
class SpeechResult:
    """Results of an evaluation of speech."""

    scores: dict[str, Score]
    predictions: list[Prediction]
    settings: dict[str, Any]
    """Spoken texts and their settings, for the JSON file."""
    dropped: DropCounter
    scorer: Scorer
    """Scores some of the predictions, for a breakdown."""


def check_options(options: EvaluateOptions) -> None:
    """Raises ConfigError for unknown values of the options for models that speak, and for options that do not go
    together."""
    normalizers = ("auto", *get_args(Normalizer))
    for name, value, values in (
        ("voice", options.voice, VOICES),
        ("length", options.length, LENGTHS),
        *(("normalizer", name, normalizers) for name in options.normalizers),
    ):
        if value not in values:
            raise ConfigError(f"Unknown --{name} {value}; known: {', '.join(values)}.")
    if options.audio_from is None and options.model is None:
        raise ConfigError("Give the MODEL to score, or the folder of speech that is there already with --audio-from.")
    if options.audio_from is not None and options.model is not None:
        raise ConfigError("--audio-from scores speech that is there already: leave out the MODEL.")


def evaluate(
    loaded: Model | None, source: Source, device: Accelerator, options: EvaluateOptions, task: Speak
) -> SpeechResult:
    """Score the speech of a model, or that in the folder of `--audio-from`. Several processes share the records.

    The scores: `loss` over all records, where all have recordings; `wer` and `cer`, `similarity` and `voice_accuracy`,
    and the qualities of other evaluators, each also as `NAME_codec` and `NAME_real`; of evaluation lists `wer_mean`,
    the mean of the items' own error rates; `real_time_factor`.
    """
    if len(options.normalizers) > 1:
        raise ConfigError("--normalizer takes several names for recognisers only: give one for synthetic speech.")
    evaluators = evaluators_of(options)
    for evaluator in evaluators:
        evaluator.loaded(str(device.device))  # one that cannot be loaded is an error before hours of speech, not after
    control = Communicator(device.num_processes)
    scores, items, dropped = _records(loaded, source, device, control, options, task)
    check_references(items, None if loaded is None or options.recognizer is not None else options.voice)
    if relative := [e.type for e in evaluators if e.relative and any(reference_of(item) for item in items)]:
        raise ConfigError(
            f"The embedder {relative[0]} tells voices in relation to many recordings of each; the references of a list "
            "are compared one by one. Name an x-vector model with --embedder, or `--judge type=wavlm_ecapa,from=...`."
        )
    listed = source.facts() if isinstance(source, SpeechList) else None
    settings: dict[str, Any] = {} if listed is None else {"list": {**listed, "items": len(items)}}
    others = others_of_speakers(items)
    producer: FileClips | ModelClips
    if loaded is None:
        assert options.audio_from is not None  # `check_options`
        producer = FileClips(options.audio_from, others)
        producer.check(items)
        settings["audio_from"] = str(options.audio_from)
    else:
        if options.length == "recorded" and not all(map(is_recorded, items)):
            raise ConfigError("--length recorded: not every record has a recording; leave it out for this list.")
        if options.length == "auto":
            options = replace(options, length="rule" if listed else "recorded")
        producer = model_clips(loaded, options, others, str(device.device))
        settings |= {
            "length": options.length,
            "generation": producer.speaker.settings,
            "denoise": producer.speaker.denoise,
        }
    if options.ray is None:
        rank = dist.get_rank() if control.world > 1 else 0
        speech, own = SpeechRows(producer, evaluators, str(device.device), task), items[rank :: control.world]
        rows, computing, seconds = kept_rows(options, others, own, dropped, speech, rank)
        rows = [row for part in control.gather(rows) for row in part]
        computing, seconds = control.sum([computing, seconds])
    else:
        rows, computing, seconds = kept_rows(options, others, items, dropped)
    rows.sort(key=lambda row: row["id"])
    if not rows:
        raise DataError(f"{options.data}: no record could be spoken.")
    languages = {row["reference"]["language"] for row in rows}
    normalizer = _normalizer(options.normalizer, listed, languages)
    scorer = Scorer({row["id"]: row for row in rows}, evaluators, normalizer, listed is not None)
    predictions = [
        Prediction(row["id"], row["reference"], row["output"], row["seconds"], row["record"]) for row in rows
    ]
    scores |= scorer.score(predictions)
    if loaded is not None:
        settings["voices"] = dict(Counter(row["output"]["voice"] for row in rows))
        scores["real_time_factor"] = real_time_factor(computing, seconds)
    settings |= {
        "normalizer": normalizer,
        "judges": [evaluator.model_dump(mode="json", by_alias=True) for evaluator in evaluators],
    }
    return SpeechResult(scores, predictions, settings, dropped, scorer)


@dataclass
class Scorer:
    """Scores predictions by what the evaluators answered for them."""

    rows: dict[str, dict[str, Any]]
    evaluators: list[SpeechEvaluator]
    normalizer: str
    listed: bool
    """Whether the records are of an evaluation list, of which the mean of the items' rates is published as well."""

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """The metrics over these predictions."""
        rows = [self.rows[prediction.id] for prediction in predictions]
        numbers = {row["id"]: i for i, row in enumerate(rows)}
        voices = any(evaluator.gives == "voice" for evaluator in self.evaluators)
        relative = any(evaluator.relative for evaluator in self.evaluators)
        if relative and len(rows) < len(self.rows):
            voices = False  # such embeddings mean something beside the whole set alone
        references = [numbers.get(row["id"] if row["own_reference"] else row["like"]) for row in rows]
        return evaluator_scores(
            [row["evaluated"] for row in rows],
            [row["reference"]["text"] for row in rows],
            [row["reference"]["language"] for row in rows],
            [row["reference"]["speaker"] for row in rows],
            references if voices else None,
            relative,
            self.normalizer,
            self.listed,
        )


def macro_averages(parts: dict[str, Any]) -> dict[str, Score]:
    """Macro average of a breakdown by language: the mean over languages of each rate and similarity of the synthetic
    speech."""
    by_language = list(parts.get("language", {}).values())
    names = [name for name in ("wer", "cer", "similarity") if all(name in part for part in by_language)]
    return {f"{name}_macro": mean([part[name]["value"] for part in by_language]) for name in names if by_language}


def text(scores: dict[str, Score], how: dict[str, Any], records: int) -> str:
    """The scores for people: what was spoken and how, and a table of the columns that there are."""
    lines = []
    if "list" in how:
        facts = how["list"]
        lines.append(f"{facts['name']} ({facts['format']}, {facts['items']} items, sha256 {facts['sha256']})")
    shown = [name for name in APART if name in scores]
    apart = "  ".join(f"{name.replace('_', ' ')} {figure(name, scores[name].value)}" for name in shown)
    if "audio_from" in how:
        lines.append(f"{records} records, their speech in {how['audio_from']}  {apart}".rstrip())
    else:
        like = "like their reference" if "list" in how else "like another recording of the speaker"
        kinds = {"voice": "in a saved voice", "reference": like, "instruct": "by their instruct", "none": "freely"}
        voices = ", ".join(f"{count} {kinds[kind]}" for kind, count in how["voices"].items())
        length = "recordings" if how["length"] == "recorded" else "duration rule has it"
        chosen = how["generation"]
        settings = f"; {chosen['steps']} steps, guidance {chosen['guidance']:g}" if "steps" in chosen else ""
        lines.append(f"{records} records spoken ({voices}; as long as the {length}{settings})  {apart}")
    if "list" in how and any("wer" in name for name in scores):
        lines.append(f"Error rates after the normaliser {how['normalizer']}.")
    evaluated_scores = {name: score for name, score in scores.items() if name not in APART}
    return "\n".join([*lines, *(table(evaluated_scores) if evaluated_scores else [])])


def _records(
    loaded: Model | None,
    source: Source,
    device: Accelerator,
    control: Communicator,
    options: EvaluateOptions,
    task: Speak,
) -> tuple[dict[str, Score], list[Item], DropCounter]:
    """(the loss, the records by id, those left out); without a loss where there is no model, or a record without a
    recording."""
    from stentor.commands.evaluate.records import records
    from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup
    from stentor.engine.evaluate import evaluate as score
    from stentor.export.probe import losses_of

    dropped = DropCounter()
    if loaded is not None and not isinstance(source, SpeechList):
        plan, dropped, section = records(loaded, task, source, options)
        items = [item for items in plan.epoch(0) for item in items]
        without_samples = task.model_copy(update={"samples": 0})
        settings = EvalOptions(max_bad=section.max_bad)
        setup = EvalSetup(loaded.bundle, without_samples, losses_of(loaded), device, control, settings)
        scores, _, _ = score(setup, EvalSet(options.data, plan, dropped))
        return scores, sorted(items, key=lambda item: item.cut.id), dropped
    cuts, unusable = divided(source.cuts())
    for record in unusable:
        dropped.add(record.reason, record.message)
    if not cuts:
        raise DataError(f"{options.data}: there is no record to score.")
    return {}, [Item(cut, 0) for cut in sorted(cuts, key=lambda cut: cut.id)], dropped


def _normalizer(name: str, listed: dict[str, Any] | None, languages: set[str | None]) -> str:
    """Normaliser of `auto`: for an evaluation list the one that it is published in, or else Whisper's for English."""
    own = None if listed is None else listed["protocol"] or ("whisper_english" if languages == {"en"} else None)
    return name if name != "auto" else own or DEFAULT
