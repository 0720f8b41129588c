"""Transcription of recordings of any length: windows between pauses, decoded in batches across files."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.data.batch import Example
from stentor.data.trained_speech import TrainedSpeech
from stentor.errors import AudioError, ConfigError
from stentor.inference.decoding_options import hints, with_hotwords, with_language_model, with_search, with_translation
from stentor.inference.options import DecodingOptions
from stentor.inference.recording import Recording
from stentor.inference.speaker_attribution import SpeakerTurns, divide_at_turns, split_by_speaker, with_speaker
from stentor.inference.vad import Detector, Window, cut, open_detector
from stentor.models.base import Bundle
from stentor.tasks.transcribe import Transcribe, seconds_of
from stentor.tasks.who_said_what import WhoSaidWhat
from stentor.tasks.words import Words
from stentor.text.languages import language_code
from stentor.text.normalize import SPACELESS

log = logging.getLogger(__name__)

LONGEST = 30.0
"""Seconds of audio in a window, unless the model's encoder takes less or its training clips were shorter."""
POOL = 16
"""Batches that are gathered before windows are sorted by length: less padding, later first results."""

OnError = Callable[[str, AudioError], None]

_OF_SEGMENTS = ("failed", "no_speech_prob", "temperature", "tokens")
"""Fields of a window's output that segments get where they are present and not 0."""

UNREAD = "The model's answer was cut off or is not in its format: what could be read of it is here."
"""The key `warning` of such a transcript."""


class Transcript(dict[str, Any]):
    """A transcript as the JSON contract has it, with its main parts as attributes."""

    @property
    def text(self) -> str:
        """The whole text."""
        return self["text"]

    @property
    def words(self) -> list[dict[str, Any]] | None:
        """`{"word", "start", "end", "confidence"}` in order, seconds; None when word times were not asked for."""
        return self.get("words")

    @property
    def segments(self) -> list[dict[str, Any]]:
        """`{"start", "end", "text", "log_prob"}` of each window that holds speech; with a diarizer, and of models that
        say who speaks, of what each speaker says in it, with `speaker`."""
        return self["segments"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """`{"start", "end", "text", "reason"}` of what was left out; see `DecodingOptions.keep_failed`."""
        return self.get("failed", [])


@dataclass
class RecordingPlan:
    """A recording with the windows that the model is given, and what it answered to those that are done."""

    recording: Recording
    samples: int = 0
    windows: list[Window] = field(default_factory=list)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the window's number."""
    turns: SpeakerTurns | None = None
    error: AudioError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.outputs) == len(self.windows)


@dataclass
class Transcriber:
    """A model with the options of its transcripts. Raises ConfigError for `words` where neither the task nor the
    model knows word times."""

    bundle: Bundle
    task: Transcribe
    options: DecodingOptions = field(default_factory=DecodingOptions)
    model: str = ""
    """The model's name, for the transcripts and messages."""
    diarizer: Callable[[Recording], list[dict[str, Any]]] | None = None
    """Speaker segments of a recording, as `{"speaker", "start", "end"}` in seconds (see `Model.speaker_segments`).
    Words then have a `speaker`, and a segment is what one speaker says. A model that knows word times computes them for
    it; for another, windows are also cut where one speaker follows another."""
    tokens: bool = False
    """Add `tokens` to segments: what the model wrote, as `{"token", "logprob"}`."""
    detector: Detector | None = None
    """Finds speech and pauses, in the place of `vad` and `vad_threshold`."""
    on_warning: Callable[[str], None] = log.warning
    """Called with a sentence about an option that has no effect."""

    def __post_init__(self) -> None:
        knows_times = isinstance(self.task, (Words, WhoSaidWhat)) or self.bundle.capabilities.times_tokens
        o, family = self.options, self.bundle.family
        if o.words and not knows_times:
            raise ConfigError(
                f"{self.model or 'This model'} gives no word times: it was trained for the task {self.task.type}. "
                "Train it further with `task: {type: words}`, as in recipes/words_speech_llm.yaml, or ask for the text "
                "alone (leave out --words)."
            )
        if isinstance(self.task, WhoSaidWhat) and self.diarizer is not None:
            raise ConfigError(f"{self.model or 'This model'} says itself who speaks: leave out --diarizer.")
        self.task = self._with_thresholds()
        self.task = with_translation(self.task, family, o.translate)
        self.task = with_search(self.task, family, o.beams, o.temperature)
        self.task, names = with_hotwords(self.task, family, o.hotwords, o.hotword_strength)
        self.task = with_language_model(self.task, family, o.language_model, o.language_model_weight)
        context, self.prompt = hints(family, o.context, o.prompt, names, self.on_warning)
        self.context = context or self.task.context
        self.vad_detector = self.detector or open_detector(o.vad, o.vad_threshold)
        self.says_who = isinstance(self.task, WhoSaidWhat)
        self.timed = knows_times and not self.says_who and (o.words or self.diarizer is not None)
        processor = self.bundle.processor
        self.rate = processor.sample_rate
        self.trained = self.bundle.traits.trained_speech or TrainedSpeech()
        self.longest = self.trained.window_seconds(min(LONGEST, processor.max_seconds or LONGEST))
        if self.says_who:  # one window, in which a speaker has one name
            self.longest = processor.max_seconds or math.inf

    def _with_thresholds(self) -> Transcribe:
        """The task with the thresholds of this call. Raises ConfigError for one that is impossible."""
        thresholds = {
            "no_speech": self.options.no_speech_threshold,
            "mean_log_prob": self.options.log_prob_threshold,
            "compression_ratio": self.options.compression_ratio_threshold,
        }
        limits = {name: threshold for name, threshold in thresholds.items() if threshold is not None}
        if "no_speech" in limits and not self.bundle.capabilities.no_speech:
            raise ConfigError(
                f"{self.model or 'This model'} has no no-speech probability, unlike Whisper: leave out the "
                "no-speech threshold, and give a log-probability threshold or another VAD."
            )
        return self.task.model_copy(update={"checks": self.task.checks.with_limits(limits)}) if limits else self.task

    def transcribe(
        self,
        recordings: Iterable[Recording],
        on_error: OnError | None = None,
        on_window: Callable[[float], None] | None = None,
    ) -> Iterator[Transcript]:
        """A transcript (the JSON contract) for each recording, in their order. Segments carry `log_prob`; what failed
        the checks in every attempt is listed apart, or carries `failed` (see `keep_failed`).

        `on_error` is called with the name and the error of an unreadable recording, which is then left out; without,
        its error is raised. `on_window` is called with the seconds of each window that is done.
        """
        plans: list[RecordingPlan] = []
        pooled = 0.0
        for recording in recordings:
            plans.append(self.plan(recording))
            # Silence and what cannot be read count as well: all that is gathered waits for the first one's transcript.
            pooled += max(1.0, plans[-1].samples / self.rate)
            if pooled >= POOL * self.options.batch_seconds:
                self._decode(plans, on_window)
                pooled = 0.0
            yield from self._finished(plans, on_error)
        self._decode(plans, on_window)
        yield from self._finished(plans, on_error)

    def plan(self, recording: Recording) -> RecordingPlan:
        """The windows of a recording, which is read once for it. What is wrong with its audio is in the plan's
        `error`."""
        plan = RecordingPlan(recording)
        try:
            activity = self.vad_detector.activity(recording.blocks(), self.rate)
            plan.turns = SpeakerTurns(self.diarizer(recording)) if self.diarizer is not None else None
        except AudioError as error:
            plan.error = error
            return plan
        plan.samples = activity.samples
        if self.says_who:
            self._check_length(plan)
            plan.windows = cut(activity, self.rate, self.longest)
            return plan
        pad, silence = self.options.speech_pad, self.options.min_silence
        plan.windows = cut(
            activity,
            self.rate,
            self.longest,
            padding=self.trained.room if pad is None else pad,
            silence=self.trained.pause_limit if silence is None else silence,
            shortest=self.options.min_speech,
        )
        if plan.turns is not None and not self.timed:
            plan.windows = divide_at_turns(plan.windows, plan.turns, self.rate)
        return plan

    def _check_length(self, plan: RecordingPlan) -> None:
        seconds = plan.samples / self.rate
        if seconds > self.longest:
            plan.error = AudioError(
                f"{plan.recording.name}: {seconds:.0f} s; this model says who speaks in recordings of up to "
                f"{self.longest:g} s, and speakers of one part are not those of the next: give parts of that length.",
                "too_long",
            )

    def _finished(self, plans: list[RecordingPlan], on_error: OnError | None) -> Iterator[Transcript]:
        """Transcripts of the first plans, as far as they are done; takes them off the list."""
        while plans and plans[0].done:
            plan = plans.pop(0)
            if plan.error is None:
                yield self.transcript(plan)
            elif on_error is None:
                raise plan.error
            else:
                on_error(plan.recording.name, plan.error)

    def _decode(self, plans: list[RecordingPlan], on_window: Callable[[float], None] | None) -> None:
        pool = [(plan, i) for plan in plans if not plan.done for i in range(len(plan.windows)) if i not in plan.outputs]

        def samples(item: tuple[RecordingPlan, int]) -> int:
            window = item[0].windows[item[1]]
            return window.end - window.start

        for batch in batches(pool, samples, round(self.options.batch_seconds * self.rate)):
            ready, examples = [], []
            for plan, i in batch:
                if plan.error is not None:  # another window of the same file could not be read
                    continue
                try:
                    examples.append(self.example(plan, i))
                except AudioError as error:
                    plan.error = error
                    continue
                ready.append((plan, i))
            if not examples:
                continue
            for (plan, i), output, example in zip(ready, self.predict(examples), examples, strict=True):
                plan.outputs[i] = output
                if on_window:
                    on_window(seconds_of(example, self.rate))

    def example(self, plan: RecordingPlan, i: int) -> Example:
        """Window `i` with its audio, as `predict` takes it. Raises AudioError."""
        window = plan.windows[i]
        audio = plan.recording.read(window.start, window.end)
        asked = {"prompt": self.prompt, "translate": self.task.translate, "tokens": self.tokens}
        extra = {name: value for name, value in asked.items() if value}
        name = f"{plan.recording.name}@{window.start / self.rate:.2f}"
        return Example(name, audio, language=self.options.language, context=self.context, extra=extra)

    @property
    def decoding(self) -> tuple[str, bool]:
        """Settings that decoding depends on besides the examples: windows of two transcribers of one model for which
        this is the same may be decoded together."""
        return self.task.model_dump_json(), self.timed

    def predict(self, examples: Sequence[Example], bundle: Bundle | None = None) -> list[dict[str, Any]]:
        """The model's output for each example, whatever the others are. `bundle`: a copy of the model."""
        words = {"words": self.timed} if isinstance(self.task, Words) else {}
        return self.task.predict(bundle or self.bundle, examples, checked=self.task.checks.on, **words)

    def transcript(self, plan: RecordingPlan, count: int | None = None) -> Transcript:
        """The transcript of a recording whose windows are all done, or of its first `count` windows."""
        windows = plan.windows[:count]
        segments: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        language = self.options.language or _detected_language(windows, plan.outputs)
        words = list(self._words(windows, plan.outputs)) if self.timed else []
        turns = plan.turns if plan.turns is not None and plan.turns.names else None
        if turns is not None:
            speakers = turns.speakers([word for _, word in words])
            words = [(i, {**word, "speaker": name}) for (i, word), name in zip(words, speakers, strict=True)]
        of_window: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for i, word in words:
            of_window[i].append(word)
        for i, window in enumerate(windows):
            output = plan.outputs[i]
            if not output["text"]:
                continue
            segment = {
                "start": round(window.speech_start / self.rate, 3),
                "end": round(window.speech_end / self.rate, 3),
                "text": output["text"],
                "log_prob": output["log_prob"],
                **{name: output[name] for name in _OF_SEGMENTS if output.get(name)},
            }
            if reasons := self._reasons_to_leave_out(output):
                failed.append({**{k: segment[k] for k in ("start", "end", "text")}, "reason": ", ".join(reasons)})
                continue
            if "segments" in output:
                segments += [{**turn, **segment, **turn} for turn in output["segments"]]
                words += [(i, word) for word in output["words"]]
                continue
            if turns is None:
                segments.append(segment)
            elif i in of_window:
                segments += split_by_speaker(segment, of_window[i])
            else:
                segments.append(with_speaker(segment, turns, segments[-1]["speaker"] if segments else None))
        space = "" if language_code(language) in SPACELESS else " "
        return Transcript(
            audio=plan.recording.name,
            duration=round(plan.samples / self.rate, 3),
            language=language,
            text=space.join(s["text"] for s in segments),
            **({"words": [word for _, word in words]} if self.options.words else {}),
            segments=segments,
            **({"failed": failed} if failed else {}),
            **({"warning": UNREAD} if any(plan.outputs[i].get("unread") for i in range(len(windows))) else {}),
            **({} if plan.recording.channel is None else {"channel": plan.recording.channel}),
            model=self.model,
        )

    def _reasons_to_leave_out(self, output: dict[str, Any]) -> list[str]:
        """The checks for which a window's text is left out: of `no_room` only the word times are wrong."""
        return [] if self.options.keep_failed else [name for name in output["failed"] if name != "no_room"]

    def _words(
        self, windows: Sequence[Window], outputs: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """The words of windows, each with its window's number and times from the start of the recording, in order
        and without overlap."""
        end = 0.0
        for i, window in enumerate(windows):
            if self._reasons_to_leave_out(outputs[i]):
                continue
            offset = window.start / self.rate
            for word in outputs[i]["words"]:
                start = max(end, round(word["start"] + offset, 3))
                end = max(start, round(word["end"] + offset, 3))
                yield i, {"word": word["word"], "start": start, "end": end, "confidence": word["confidence"]}


def _detected_language(windows: Sequence[Window], outputs: dict[int, dict[str, Any]]) -> str | None:
    """The language that the model detected in most of the speech; None where it detects none."""
    seconds: dict[str, int] = {}
    for i, window in enumerate(windows):
        if outputs[i]["text"] and (code := outputs[i].get("language")):
            seconds[code] = seconds.get(code, 0) + window.speech_end - window.speech_start
    return max(seconds, key=lambda code: seconds[code], default=None)


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
