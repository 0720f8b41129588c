"""Trying a model: what it answers about a clip, beside the model that it was trained from.

Two models at most are kept in memory. Everything here blocks for seconds: it belongs into threads. What is drawn comes
from `stentor.report.drawings`, as in the report; page/pieces.html puts it side by side.
"""

import gc
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio import io
from stentor.errors import ConfigError, DataError, StentorError
from stentor.inference import diarize, transcribe  # noqa: F401  (their import is not the model's time)
from stentor.inference.load import TRAINING_CONFIG, find_export
from stentor.inference.model import Model
from stentor.metrics.format import figure
from stentor.report import drawings
from stentor.studio.files import read_json
from stentor.studio.projects import DataSet, Projects, Record
from stentor.studio.runs import jobs
from stentor.studio.runs.judgement import got_worse
from stentor.studio.texts import for_page, render, say
from stentor.studio.uploaded_audio import Upload, checked, read
from stentor.text.normalize import DEFAULT

RATE = 16000
"""Hz of a clip that a model hears."""
VOICE_RATE = 24000
"""Hz of a reference whose voice is taken."""
LONGEST = 300.0
"""Seconds of the longest clip."""
LONGEST_VOICE = 30.0
"""Seconds of the longest reference: models take a few."""
MOST_CHARACTERS = 1000
"""Longest text to speak, in characters."""
MOST_MODELS = 2
MOST_HELD_OUT = 200
"""Recordings that are offered."""
TASKS = ("transcribe", "words", "diarize", "speak")
"""Tasks whose models can be tried."""


@dataclass(frozen=True)
class RunTrial:
    """A run that can be tried."""

    name: str
    export: Path
    task: str
    original: str | None
    """Folder or Hub id of the model that it was trained from; None where there is none."""
    normalizer: str
    """Text normaliser of the word error rate."""


def runs(projects: Projects, dataset: str | None = None) -> list[str]:
    """Names of the runs that can be tried, the newest first: those that have ended and left a model. With a data set
    only those of it."""
    listed = jobs.of_dataset(jobs.jobs(projects), dataset)
    return [job.name for job in listed if not jobs.alive(job) and _has_export(job)]


def _has_export(job: jobs.Job) -> bool:
    try:
        return bool(find_export(job.folder))
    except ConfigError:
        return False


def trial(projects: Projects, name: str) -> RunTrial:
    """A run that is to be tried. Raises ConfigError for one that has no model yet, and for the task `language`."""
    job = jobs.find(projects, name)
    export = find_export(job.folder)
    training = read_json(export / TRAINING_CONFIG)
    task = training.get("task") or {}
    kind = str(task.get("type") or "transcribe")
    if kind not in TASKS:
        raise ConfigError(f"A model of the task {kind} cannot be tried here, only those for {', '.join(TASKS)}.")
    source = _origin(projects, job.folder, training)
    return RunTrial(name, export, kind, source, str(task.get("normalizer") or DEFAULT))


def _origin(projects: Projects, folder: Path, training: Mapping[str, Any]) -> str | None:
    """The model that a run started from, if any."""
    while True:
        section = training.get("model") or {}
        source = section.get("init") or section.get("from")
        if not source:
            return None
        # Runs are started in the projects folder; relative paths are meant from there.
        place = projects.folder / str(source)
        if not place.exists():
            return str(source)
        if not place.resolve().is_relative_to(folder.resolve()):
            return str(place)
        training = read_json(place / TRAINING_CONFIG)  # an earlier stage of the same run


def model_name(source: str) -> str:
    """A Hub id as it is, of a folder its last name that says something."""
    path = Path(source)
    return [part for part in path.parts if part not in ("export", "checkpoints")][-1] if path.exists() else source


class ModelCache:
    """The models in memory: those that were asked for last. One is used at a time."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str, float], Model] = OrderedDict()
        self.lock = threading.RLock()

    def get(self, source: str | Path, device: str = "auto") -> Model:
        """The model of a folder or Hub id, loaded unless it is here as it is on the disk. Raises ConfigError."""
        from stentor.inference.load import load

        with self.lock:
            key = (str(source), device, _written(source))
            if key not in self._models:
                while len(self._models) >= MOST_MODELS:
                    self._release(next(iter(self._models)))
                self._models[key] = load(source, device)
            self._models.move_to_end(key)
            return self._models[key]

    def keep_only(self, *sources: str | Path | None) -> None:
        """Release all others: another run was chosen, or a training needs the memory."""
        if self.lock.acquire(blocking=False):  # else one of them is at work: it goes when its place is needed
            try:
                for key in [k for k in self._models if k[0] not in {str(s) for s in sources}]:
                    self._release(key)
            finally:
                self.lock.release()

    def _release(self, key: tuple[str, str, float]) -> None:
        import torch

        del self._models[key]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


MODEL_CACHE = ModelCache()
"""Models of this process."""


def device(projects: Projects) -> str:
    """Where a model is tried: beside a training that still runs on the CPU, so as not to take its memory away."""
    return "cpu" if any(map(jobs.alive, jobs.jobs(projects))) else "auto"


def _written(source: str | Path) -> float:
    try:
        return (find_export(source) / "config.json").stat().st_mtime if Path(source).exists() else 0.0
    except OSError:
        return 0.0


@dataclass
class TrialClip:
    """Recording to transcribe."""

    samples: np.ndarray
    """Float32 mono [samples] at `rate` Hz."""
    rate: int
    text: str = ""
    """Its transcript; empty where unknown."""
    segments: tuple[Mapping[str, Any], ...] = ()
    """Speaker segments, where known."""
    language: str | None = None


def uploaded(path: str | Path, rate: int = RATE, longest: float = LONGEST) -> TrialClip:
    """A clip that the browser recorded or sent. Raises AudioError, ConfigError for one that is too long."""
    upload = Upload(Path(path), "The clip")
    seconds, _ = checked(upload)
    _check_length("clip", seconds, longest)
    return TrialClip(read(upload, rate), rate)


def held_out(dataset: DataSet) -> list[tuple[str, str]]:
    """(text and seconds, id) of the recordings that training does not hear; all of them before they were divided."""
    sides = dataset.sides() if (dataset.folder / "held_out.jsonl").is_file() else {}
    records = [r for r in dataset.records() if not sides or sides.get(r["id"]) == "held_out"]
    return [(_label(r), r["id"]) for r in records[:MOST_HELD_OUT]]


def recorded(dataset: DataSet, id: str, rate: int = RATE, longest: float = LONGEST) -> TrialClip:
    """A recording of a data set, with what is known of it. Raises ConfigError, AudioError."""
    record = dataset.record(id)
    start, seconds = float(record.get("start") or 0.0), record.get("duration")
    _check_length("recording", seconds or 0.0, longest)
    text, segments = str(record.get("text") or ""), tuple(record.get("segments") or ())
    return TrialClip(io.read(dataset.audio(record), rate, start, seconds), rate, text, segments, record.get("language"))


def _check_length(what: str, seconds: float, longest: float) -> None:
    if seconds > longest:
        raise ConfigError(f"The {what} lasts {seconds:.0f} s: at most {longest:.0f} s are taken here.")


def _label(record: Record) -> str:
    text = str(record.get("text") or record["id"])
    return f"{text if len(text) <= 44 else text[:43] + '…'} ({record.get('duration', 0):.1f} s)"


@dataclass
class ModelAnswer:
    """Output of one model, or the reason why there is none."""

    tuned: bool
    """Whether it is the trained one, not the original."""
    took: float = 0.0
    """Seconds, without loading."""
    text: str = ""
    words: list[dict[str, Any]] | None = None
    segments: list[dict[str, Any]] | None = None
    errors: int = 0
    """Word errors against the clip's text."""
    total: int = 0
    """Words of the clip's text as they are scored; 0 where it has none."""
    sound: np.ndarray | None = None
    """Float32 [samples] that a speaking model made."""
    rate: int = 0
    wrong: str = ""
    """A sentence, where it could not answer."""


def listen(
    models: ModelCache, tried: RunTrial, clip: TrialClip, language: str | None = None, where: str = "auto"
) -> Iterator[ModelAnswer]:
    """The original's answer about a clip, if there is an original, then the trained model's; each as it is ready."""
    spoken = clip.language or language
    return _each(models, tried, where, lambda model, answer: _hear(model, tried, clip, spoken, answer))


def speak(
    models: ModelCache,
    tried: RunTrial,
    text: str,
    voice: TrialClip | None = None,
    instruct: str = "",
    language: str | None = None,
    seed: int | None = None,
    where: str = "auto",
) -> Iterator[ModelAnswer]:
    """A text as the original, if there is one, says it, then the trained model.

    In the voice of a clip whose `text` is said in it, as `instruct` describes it, or in the model's own. Raises
    ConfigError and DataError, at once, for what cannot be asked.
    """
    text = " ".join(text.split())
    if not text:
        raise DataError("Write a text first.")
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"The text has {len(text)} characters: at most {MOST_CHARACTERS} are spoken here.")
    if voice is not None and not voice.text.strip():
        raise DataError("Write down what is said in the clip whose voice is taken.")
    options: dict[str, Any] = {"instruct": instruct.strip() or None, "language": language, "seed": seed}
    if voice is not None:
        options |= {"reference": voice.samples, "reference_rate": voice.rate, "reference_text": voice.text.strip()}
    return _each(models, tried, where, lambda model, answer: _say(model, text, options, answer))


def _each(
    models: ModelCache, tried: RunTrial, where: str, ask: Callable[[Model, ModelAnswer], None]
) -> Iterator[ModelAnswer]:
    for source, tuned in ((tried.original, False), (tried.export, True)):
        if source is None:
            continue
        answer = ModelAnswer(tuned)
        try:
            with models.lock:
                ask(models.get(source, where), answer)
        except StentorError as error:  # told in its place: the other's answer is still worth seeing
            answer.wrong = for_page(error)
        yield answer


def _hear(model: Model, tried: RunTrial, clip: TrialClip, language: str | None, answer: ModelAnswer) -> None:
    began = time.perf_counter()
    if tried.task == "diarize":
        answer.segments = list(model.diarize(clip.samples, clip.rate).segments)
    else:
        transcript = model.transcribe(clip.samples, clip.rate, language=language, keep_failed=True)
        answer.text, answer.words = transcript.text, transcript.words
    answer.took = time.perf_counter() - began
    if clip.text and answer.segments is None:
        from stentor.metrics.wer import REFERENCE, text_errors

        counts = text_errors(clip.text, answer.text, language, tried.normalizer)
        answer.errors, answer.total = int(counts[:, :REFERENCE].sum()), int(counts[:, REFERENCE].sum())


def _say(model: Model, text: str, options: dict[str, Any], answer: ModelAnswer) -> None:
    began = time.perf_counter()
    speech = model.speak(text, **options)
    answer.sound, answer.rate, answer.took = speech.audio, speech.rate, time.perf_counter() - began


def about(tried: RunTrial) -> str:
    """Model that a run's model is compared with, and a warning of one that got worse."""
    original = tried.original and say("try_compared", original=model_name(tried.original))
    warning = render("line", got_worse(tried.export.parent), "wrong")
    return warning + render("compared_with", original or say("try_alone"))


def drawn(tried: RunTrial, clip: TrialClip | None, answers: Sequence[ModelAnswer]) -> str:
    """Answers so far about a clip; without one, about a text that is spoken."""
    if clip is None:
        return render("answers", _sides(tried, None, answers), bool(answers), False, None, ())
    fine = {a.tuned: a for a in answers if not a.wrong}
    scored = bool(clip.text) and any(a.total for a in answers)
    changed = None
    if not scored and len(fine) == 2 and tried.task != "diarize":
        before, after = fine[False].text, fine[True].text
        same = before.split() == after.split()
        changed = "" if same else drawings.differences(before, after, (_who(fine[False]), _who(fine[True])))
    timed = [fine[tuned] for tuned in (True, False) if tuned in fine and fine[tuned].words]
    heads = [say("try_times") + (f" ({_who(answer)})" if tried.original else "") for answer in timed]
    times = zip(heads, (drawings.words(answer.words or (), clip.samples, clip.rate) for answer in timed), strict=True)
    return render("answers", _sides(tried, clip, answers), bool(answers), scored, changed, times)


def _sides(tried: RunTrial, clip: TrialClip | None, answers: Sequence[ModelAnswer]) -> Iterator[tuple[Any, ...]]:
    """Kind, name, answer, drawing and notes of each model's column."""
    by_model = {answer.tuned: answer for answer in answers}
    for tuned in (False, True) if tried.original else (True,):
        answer = by_model.get(tuned)
        shown = answer is not None and not answer.wrong
        name = tried.name if tuned else model_name(tried.original or "")
        drawn, notes = (_drawn(tried, clip, answer), _notes(answer)) if shown else ("", ())
        yield "tuned" if tuned else "original", name, answer, drawn, notes


def _drawn(tried: RunTrial, clip: TrialClip | None, answer: ModelAnswer) -> str:
    """Empty for a text that nothing is known to compare with."""
    if clip is None:
        return drawings.sound(answer.sound, answer.rate)
    if answer.segments is not None and clip.segments:
        return drawings.judged_speakers(clip.segments, answer.segments, clip.samples, clip.rate)
    if answer.segments is not None:
        return drawings.speakers(answer.segments, clip.samples, clip.rate)
    if answer.total:
        names = (say("try_reference"), _who(answer))
        return drawings.differences(clip.text, answer.text, names, tried.normalizer, clip.language)
    return ""


def _notes(answer: ModelAnswer) -> Iterator[str]:
    if answer.total:
        rate = figure("wer", answer.errors / answer.total)
        yield say("try_errors", errors=answer.errors, count=answer.total, rate=rate)
    if (sound := answer.sound) is not None:
        power = float(np.mean(np.square(sound, dtype=np.float64))) if len(sound) else 0.0
        yield say("try_seconds", seconds=len(sound) / answer.rate)
        yield say("try_level", level=10 * np.log10(max(power, 1e-12)))
    yield say("try_took", seconds=answer.took)


def _who(answer: ModelAnswer) -> str:
    return say("try_tuned" if answer.tuned else "try_original")
