"""Probe: the clips that a model and its export are both run on, how the outputs of the two are compared, and what
rounding may explain."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lhotse.cut import Cut

from stentor.audio.synth import say
from stentor.data.batch import Example, Prediction
from stentor.data.cut import UnusableRecord, cut_from_record
from stentor.data.seeding import rng
from stentor.dataloading.batch_sampler import Item
from stentor.dataloading.loader import BatchDataset
from stentor.dataloading.planned import ModelDrops
from stentor.errors import StentorError, installed
from stentor.inference.load import TRAINING_CONFIG
from stentor.inference.model import Model
from stentor.losses.base import Loss, expanded
from stentor.metrics.format import figure, is_rate, label
from stentor.metrics.wer import score
from stentor.models.base import Bundle
from stentor.section import saved_in
from stentor.sources.base import Source
from stentor.tasks.base import Task
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe

AnyTask = TypeVar("AnyTask", bound=Task)


class Different(StentorError):
    """The export does not do what the model does."""


@dataclass
class Agreement:
    """Description of the comparison that passed within rounding; or the reason why there was none."""

    summary: str
    """For people, in a sentence without a point."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures of the comparison: `clips`, the metric of both, `rounded` (answers that differ by rounding)."""

    def __str__(self) -> str:
        return self.summary

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {"checked": self.summary, **self.facts}


@dataclass
class Tolerance:
    """Tolerances for rounding in the outputs of the same weights."""

    loss: float
    """Difference of a mean loss, relative to 1 + the loss."""
    log_prob: float
    """Difference of the mean log-probability of an answer whose text came out differently."""
    share: float
    """Share of the clips whose text may come out differently at all (rounded down): where two tokens are as likely as
    each other, rounding decides."""
    least: int = 0
    """Clips of which that is allowed, however few there are."""
    metric: float = 0.01
    """Difference of the main metric, where answers are no texts."""


FULL = Tolerance(1e-4, 0.02, 0.125)
"""Both with float32 weights on one device. Adapters that are folded in add up in another order."""
HALF = Tolerance(2e-2, 0.2, 0.25, least=1, metric=0.05)
"""Some of the arithmetic is in 16 or fewer bits, where folding rounds a weight again."""


CLIPS = 16
"""Most clips of a probe."""
SECONDS = 60.0
"""Most seconds of audio in a probe."""
TEXTS = (
    "one",
    "three seven nine",
    "turn the light in the kitchen off please",
    "when the sun comes out after the rain we walk along the river and count the boats that come by",
)
"""Texts of the built-in voice where there are no records."""
SPEEDS = (160, 130, 200, 180, 145, 220, 150, 190, 170, 210)
"""Words a minute of the built-in voice, which says each text at each of them."""
BATCH = 8
"""Clips that are run together."""
UTTERANCES = 4
"""Clips that a model which speaks says, the shortest ones."""
STEPS = 4


@dataclass
class ModelOutputs:
    """Outputs and losses of a model on the clips of a probe."""

    outputs: list[dict[str, Any]]
    """As `Task.predict` gives them."""
    loss: dict[str, float] = field(default_factory=dict)
    """Mean loss per target of each term; empty where it cannot be had."""


@dataclass
class Probe:
    """Clips, and how they are answered and scored."""

    task: Task
    examples: list[Example]
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """Terms that are compared as well. Empty: answers alone."""
    references: list[dict[str, Any]] = field(default_factory=list)
    """As `Task.reference` gives them; for tasks that are compared by their main metric."""

    @property
    def texts(self) -> bool:
        """Whether the answers are texts."""
        return isinstance(self.task, Transcribe)

    @property
    def spoken(self) -> bool:
        """Whether the answers are speech."""
        return isinstance(self.task, Speak)

    @property
    def metric(self) -> str:
        """Metric of the clips."""
        return "wer" if self.texts else self.task.main_metric()[0]

    def run(self, bundle: Bundle, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> ModelOutputs:
        """Decode the clips, greedily or as the task says and without second attempts, and sum their losses.

        Raises nothing of its own; leaves the model in the mode that it was in.
        """
        model, training = bundle.model, bundle.model.training
        device = next(model.parameters()).device
        results = ModelOutputs([])
        sums, counts = dict.fromkeys(self.losses, 0.0), dict.fromkeys(self.losses, 0)
        model.eval()
        try:
            with torch.no_grad(), autocast():
                if self.spoken:
                    results.outputs = speak(bundle, self.examples[:UTTERANCES])
                for start in range(0, len(self.examples), BATCH):
                    examples = self.examples[start : start + BATCH]
                    if not self.spoken:
                        results.outputs += self._predict(bundle, examples)
                    batch = self.task.collate(examples, bundle.processor, False) if self.losses else None
                    if batch is not None and batch.ids:
                        batch = batch.to(device)
                        for term, value in self.task.loss_sums(model, batch, self.losses).items():
                            sums[term] += float(value)
                            counts[term] += batch.counts[term]
        finally:
            model.train(training)
        results.loss = {term: sums[term] / counts[term] for term in sums if counts[term]}
        return results

    def _predict(self, bundle: Bundle, examples: list[Example]) -> list[dict[str, Any]]:
        if isinstance(self.task, Transcribe):
            return Transcribe.predict(self.task, bundle, examples, checked=False)
        return self.task.predict(bundle, examples)

    def score(self, results: ModelOutputs) -> float:
        """The metric: word error rate against the clips' texts, the weighted loss of models that speak, or the task's
        own."""
        task = self.task
        if isinstance(task, Transcribe):
            return score(
                [e.text or "" for e in self.examples],
                [o["text"] for o in results.outputs],
                normalizer=task.normalizer,
                languages=[e.language for e in self.examples],
                spelling=task.spelling,
            ).value
        if self.spoken:
            return sum(self.losses[term].weight * value for term, value in results.loss.items())
        answers = zip(self.examples, self.references, results.outputs, strict=True)
        return task.score([Prediction(e.id, reference, output) for e, reference, output in answers])[self.metric].value

    def compare(self, model: ModelOutputs, export: ModelOutputs, tolerance: Tolerance) -> Agreement:
        """Description of the comparison. Raises `Different` where rounding cannot explain a difference."""
        before, after = self.score(model), self.score(export)
        figures = (
            f"{label(self.metric)} {figure(self.metric, after)} from the export, {figure(self.metric, before)} from "
            "the model in memory"
        )
        for term in model.loss.keys() & export.loss.keys():
            a, b = model.loss[term], export.loss[term]
            if not abs(a - b) <= tolerance.loss * (1 + abs(a)):
                raise Different(
                    f"on {len(self.examples)} clips its loss `{term}` is {b:.5g} and not {a:.5g} ({figures})"
                )
        if self.texts:
            return self._agreement(before, after, self._compare_texts(model, export, tolerance, figures))
        if not abs(after - before) <= tolerance.metric * max(1.0, abs(before)):
            raise Different(f"on {len(self.examples)} clips it answers something else ({figures})")
        pairs = list(zip(model.outputs, export.outputs, strict=True))
        if not self.spoken:
            return self._agreement(before, after, sum(a != b for a, b in pairs))
        changed = sum(not same_speech(a, b) for a, b in pairs)
        if changed > max(tolerance.least, tolerance.share * len(pairs)):
            raise Different(
                f"{changed} of {len(pairs)} utterances come out with other codec tokens or another sound ({figures})"
            )
        return self._agreement(before, after, changed, len(pairs) - changed)

    def _compare_texts(self, model: ModelOutputs, export: ModelOutputs, tolerance: Tolerance, figures: str) -> int:
        """The number of texts that differ by rounding."""
        triples = zip(self.examples, model.outputs, export.outputs, strict=True)
        changed = [(example, a, b) for example, a, b in triples if a["text"] != b["text"]]
        too_many = len(changed) > max(tolerance.least, tolerance.share * len(self.examples))
        for example, a, b in changed:
            if too_many or not abs(a["log_prob"] - b["log_prob"]) <= tolerance.log_prob:
                raise Different(
                    f"{len(changed)} of {len(self.examples)} clips give another text, for example {example.id}: "
                    f"{_short(b['text'])} and not {_short(a['text'])} ({figures})"
                )
        return len(changed)

    def _agreement(self, before: float, after: float, rounded: int, utterances: int = 0) -> Agreement:
        """`rounded`: outputs that differ because two tokens were as likely as each other, or a frame was in doubt;
        `utterances`: of a model that speaks, those that are the same."""
        note = f"; {rounded} of the {'texts' if self.texts else 'answers'} differ by rounding" if rounded else ""
        note += f"; the same codec tokens for {utterances} utterances" if utterances else ""
        sign = "=" if round(before, 4) == round(after, 4) else "against"
        values = (f"{v:.2%}" if is_rate(self.metric) else figure(self.metric, v) for v in (before, after))
        summary = f"export checked on {len(self.examples)} clips: {label(self.metric)} {f' {sign} '.join(values)}{note}"
        metric = {"model": before, "export": after}
        return Agreement(summary, {"clips": len(self.examples), self.metric: metric, "rounded": rounded})


def make_probe(
    task: Task, bundle: Bundle, examples: list[Example], losses: Mapping[str, Loss], references: list[dict[str, Any]]
) -> Probe | None:
    """Without examples, the built-in voice (if it is installed) where answers are texts, and codec tokens at random
    where they are speech; else None."""
    if examples:
        return Probe(task, examples, losses, references)
    probe = Probe(task, [])
    if probe.spoken:
        return Probe(task, random_examples(task, bundle, TEXTS), losses)
    return Probe(task, built_in(bundle)) if probe.texts and installed("espeakng_loader") else None


def losses_of(model: Model) -> dict[str, Loss]:
    """The loss terms that a model was trained with; none where an export does not say."""
    terms = model.training.get("losses") or {}
    if not terms and (model.training or model.task.scores_loss):
        losses = model.bundle.family.losses(model.task)
    else:
        with saved_in(model.folder / TRAINING_CONFIG):
            losses = {name: Loss.model_validate(section) for name, section in terms.items()}
    model.task.requirements(losses)
    return expanded(losses, model.bundle.codebooks, model.bundle.traits.loss_parts)


def built_in(bundle: Bundle, most: int | None = None) -> list[Example]:
    """At most `most` clips of the built-in voice, of several lengths and speeds. None: one for each text."""
    longest = bundle.processor.max_seconds or 30.0
    language = "en" if "en" in bundle.traits.known_languages else None
    clips: list[Example] = []
    for speed, text in product(SPEEDS if most else SPEEDS[:1], TEXTS):
        speech = say(text, speed=speed)
        if speech.seconds <= longest and (most is None or len(clips) < most):
            name = f"the built-in voice's {text!r} at {speed} words a minute"
            clips.append(Example(name, speech.audio, text, language))
    return clips


def records(
    model: Model, most: int = CLIPS, seconds: float = SECONDS, pieces: int = 1
) -> tuple[list[Example], list[dict[str, Any]]]:
    """Records of the evaluation data that a model was trained with, with references; sets that cannot be read (moved,
    deleted or of a plug-in) are reported. `pieces`: see `Exporter`."""
    longest = math.inf if model.task.any_length else model.bundle.processor.max_seconds or 30.0
    sections = [(n, s) for n, s in model.training.get("data", {}).get("eval", {}).items() if s["type"] != "hub"]
    cuts: list[Cut] = []
    for name, section in sections[:2]:  # nothing is downloaded for a check
        try:
            first = islice(Source.model_validate(section).cuts(), 10 * most)
            cuts += [c for c in first if not isinstance(c, UnusableRecord) and c.duration <= longest]
        except (StentorError, ValueError) as error:
            print(
                f"The export is not checked on clips of {name}, which cannot be read: {' '.join(str(error).split())}",
                file=sys.stderr,
            )
    bundle = model.bundle
    model_reason = ModelDrops(model.task, bundle.processor, training=False)
    cuts = [c for c in cuts if not model.task.drop_reason(c) and not model_reason(c)]
    return spread(_longer(model.task, pieces), bundle, cuts, most, seconds)


def conversations(task: Diarize, bundle: Bundle, most: int, pieces: int) -> tuple[list[Example], list[dict[str, Any]]]:
    """At most `most` conversations of the built-in voices with references, as long as `pieces`; none where the voices
    are not installed."""
    if not installed("espeakng_loader"):
        return [], []
    voices = {"type": "synth", "texts": "sentences", "count": 2 * most, "voices": {"part": "test"}, "seed": 1}
    task = _longer(task, pieces)
    section = {"type": "conversation", "source": voices, "speakers": 2, "seconds": task.chunk, "count": most, "seed": 1}
    cuts = [cut for cut in Source.model_validate(section).cuts() if not isinstance(cut, UnusableRecord)]
    return spread(task, bundle, cuts, most, math.inf)


def _longer(task: AnyTask, pieces: int) -> AnyTask:
    """The task with training pieces of several times their length, where there are such."""
    return task.model_copy(update={"chunk": pieces * task.chunk}) if isinstance(task, Diarize) else task


def spread(
    task: Task, bundle: Bundle, cuts: Sequence[Cut], most: int = CLIPS, seconds: float = SECONDS
) -> tuple[list[Example], list[dict[str, Any]]]:
    """Examples, and their references, of at most `most` records and `seconds` in all, taken evenly from the cuts;
    unreadable ones are left out. Of records of any length the first piece is taken."""
    cuts = sorted(cuts, key=lambda c: c.id)
    cuts = cuts[:: max(1, len(cuts) // most)]
    if task.any_length:
        cuts = [piece for cut in cuts for piece in islice(task.training_segments(cut), 1)]
    chosen = {cut.id: cut for cut in _fitting(cuts, most, seconds)}
    examples, _ = BatchDataset(task, bundle.processor, None, seed=0).examples([Item(cut, 0) for cut in chosen.values()])
    examples.sort(key=lambda e: len(e.text or "") if e.audio is None else len(e.audio))
    return examples, [task.reference(chosen[e.id]) for e in examples]


def _fitting(cuts: Iterable[Cut], most: int, seconds: float) -> Iterator[Cut]:
    total, count = 0.0, 0
    for cut in cuts:
        if count < most and (not count or total + cut.duration <= seconds):
            total, count = total + cut.duration, count + 1
            yield cut


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def speak(bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The utterances as a model says them in a few steps and without chance: `codes` int16 [codebooks, frames], and
    `sound`, float32 [samples], what its codec makes of the recording's own tokens (None without one)."""
    processor: Any = bundle.processor
    codes = [processor.codes(e) for e in examples]
    utterances = [
        processor.utterance(e.text, language=e.language, instruct=e.extra["instruct"], frames=c.shape[1])
        for e, c in zip(examples, codes, strict=True)
    ]
    spoken = bundle.model.speak(
        utterances, seeds=[0] * len(utterances), steps=STEPS, position_temperature=0.0, class_temperature=0.0
    )
    waveforms = processor.codec.decode(codes) if processor.codec is not None else [None] * len(codes)
    return [{"codes": c, "sound": s} for c, s in zip(spoken, waveforms, strict=True)]


def same_speech(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two outputs of `speak` are the same, apart from inaudible differences."""
    codes = one["codes"], other["codes"]
    if codes[0].dtype.kind == "f":  # each frame is made from those before, and carries their rounding on
        codes = codes[0][:, :1], codes[1][:, :1]
        if not np.allclose(*codes, rtol=1e-2, atol=1e-3):
            return False
    elif not np.array_equal(*codes):
        return False
    a, b = one["sound"], other["sound"]
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(np.allclose(a, b, atol=1e-2))


def random_examples(task: Task, bundle: Bundle, texts: Sequence[str]) -> list[Example]:
    """The texts with codec tokens that mean nothing: two models answer them alike or not."""
    processor: Any = bundle.processor
    examples = []
    for number, text in enumerate(texts):
        record = {"id": f"{text!r} with codec tokens at random", "audio_path": "-", "duration": 1.0, "text": text}
        example = task.example(cut_from_record(record, Path(), "the probe"), None, None)  # type: ignore[arg-type]
        shape = (processor.codebooks, 20 + 10 * number)
        example.extra["codes"] = rng("probe", number).integers(0, processor.vocabulary, shape).astype("int16")
        examples.append(example)
    return examples
