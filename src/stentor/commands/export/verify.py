"""Whether an export does what the model in memory does: it is loaded back and both are given the same clips.

Recognisers are compared by what they write and by their losses on the clips, models that label frames by their main
metric and their losses, models that speak by their losses, the codec tokens of a few utterances and how their codec
sounds, models over `LARGE` parameters by their tensors, which needs no second model in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.export.verify_onnx import Different
from stentor.commands.export.verify_speech import alike, at_random, said
from stentor.errors import StentorError

if TYPE_CHECKING:
    import torch
    from lhotse.cut import Cut

    from stentor.data.batch import Example
    from stentor.engine.evaluate import EvalSet
    from stentor.engine.trainer import Trainer
    from stentor.inference.load import Model
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle
    from stentor.tasks.base import Task

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
"""What the built-in voice says where there are no records."""
BATCH = 8
"""Clips that are run together."""
UTTERANCES = 4
"""Clips that a model which speaks says, the shortest ones."""
LARGE = 2_000_000_000
"""Parameters above which an export is compared by its tensors: a second copy would not fit beside the first."""


@dataclass
class Tolerance:
    """What rounding may do to the answers of the same weights."""

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
"""Some of the arithmetic is in 16 or fewer bits, where folding rounds a weight anew."""

COARSE = Tolerance(2e-2, 0.5, 0.5, least=1, metric=0.05)
"""Weights in 8 bits, which change what is said where the model is unsure."""


@dataclass
class Heard:
    """What a model makes of the clips of a probe."""

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
        from stentor.tasks.transcribe import Transcribe

        return isinstance(self.task, Transcribe)

    @property
    def spoken(self) -> bool:
        """Whether the answers are speech."""
        from stentor.tasks.speak import Speak

        return isinstance(self.task, Speak)

    @property
    def metric(self) -> str:
        """What the clips are scored by."""
        return "wer" if self.texts else self.task.main_metric()[0]

    def hear(self, bundle: Bundle, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Heard:
        """Decode the clips, greedily or as the task says and without second attempts, and sum their losses.

        Raises nothing of its own; leaves the model in the mode that it was in.
        """
        import torch

        model, training = bundle.model, bundle.model.training
        device = next(model.parameters()).device
        heard = Heard([])
        sums, counts = dict.fromkeys(self.losses, 0.0), dict.fromkeys(self.losses, 0)
        model.eval()
        try:
            if self.spoken:
                with torch.no_grad(), autocast():
                    heard.outputs = said(bundle, self.examples[:UTTERANCES])
            for start in range(0, len(self.examples), BATCH):
                some = self.examples[start : start + BATCH]
                with torch.no_grad(), autocast():
                    heard.outputs += [] if self.spoken else self._answers(bundle, some)
                    batch = self.task.collate(some, bundle.processor, False) if self.losses else None
                    if batch is not None and batch.ids:
                        batch = batch.to(device)
                        for term, value in self.task.loss_sums(model, batch, self.losses).items():
                            sums[term] += float(value)
                            counts[term] += batch.counts[term]
        finally:
            model.train(training)
        heard.loss = {term: sums[term] / counts[term] for term in sums if counts[term]}
        return heard

    def _answers(self, bundle: Bundle, examples: list[Example]) -> list[dict[str, Any]]:
        from stentor.tasks.transcribe import Transcribe

        if isinstance(self.task, Transcribe):
            return Transcribe.predict(self.task, bundle, examples, checked=False)
        return self.task.predict(bundle, examples)

    def score(self, heard: Heard) -> float:
        """The metric: word error rate against the clips' texts, the weighted loss of models that speak, or the task's
        own."""
        from stentor.data.batch import Prediction
        from stentor.metrics.wer import score
        from stentor.tasks.transcribe import Transcribe

        task = self.task
        if isinstance(task, Transcribe):
            return score(
                [e.text or "" for e in self.examples],
                [o["text"] for o in heard.outputs],
                normalizer=task.normalizer,
                languages=[e.language for e in self.examples],
                spelling=task.spelling,
            ).value
        if self.spoken:
            return sum(self.losses[term].weight * value for term, value in heard.loss.items())
        answers = zip(self.examples, self.references, heard.outputs, strict=True)
        return task.score([Prediction(e.id, reference, output) for e, reference, output in answers])[self.metric].value

    def compare(self, model: Heard, export: Heard, allowed: Tolerance) -> Agreement:
        """What was compared. Raises `Different` where rounding cannot explain a difference."""
        from stentor.metrics.format import figure, label

        before, after = self.score(model), self.score(export)
        name = label(self.metric)
        figures = figure(self.metric, after), figure(self.metric, before)
        both = f"{name} {figures[0]} from the export, {figures[1]} from the model in memory"
        for term in model.loss.keys() & export.loss.keys():
            a, b = model.loss[term], export.loss[term]
            if not abs(a - b) <= allowed.loss * (1 + abs(a)):
                raise Different(f"on {len(self.examples)} clips its loss `{term}` is {b:.5g} and not {a:.5g} ({both})")
        if not self.texts:
            if not abs(after - before) <= allowed.metric * max(1.0, abs(before)):
                raise Different(f"on {len(self.examples)} clips it answers something else ({both})")
            pairs = zip(model.outputs, export.outputs, strict=True)
            other = sum(not alike(a, b) if self.spoken else a != b for a, b in pairs)
            if self.spoken and other > max(allowed.least, allowed.share * len(model.outputs)):
                raise Different(
                    f"{other} of {len(model.outputs)} utterances come out with other codec tokens or another sound "
                    f"({both})"
                )
            same = len(model.outputs) - other if self.spoken else 0
            return Agreement(len(self.examples), before, after, other, metric=self.metric, utterances=same)
        apart = [
            (e, a, b)
            for e, a, b in zip(self.examples, model.outputs, export.outputs, strict=True)
            if a["text"] != b["text"]
        ]
        many = len(apart) > max(allowed.least, allowed.share * len(self.examples))
        for example, a, b in apart:
            if many or not abs(a["log_prob"] - b["log_prob"]) <= allowed.log_prob:
                raise Different(
                    f"{len(apart)} of {len(self.examples)} clips give another text, for example {example.id}: "
                    f"{_short(b['text'])} and not {_short(a['text'])} ({both})"
                )
        return Agreement(len(self.examples), before, after, len(apart))


@dataclass
class Agreement:
    """What was compared and found the same."""

    clips: int
    before: float = 0.0
    """The metric of the model in memory on the clips."""
    after: float = 0.0
    """... and of the export."""
    rounded: int = 0
    """Answers that came out differently because two tokens were as likely as each other, or a frame was in doubt."""
    instead: str = ""
    """What was done where no clips were run."""
    metric: str = "wer"
    utterances: int = 0
    """Of a model that speaks, those that the export says just so."""

    def __str__(self) -> str:
        if self.instead:
            return self.instead
        from stentor.metrics.format import figure, is_rate, label

        answers = "texts" if self.metric == "wer" else "answers"
        note = f"; {self.rounded} of the {answers} differ by rounding" if self.rounded else ""
        note += f"; the same codec tokens for {self.utterances} utterances" if self.utterances else ""
        sign = "=" if round(self.before, 4) == round(self.after, 4) else "against"
        values = (self.before, self.after)
        one, other = (f"{v:.2%}" if is_rate(self.metric) else figure(self.metric, v) for v in values)
        return f"export checked on {self.clips} clips: {label(self.metric)} {one} {sign} {other}{note}"

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        if self.instead:
            return {"checked": self.instead}
        facts = {
            "clips": self.clips,
            self.metric: {"model": self.before, "export": self.after},
            "rounded": self.rounded,
        }
        return {"checked": str(self), **facts}


# A run ----------------------------------------------------------------------------------------------------------------


def check_run(
    trainer: Trainer, place: Path, weights: Mapping[str, torch.Tensor], sets: Sequence[EvalSet]
) -> dict[str, Any]:
    """Load `place/export` back and compare it with the model in memory; one line is said. Answers the entry of
    results.json.

    `weights` are those that the export was made of. A sharded model cannot run on one process: it is compared by what
    it answered when the sets were scored (`place/predictions`). Called by the main process alone. Raises `Different`,
    after the folder has got another name, so that nobody takes it for the result.
    """
    folder = place / "export"
    try:
        agreement = _check_run(trainer, place, weights, sets)
    except Different as error:
        kept = place / "export-wrong"
        replace(folder, kept)
        raise Different(
            f"The export does not do what the trained model does: {error}. It is kept as {kept} and should not be "
            "used. Training is done and saved: please report this with the versions that `stentor doctor` prints."
        ) from error
    trainer.say(f"{str(agreement)[0].upper()}{str(agreement)[1:]}.")
    return agreement.as_dict()


def _check_run(
    trainer: Trainer, place: Path, weights: Mapping[str, torch.Tensor], sets: Sequence[EvalSet]
) -> Agreement:
    bundle, task, device = trainer.bundle, trainer.task, trainer.accelerator.device
    if reason := unheard(task, bundle):
        return Agreement(0, instead=f"export not checked: {reason}")
    divided = trainer.backend.sharded
    if parameters(bundle) > LARGE or (divided and task.audible):
        why = "the model is sharded" if divided else ""
        return Agreement(0, instead=same_tensors(bundle, weights, place / "export", why))
    said = _first_answers(place / "predictions", sets, task) if divided else {}
    cuts = [item.cut for s in sets for items in s.plan.epoch(0) for item in items]
    examples, references = spread(task, bundle, [c for c in cuts if c.id in said or not divided])
    if divided and not examples:
        return Agreement(0, instead="export not checked: the model is sharded and no answers of it are at hand")
    losses = {} if divided else {term: loss.unregularised() for term, loss in trainer.losses.items()}
    probe = _probe(task, bundle, examples, losses, references)
    if probe is None:
        return Agreement(0, instead="export not checked: there is no evaluation set to take clips from")
    low = trainer.accelerator.mixed_precision != "no" and divided
    half = low or any(p.dtype != _float32() for p in bundle.model.parameters())
    autocast = trainer.accelerator.autocast if half else nullcontext
    heard = Heard([said[e.id] for e in examples]) if divided else probe.hear(bundle, autocast)
    export, there = _loaded(bundle, place / "export", device)
    again = probe.hear(export, autocast if there == device else nullcontext)
    return probe.compare(heard, again, HALF if half or there != device else FULL)


def _probe(
    task: Task, bundle: Bundle, examples: list[Example], losses: Mapping[str, Loss], references: list[dict[str, Any]]
) -> Probe | None:
    """Without examples, the built-in voice where answers are texts, and codec tokens at random where they are speech;
    else None."""
    if examples:
        return Probe(task, examples, losses, references)
    probe = Probe(task, [])
    if probe.spoken:
        return Probe(task, at_random(task, bundle, TEXTS), losses)
    return Probe(task, built_in(bundle)) if probe.texts else None


def _first_answers(folder: Path, sets: Sequence[EvalSet], task: Task) -> dict[str, dict[str, Any]]:
    """What was answered without sampling when the sets were scored, by id; nothing where whole recordings were, of
    which a probe takes pieces."""
    import json

    from stentor.tasks.transcribe import Transcribe

    found: dict[str, dict[str, Any]] = {}
    if not isinstance(task, Transcribe):
        return found
    for eval_set in sets:
        for line in (folder / f"{eval_set.name}.jsonl").read_text(encoding="utf-8").splitlines():
            prediction = json.loads(line)
            if prediction["output"]["temperature"] == task.checks.temperatures[0]:
                found[prediction["id"]] = prediction["output"]
    return found


def _loaded(bundle: Bundle, folder: Path, device: torch.device) -> tuple[Bundle, torch.device]:
    """The export, on the device where there is room for it, else on the CPU."""
    import torch

    from stentor.inference.load import load

    place = device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        if free < 3 * 4 * parameters(bundle):  # with room to run it
            place = torch.device("cpu")
    try:
        if any(not p.is_floating_point() for p in bundle.model.parameters()):  # in 8 or 4 bits, as it was trained
            export = type(bundle.family).load(folder, trainable=True)
            export.model.to(place).eval()
        else:
            export = load(folder, str(place)).bundle
    except Exception as error:  # whatever a folder that cannot be read makes the libraries say
        raise Different(f"it cannot be loaded ({type(error).__name__}: {error})") from error
    return export, place


# A copy ---------------------------------------------------------------------------------------------------------------


def listen(model: Model) -> tuple[Probe, Heard] | None:
    """A probe for the copies of a model, and what the model itself makes of it; None where there are no clips."""
    losses = losses_of(model)
    examples, references = records(model)
    losses = {name: loss.unregularised() for name, loss in losses.items()}
    probe = _probe(model.task, model.bundle, examples, losses, references)
    return None if probe is None else (probe, probe.hear(model.bundle))


def losses_of(model: Model) -> dict[str, Loss]:
    """The loss terms that a model was trained with; none where an export does not say."""
    from stentor.losses.base import Loss, expanded

    terms = model.training.get("losses") or {}
    if not terms and (model.training or model.task.scores_loss):
        losses = model.task.losses()
    else:
        losses = {name: Loss.model_validate(section) for name, section in terms.items()}
    model.task.requirements(losses)
    return expanded(losses, model.bundle.codebooks)


def check_copy(probe: Probe, heard: Heard, folder: Path) -> Agreement:
    """Compare a written copy with what its model made of the probe. Raises `Different`."""
    from stentor.inference.load import load

    try:
        copy = load(folder)
    except Exception as error:
        raise Different(f"the copy cannot be loaded ({type(error).__name__}: {error})") from error
    half = any(p.dtype != _float32() for p in copy.bundle.model.parameters())
    return probe.compare(heard, probe.hear(copy.bundle), HALF if half else FULL)


# Clips ----------------------------------------------------------------------------------------------------------------


def clips(model: Model) -> list[Example]:
    """A handful of clips to compare graphs on: the built-in voice at several lengths, and records of the run's own
    evaluation data, where it is still there."""
    return [*built_in(model.bundle), *records(model, 6)[0]]


def built_in(bundle: Bundle) -> list[Example]:
    """The built-in voice at several lengths."""
    from stentor.audio.synth import say
    from stentor.data.batch import Example

    longest = bundle.processor.max_seconds or 30.0
    spoken = [(text, say(text)) for text in TEXTS]
    return [Example(f"the built-in voice's {t!r}", s.audio, t) for t, s in spoken if s.seconds <= longest]


def records(model: Model, most: int = CLIPS) -> tuple[list[Example], list[dict[str, Any]]]:
    """Records of the evaluation data that a model was trained with, where they are still there, with references."""
    from stentor.data.cut import UnusableRecord
    from stentor.sources.base import Source

    longest = math.inf if model.task.any_length else model.bundle.processor.max_seconds or 30.0
    sections = [s for s in model.training.get("data", {}).get("eval", {}).values() if s["type"] != "hub"]
    cuts: list[Cut] = []
    for section in sections[:2]:  # nothing is downloaded for a check
        with contextlib.suppress(StentorError, ValueError):  # moved, deleted or of a plug-in
            found = islice(Source.model_validate(section).cuts(), 10 * most)
            cuts += [c for c in found if not isinstance(c, UnusableRecord) and c.duration <= longest]
    bundle = model.bundle
    cuts = [
        c for c in cuts if not model.task.drop_reason(c) and not bundle.family.drop_reason(bundle.processor, c, False)
    ]
    return spread(model.task, bundle, cuts, most)


def spread(
    task: Task, bundle: Bundle, cuts: Sequence[Cut], most: int = CLIPS
) -> tuple[list[Example], list[dict[str, Any]]]:
    """Examples, and their references, of at most `most` records and `SECONDS` in all, taken evenly from the cuts;
    unreadable ones are left out. Of records of any length the first piece is taken."""
    from stentor.dataloading.batch_sampler import Item
    from stentor.dataloading.loader import BatchDataset

    cuts = sorted(cuts, key=lambda c: c.id)
    cuts = cuts[:: max(1, len(cuts) // most)]
    if task.any_length:
        cuts = [piece for cut in cuts for piece in islice(task.training_segments(cut), 1)]
    chosen = {cut.id: cut for cut in _fitting(cuts, most)}
    examples, _ = BatchDataset(task, bundle.processor, None, seed=0).examples([Item(cut, 0) for cut in chosen.values()])
    examples.sort(key=lambda e: len(e.text or "") if e.audio is None else len(e.audio))
    return examples, [task.reference(chosen[e.id]) for e in examples]


def _fitting(cuts: Iterable[Cut], most: int) -> Iterator[Cut]:
    total, count = 0.0, 0
    for cut in cuts:
        if count < most and (not count or total + cut.duration <= SECONDS):
            total, count = total + cut.duration, count + 1
            yield cut


# Tensors --------------------------------------------------------------------------------------------------------------


def same_tensors(bundle: Bundle, weights: Mapping[str, torch.Tensor], folder: Path, why: str = "") -> str:
    """Whether the tensors in the files of an export are those in memory, whatever their names; says so in words.

    Layers into which adapters were folded and those kept in 8 or 4 bits are computed anew for an export: there the
    numbers are looked at, not compared. Raises `Different`.
    """
    import hashlib

    import torch
    from safetensors import SafetensorError, safe_open

    def digest(tensor: torch.Tensor) -> str:
        data = tensor.detach().cpu().contiguous()
        facts = hashlib.blake2b(str((data.dtype, tuple(data.shape))).encode(), digest_size=16)
        facts.update(data.view(-1).view(torch.uint8).numpy().data)
        return facts.hexdigest()

    written: dict[str, str] = {}
    types = set()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                    tensor = tensors.get_tensor(name)
                    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                        raise Different(f"{name} in {file.name} holds NaN or infinite numbers")
                    written[digest(tensor)] = name
                    types.add(tensor.dtype)
        except (SafetensorError, OSError) as error:
            raise Different(f"{file.name} cannot be read ({error})") from error
    known = set()
    for tensor in weights.values():
        kinds = types if tensor.is_floating_point() else {tensor.dtype}
        known |= {digest(tensor.to(kind)) for kind in kinds}
    anew = sum(".lora_A." in name for name in weights) + sum(not t.is_floating_point() for t in weights.values())
    other = [name for key, name in written.items() if key not in known]
    if not written or len(other) > anew:
        raise Different(f"{len(other)} of its {len(written)} tensors are not those in memory, such as {other[:1]}")
    return (
        f"export checked by its tensors ({len(written) - len(other)} are those in memory"
        + (f", {len(other)} were made anew" if other else "")
        + f"): {why or f'a model of {parameters(bundle) / 1e9:.1f} billion parameters is not loaded twice'}"
    )


def parameters(bundle: Bundle) -> int:
    """Numbers in the model, those that lie on other processes included."""
    from stentor.models.parameters import size

    return sum(size(p) for p in bundle.model.parameters())


def unheard(task: Task, bundle: Bundle) -> str | None:
    """Why a model's exports cannot be compared by what it writes; None when they can."""
    from stentor.tasks.diarize import Diarize
    from stentor.tasks.language import Language
    from stentor.tasks.speak import Speak
    from stentor.tasks.transcribe import Transcribe

    if not isinstance(task, Transcribe | Diarize | Language | Speak):
        return f"nothing is known to compare models for the task {task.type} by"
    if not bundle.family.loadable():
        return f"the family {bundle.family.type} has no `load`"
    return None


def replace(folder: Path, to: Path) -> None:
    """Give a folder another name, which an earlier one of its kind may have."""
    import shutil

    shutil.rmtree(to, ignore_errors=True)
    folder.rename(to)


def _float32() -> torch.dtype:
    import torch

    return torch.float32


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
