"""Transcripts of recordings of any length: windows between pauses, decoded in batches across files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.errors import AudioError, ConfigError
from stentor.inference.recording import Recording
from stentor.inference.speaker_attribution import Turns, divided, said_by, with_speakers
from stentor.inference.vad import Detector, EnergyDetector, Window, cut
from stentor.tasks.words import Words, units
from stentor.text.normalize import SPACELESS, language_code

if TYPE_CHECKING:
    from stentor.models.base import Bundle
    from stentor.tasks.transcribe import Transcribe

LONGEST = 30.0
"""Seconds of audio in a window, unless the model's encoder takes less."""
POOL = 16
"""Batches that are gathered before windows are sorted by length: less padding, later first results."""


class Transcript(dict[str, Any]):
    """A transcript as the JSON contract has it, with its main parts as attributes."""

    @property
    def text(self) -> str:
        return self["text"]

    @property
    def words(self) -> list[dict[str, Any]] | None:
        """`{"word", "start", "end", "confidence"}` in order, seconds; None when word times were not asked for."""
        return self.get("words")

    @property
    def segments(self) -> list[dict[str, Any]]:
        """`{"start", "end", "text", "log_prob"}` of each window that holds speech; with a diarizer, of what each
        speaker says in it, with `speaker`."""
        return self["segments"]


@dataclass
class _Job:
    """One recording on its way."""

    recording: Recording
    samples: int = 0
    windows: list[Window] = field(default_factory=list)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    turns: Turns | None = None
    error: AudioError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.outputs) == len(self.windows)


def transcribe(
    bundle: Bundle,
    task: Transcribe,
    recordings: Iterable[Recording],
    language: str | None = None,
    context: str | None = None,
    batch_seconds: float = 120.0,
    detector: Detector | None = None,
    model: str = "",
    words: bool = False,
    on_error: Callable[[str, AudioError], None] | None = None,
    on_window: Callable[[float], None] | None = None,
    diarizer: Callable[[Recording], list[dict[str, Any]]] | None = None,
) -> Iterator[Transcript]:
    """A transcript (the JSON contract) for each recording, in their order.

    `batch_seconds` bounds a batch's padded audio. `detector` finds the pauses (default `EnergyDetector`). An unreadable
    recording raises its AudioError, or with `on_error` is handed there and left out. `on_window` is told the seconds of
    each window that is done. Segments carry `log_prob` and, where checks failed in every attempt, `failed`. `words`
    adds the word times and needs the task `words`: raises ConfigError for another.

    `diarizer` says who speaks when in a recording, as `{"speaker", "start", "end"}` in seconds (see
    `stentor.inference.diarize.segments_by`). Words then have a `speaker`, and a segment is what one speaker says. A
    model that knows word times finds them for it, asked for or not; for another, windows are also cut where one speaker
    follows another.
    """
    if words and not isinstance(task, Words):
        raise ConfigError(
            f"{model or 'This model'} gives no word times: it was trained for the task {task.type}. Train it further "
            "with `task: {type: words}`, as in recipes/words_speech_llm.yaml, or ask for the text alone (leave out "
            "--words)."
        )
    timed = isinstance(task, Words) and (words or diarizer is not None)
    predict = partial(task.predict, words=timed) if isinstance(task, Words) else task.predict
    rate = bundle.processor.sample_rate
    limit = bundle.processor.max_seconds
    longest = LONGEST if limit is None else min(LONGEST, limit)
    detector = detector or EnergyDetector()
    waiting: list[_Job] = []
    pooled = 0.0

    def finished() -> Iterator[Transcript]:
        while waiting and waiting[0].done:
            job = waiting.pop(0)
            if job.error is None:
                yield _transcript(job, rate, language, model, words, timed)
            elif on_error is None:
                raise job.error
            else:
                on_error(job.recording.name, job.error)

    for recording in recordings:
        job = _Job(recording)
        waiting.append(job)
        try:
            activity = detector.activity(recording.blocks(), rate)
            job.turns = Turns(diarizer(recording)) if diarizer is not None else None
        except AudioError as error:
            job.error = error
        else:
            job.samples = activity.samples
            job.windows = cut(activity, rate, longest)
            if job.turns is not None and not timed:
                job.windows = divided(job.windows, job.turns, rate)
            pooled += sum(w.end - w.start for w in job.windows) / rate
        if pooled >= POOL * batch_seconds:
            _decode(bundle, task, predict, waiting, language, context, batch_seconds, on_window)
            pooled = 0.0
        yield from finished()
    _decode(bundle, task, predict, waiting, language, context, batch_seconds, on_window)
    yield from finished()


def _decode(
    bundle: Bundle,
    task: Transcribe,
    predict: Callable[..., list[dict[str, Any]]],
    jobs: list[_Job],
    language: str | None,
    context: str | None,
    batch_seconds: float,
    on_window: Callable[[float], None] | None,
) -> None:
    """Decode all windows of the jobs that have none decoded yet."""
    rate = bundle.processor.sample_rate
    pool = [
        (job, i, window.end - window.start)
        for job in jobs
        if not job.done
        for i, window in enumerate(job.windows)
        if i not in job.outputs
    ]
    for batch in batches(pool, lambda item: item[2], round(batch_seconds * rate)):
        ready, examples = [], []
        for job, i, _ in batch:
            if job.error is not None:  # another window of the same file could not be read
                continue
            window = job.windows[i]
            try:
                audio = job.recording.read(window.start, window.end)
            except AudioError as error:
                job.error = error
                continue
            name = f"{job.recording.name}@{window.start / rate:.2f}"
            ready.append((job, i))
            examples.append(Example(name, audio, language=language, context=context or task.context))
        if not examples:
            continue
        outputs = predict(bundle, examples, checked=task.checks.on)
        for (job, i), output, example in zip(ready, outputs, examples, strict=True):
            job.outputs[i] = output
            if on_window:
                on_window(len(example.audio) / rate)


def batches(items: list[Any], size: Callable[[Any], int], budget: int) -> Iterator[list[Any]]:
    """Items in lists, longest first, whose padded size (longest times number) is at most `budget`, or of one item."""
    batch: list[Any] = []
    for item in sorted(items, key=size, reverse=True):
        if batch and size(batch[0]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _transcript(job: _Job, rate: int, language: str | None, model: str, words: bool, timed: bool) -> Transcript:
    segments: list[dict[str, Any]] = []
    spoken = list(_words(job, rate)) if timed else []
    if job.turns is not None and job.turns.names:
        speakers = job.turns.speakers([word for _, word in spoken])
        spoken = [(i, {**word, "speaker": name}) for (i, word), name in zip(spoken, speakers, strict=True)]
    for i, window in enumerate(job.windows):
        output = job.outputs[i]
        if not output["text"]:
            continue
        segment = {
            "start": round(window.speech_start / rate, 3),
            "end": round(window.speech_end / rate, 3),
            "text": output["text"],
            "log_prob": output["log_prob"],
            **({"failed": output["failed"]} if output["failed"] else {}),
        }
        own = [word for k, word in spoken if k == i]
        if job.turns is None or not job.turns.names:
            segments.append(segment)
        elif own:
            segments += said_by(segment, own, [unit["span"] for unit in units(output["text"], language)])
        else:
            segments.append(with_speakers(segment, job.turns, segments[-1]["speaker"] if segments else None))
    space = "" if language_code(language) in SPACELESS else " "
    return Transcript(
        audio=job.recording.name,
        duration=round(job.samples / rate, 3),
        language=language,
        text=space.join(s["text"] for s in segments),
        **({"words": [word for _, word in spoken]} if words else {}),
        segments=segments,
        model=model,
    )


def _words(job: _Job, rate: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The words of all windows, each with its window's number and times from the start of the recording, in order and
    apart."""
    at = 0.0
    for i, window in enumerate(job.windows):
        for word in job.outputs[i]["words"]:
            start = max(at, round(word["start"] + window.start / rate, 3))
            at = max(start, round(word["end"] + window.start / rate, 3))
            yield i, {"word": word["word"], "start": start, "end": at, "confidence": word["confidence"]}
