"""`stentor evaluate` for models that speak: every record spoken, and what second models hear in it, beside the same for
the recording decoded from its codes and for the recording itself."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from accelerate import Accelerator

    from stentor.data.batch import Example, Prediction
    from stentor.dataloading.batch_sampler import BatchSampler, Item
    from stentor.dataloading.mixing import DropCounter
    from stentor.engine.device import Communicator
    from stentor.inference.load import Model
    from stentor.inference.speak.speaker import Speaker
    from stentor.inference.speak.voice import Voice
    from stentor.metrics.score import Score
    from stentor.tasks.speak import Speak
    from stentor.tasks.speak.evaluator import SpeechEvaluator

VOICES = ("auto", "reference", "instruct", "none")
LENGTHS = ("recorded", "rule")
LEAST, MOST = 1.0, 20.0
"""Seconds of the recordings that are taken as references, where the speaker has such."""
TOGETHER = 64
"""Records that are handed to the model at once; it makes batches of them."""


@dataclass
class Listening:
    """What is asked of an evaluation of speech, beside the model and the data."""

    recognizer: str | None = None
    """A model that writes down what it hears: a run, an export, a folder or Hub id of transformers."""
    embedder: str | None = None
    """A model that embeds voices: a folder or Hub id of transformers, or `cepstra`."""
    judges: list[str] = field(default_factory=list)
    """Others, as `type=...,key=value`."""
    voice: Literal["auto", "reference", "instruct", "none"] = "auto"
    """What tells the model whose voice to take: another recording of the record's speaker, the record's instruct, or
    nothing; auto: the instruct where there is one, else the recording."""
    length: Literal["recorded", "rule"] = "recorded"
    """As long as the record's own recording, or by the duration rule."""
    generation: str | None = None
    """Changes to the settings of generation, as `steps=16,guidance=0`."""
    denoise: bool | None = None
    """Ask for clean speech after noisy references. None: of models that have learned that, as in use."""
    normalizer: str = "whisper_basic"
    """How texts are made comparable."""
    audio: Path | None = None
    """A folder for the synthetic speech."""

    def asked(self) -> list[str]:
        """The options that were given."""
        plain = vars(Listening())
        return [
            f"--{'judge' if name == 'judges' else name}" for name, value in vars(self).items() if value != plain[name]
        ]

    def check(self) -> Listening:
        """Raises ConfigError for values that are none."""
        from stentor.text.normalize import Normalizer

        known = {"voice": VOICES, "length": LENGTHS, "normalizer": get_args(Normalizer)}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ConfigError(f"Unknown --{name} {getattr(self, name)}; known: {', '.join(values)}.")
        return self


@dataclass
class _Job:
    """The records on their way."""

    model: Model
    task: Speak
    speaker: Speaker
    listening: Listening
    judges: list[SpeechEvaluator]
    items: list[Item]
    others: dict[str, Item]
    device: Any
    dropped: DropCounter
    codes: dict[str, np.ndarray] = field(default_factory=dict)
    computing: float = 0.0
    spoken: float = 0.0

    @property
    def rate(self) -> int:
        return int(self.model.bundle.processor.sample_rate)


def evaluate(
    loaded: Model,
    data: str,
    plan: BatchSampler,
    dropped: DropCounter,
    device: Accelerator,
    listening: Listening,
    max_bad: float,
) -> tuple[dict[str, Score], list[Prediction], dict[str, Any]]:
    """(scores, predictions, how it was spoken) of a data source.

    The scores: `loss` over all records; `wer` and `cer`, `similarity` and `voice_accuracy`, and the qualities of other
    judges, each also as `NAME_codec` and `NAME_real`; `real_time_factor`. Several processes share the records.
    """
    from stentor.commands.export.verify import losses_of
    from stentor.data.batch import Prediction
    from stentor.engine.device import Communicator
    from stentor.engine.evaluate import EvalSet
    from stentor.engine.evaluate import evaluate as score
    from stentor.metrics.speech import real_time_factor
    from stentor.tasks.speak.evaluator_scores import scores as judged

    judges = _judges(listening)
    speaker = _speaker(loaded, listening)
    bundle, task = loaded.bundle, loaded.for_speech()
    bundle.processor.codec.to(str(device.device))  # type: ignore[attr-defined]
    control = Communicator(device.num_processes)
    losses = losses_of(loaded)
    quiet = task.model_copy(update={"samples": 0})
    found, _, _ = score(
        bundle, quiet, losses, EvalSet(data, plan, dropped), device, control, workers=0, prefetch=1, max_bad=max_bad
    )
    items = sorted((item for items in plan.epoch(0) for item in items), key=lambda item: item.cut.id)
    job = _Job(loaded, task, speaker, listening, judges, items, _others(items), device.device, dropped)
    rows = _spoken(job, control)
    rows.sort(key=lambda row: row["id"])
    if not rows:
        raise DataError(f"{data}: no record could be spoken.")
    numbers = {row["id"]: i for i, row in enumerate(rows)}
    references = [numbers.get(row["like"]) for row in rows]
    found |= judged(
        [row["heard"] for row in rows],
        [row["reference"]["text"] for row in rows],
        [row["reference"]["language"] for row in rows],
        [row["reference"]["speaker"] for row in rows],
        references if any(judge.gives == "voice" for judge in judges) else None,
        any(judge.relative for judge in judges),
        listening.normalizer,
    )
    computing, spoken = control.sum([job.computing, job.spoken])
    found["real_time_factor"] = real_time_factor(computing, spoken)
    predictions = [
        Prediction(row["id"], row["reference"], row["output"], row["seconds"], row["record"]) for row in rows
    ]
    told = [row["output"]["voice"] for row in rows]
    how = {
        "voices": {kind: told.count(kind) for kind in dict.fromkeys(told)},
        "length": listening.length,
        "generation": speaker.generation.model_dump(),
        "denoise": speaker.denoise,
        "normalizer": listening.normalizer,
        "judges": [judge.model_dump(mode="json", by_alias=True) for judge in judges],
    }
    return found, predictions, how


def text(scores: dict[str, Score], how: dict[str, Any], records: int) -> str:
    """The scores for people: how it was spoken, and a table of three columns."""
    from stentor.metrics.format import figure
    from stentor.tasks.speak.evaluator_scores import table

    apart = ("loss", "real_time_factor")
    kinds = {"reference": "like another recording of the speaker", "instruct": "by their instruct", "none": "freely"}
    voices = ", ".join(f"{count} {kinds[kind]}" for kind, count in how["voices"].items())
    length = "as long as the recordings" if how["length"] == "recorded" else "as long as the duration rule has it"
    settings = how["generation"]
    head = (
        f"{records} records spoken ({voices}; {length}; {settings['steps']} steps, guidance {settings['guidance']:g})  "
        + "  ".join(f"{name.replace('_', ' ')} {figure(name, scores[name].value)}" for name in apart if name in scores)
    )
    heard = {name: score for name, score in scores.items() if name not in apart}
    return "\n".join([head, *(table(heard) if heard else [])])


def _speaker(loaded: Model, listening: Listening) -> Speaker:
    """The model, ready to speak with the settings of generation that were asked for."""
    from stentor.config.load import parse_section
    from stentor.inference.speak.speaker import Speaker
    from stentor.tasks.speak.generation import Generation

    settings = loaded.for_speech().generation
    if listening.generation is not None:
        settings = parse_section(listening.generation, Generation, "--generation", settings)
    return Speaker(loaded, settings.model_dump(), denoise=listening.denoise)


def _judges(listening: Listening) -> list[SpeechEvaluator]:
    from stentor.config.load import parse_section
    from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluator_for

    judges = []
    if listening.recognizer is not None:
        judges.append(evaluator_for(listening.recognizer, "text"))
    if listening.embedder is not None:
        judges.append(evaluator_for(listening.embedder, "voice"))
    judges += [parse_section(spec, SpeechEvaluator, "--judge") for spec in listening.judges]
    for kind, what in (("text", "recogniser"), ("voice", "embedder")):
        if sum(one.gives == kind for one in judges) > 1:
            raise ConfigError(f"More than one {what} is given: their answers cannot be one score. Take one at a time.")
    return judges


def _spoken(job: _Job, control: Communicator) -> list[dict[str, Any]]:
    """A row of plain data for each record of all processes."""
    import torch.distributed as dist

    from stentor.data.cut import record_from_cut

    rank = dist.get_rank() if control.world > 1 else 0
    reader = _Reader(job)
    rows: list[dict[str, Any]] = []
    for part in _parts(job.items[rank :: control.world], TOGETHER):
        ready = [(item, example) for item in part if (example := reader.example(item)) is not None]
        if not ready:
            continue
        items = [item for item, _ in ready]
        sounds, outputs = _say(job, reader, ready)
        codec: Any = job.model.bundle.processor.codec  # type: ignore[attr-defined]
        columns = {
            "synthetic": sounds,
            "codec": codec.decode([job.codes[item.cut.id] for item in items]),
            "real": [example.audio for _, example in ready],
        }
        heard = _heard(job, columns, [example.language for _, example in ready])
        for item, output, words in zip(items, outputs, heard, strict=True):
            told = {kind: words[kind] for kind in ("text", "quality") if kind in words}  # no embeddings
            rows.append(
                {
                    "id": item.cut.id,
                    "reference": job.task.reference(item.cut),
                    "output": {**output["told"], **({"heard": told} if told else {})},
                    "seconds": item.cut.duration,
                    "record": record_from_cut(item.cut),
                    "like": output["like"],
                    "heard": words,
                }
            )
    for reason, message in reader.wrong:
        job.dropped.add(reason, message)
    return [row for part in control.gather(rows) for row in part]


def _say(
    job: _Job, reader: _Reader, ready: Sequence[tuple[Item, Example]]
) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    """The speech of some records, float32 [samples] each, and what is told about it."""
    from stentor.inference.speak import Utterance
    from stentor.tasks.speak import seed_of

    utterances, like = [], []
    for item, example in ready:
        record = job.task.spoken(item.cut)
        kind, other = _voice(job, reader, item, record.instruct)
        # A voice without a reference is compared with another recording of its speaker, or else with its own.
        like.append((kind, (other or job.others.get(item.cut.id, item)).cut.id))
        utterances.append(
            Utterance(
                record.text,
                voice=reader.voice(other) if kind == "reference" and other is not None else None,
                language=record.language,
                instruct=record.instruct if kind == "instruct" else None,
                duration=example.extra["seconds"] if job.listening.length == "recorded" else None,
                seed=seed_of(job.speaker.generation.seed, item.cut.id),
            )
        )
    began = time.perf_counter()
    # As it comes from the codec: trimming and levels would be measured along with the model.
    speeches = list(job.speaker.speak(utterances, finish=False))
    job.computing += time.perf_counter() - began
    outputs = []
    for (item, _), (kind, other), speech in zip(ready, like, speeches, strict=True):
        job.spoken += speech.seconds
        told = {
            "voice": kind,
            "seconds": round(speech.seconds, 3),
            "frames": speech.codes.shape[1],
            "seed": speech.seed,
        }
        if kind == "reference":
            told["like"] = other
        if job.listening.audio is not None:
            told["audio"] = str(_write(job.listening.audio, item.cut.id, speech.audio, speech.rate))
        outputs.append({"told": told, "like": other})
    return [speech.audio for speech in speeches], outputs


def _voice(job: _Job, reader: _Reader, item: Item, instruct: str | None) -> tuple[str, Item | None]:
    """What tells the voice of a record, and the record whose recording does."""
    wanted = job.listening.voice
    if instruct and wanted in ("auto", "instruct"):
        return "instruct", None
    other = job.others.get(item.cut.id)
    if other is not None and wanted in ("auto", "reference") and reader.voice(other) is not None:
        return "reference", other
    return "none", None


def _others(items: Sequence[Item]) -> dict[str, Item]:
    """For each record another one of the same speaker that has a text, of a good length where there is one: the next by
    id. Records of speakers who are not known, or who have no other, are left out."""
    from stentor.data.cut import speaker_of, text_of

    by_speaker: dict[str, list[Item]] = {}
    for item in sorted(items, key=lambda item: item.cut.id):
        speaker = speaker_of(item.cut)
        if speaker is not None and (text_of(item.cut) or "").strip():
            by_speaker.setdefault(speaker, []).append(item)
    found = {}
    for own in by_speaker.values():
        good = [item for item in own if LEAST <= item.cut.duration <= MOST]
        if len(good) < 2:
            good = own
        names = [item.cut.id for item in good]
        for item in own:
            other = good[bisect_right(names, item.cut.id) % len(good)]
            if other is not item:
                found[item.cut.id] = other
    return found


def _heard(job: _Job, columns: dict[str, list[Any]], languages: list[str | None]) -> list[dict[str, Any]]:
    from stentor.tasks.speak.evaluator_scores import evaluate_items

    return evaluate_items(job.judges, columns, job.rate, languages, str(job.device))


class _Reader:
    """Records with their codes; each is counted once where it cannot be used."""

    def __init__(self, job: _Job):
        from stentor.dataloading.loader import BatchDataset

        self.job = job
        self.reader = BatchDataset(job.task, job.model.bundle.processor, None, seed=0)
        self.wrong: list[tuple[str, str]] = []

    def example(self, item: Item) -> Example | None:
        """The example of a record, whose codes are then in `job.codes`."""
        from stentor.errors import AudioError

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
        from stentor.data.cut import language_of, text_of
        from stentor.inference.speak.voice import Voice

        if item.cut.id not in self.job.codes and self.example(item) is None:
            return None
        return Voice(self.job.codes[item.cut.id], text_of(item.cut) or "", language_of(item.cut), item.cut.id)


def _write(folder: Path, name: str, audio: np.ndarray, rate: int) -> Path:
    from stentor.audio.io import write

    path = folder / f"{re.sub(r'[^0-9A-Za-z._-]', '_', name).lstrip('.') or 'record'}.wav"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, audio, rate)
    return path


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
