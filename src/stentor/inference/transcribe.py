"""Transcription of recordings of any length: windows between pauses, decoded in batches across files."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.data.batch import Example
from stentor.data.trained_speech import TrainedSpeech
from stentor.data.word_times import in_order
from stentor.errors import AudioError, ConfigError
from stentor.inference.covered_speech import answers, note_on, with_pieces
from stentor.inference.decoding_options import hints, with_hotwords, with_language_model, with_search, with_translation
from stentor.inference.options import DecodingOptions
from stentor.inference.recording import Recording
from stentor.inference.seams import OVERLAP, SHARE, join_windows
from stentor.inference.speaker_attribution import SpeakerTurns, divide_at_turns, split_by_speaker, with_speaker
from stentor.inference.vad import Detector, Window, cut, open_detector
from stentor.models.base import Bundle
from stentor.tasks.transcribe import Transcribe
from stentor.tasks.who_said_what import WhoSaidWhat
from stentor.tasks.words import Words
from stentor.text.languages import known_code
from stentor.text.written_words import joined_windows

log = logging.getLogger(__name__)

LONGEST = 30.0
"""Maximum seconds of audio in a window, unless the model's encoder takes less or its training clips were shorter."""
POOL = 16
"""Number of batches collected before windows are sorted by length. More means less padding but later first results."""

OnError = Callable[[str, AudioError], None]

_OF_SEGMENTS = ("failed", "no_speech_prob", "temperature", "tokens")
"""Fields that a segment copies from the output of its window if they are there and not 0."""

UNREAD = "The model's answer was cut off or is not in the expected format: the transcript has only the readable part."
"""Text of the key `warning` of such a transcript."""


class Transcript(dict[str, Any]):
    """Transcript: the dict of the JSON output, with its main parts as attributes."""

    @property
    def text(self) -> str:
        """The whole text."""
        return self["text"]

    @property
    def words(self) -> list[dict[str, Any]] | None:
        """Words in order, `{"word", "start", "end", "confidence"}`, times in seconds; None without word times."""
        return self.get("words")

    @property
    def segments(self) -> list[dict[str, Any]]:
        """Segments in order, `{"start", "end", "text", "log_prob"}`, times in seconds: one for each window with speech.
        With a diarizer or a model that returns speakers: one for each speaker's turn, with `speaker`. A segment with
        pauses and without word times has `speech`, the start and end of each stretch of speech."""
        return self["segments"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Segments left out by the checks, `{"start", "end", "text", "reason"}`; see `DecodingOptions.keep_failed`."""
        return self.get("failed", [])


@dataclass
class RecordingPlan:
    """A recording, its windows, and the model's outputs for the windows that are done."""

    recording: Recording
    samples: int = 0
    windows: list[Window] = field(default_factory=list)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Outputs by window number."""
    turns: SpeakerTurns | None = None
    error: AudioError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.outputs) == len(self.windows)


@dataclass
class Transcriber:
    """A model with decoding options, ready to transcribe recordings; see `Model.transcriber`.

    Raises ConfigError for options that the model does not support, such as `words` without word times."""

    bundle: Bundle
    task: Transcribe
    options: DecodingOptions = field(default_factory=DecodingOptions)
    model: str = ""
    """Name of the model in transcripts and messages."""
    diarizer: Callable[[Recording], list[dict[str, Any]]] | None = None
    """Function that diarizes a recording and returns `{"speaker", "start", "end"}` in seconds
    (`Model.speaker_segments`). Words then have a `speaker`, and a segment has one speaker. Word times are computed for
    this if the model has them; otherwise windows are also cut where the speaker changes."""
    tokens: bool = False
    """Add the generated `tokens` to segments, as `{"token", "logprob"}`."""
    detector: Detector | None = None
    """Speech detector that replaces `vad` and `vad_threshold`."""

    def __post_init__(self) -> None:
        knows_times = isinstance(self.task, (Words, WhoSaidWhat)) or self.bundle.capabilities.times_tokens
        o, family = self.options, self.bundle.family
        if o.words and not knows_times:
            raise ConfigError(
                f"{self.model or 'This model'} has no word times: it was trained for the task {self.task.type}. "
                "Fine-tune it with `task: {type: words}`, as in recipes/words_speech_llm.yaml, or leave out --words, "
                "--cues words and --highlight-words."
            )
        if isinstance(self.task, WhoSaidWhat) and self.diarizer is not None:
            raise ConfigError(f"{self.model or 'This model'} assigns speakers itself: leave out --diarizer.")
        self.language = self.bundle.traits.spoken_language(o.language, self.model)
        self.task = self._with_thresholds()
        self.task = with_translation(self.task, family, o.translate)
        self.task = with_search(self.task, family, o.beams, o.temperature)
        self.task, names = with_hotwords(self.task, family, o.hotwords, o.hotword_strength)
        self.task = with_language_model(self.task, family, o.language_model, o.language_model_weight)
        context, self.prompt = hints(family, o.context, o.prompt, names)
        self.context = context or self.task.context
        self.vad_detector = self.detector or open_detector(o.vad, o.vad_threshold)
        self.says_who = isinstance(self.task, WhoSaidWhat)
        self.timed = knows_times and not self.says_who and (o.words or self.diarizer is not None)
        processor = self.bundle.processor
        self.rate = processor.sample_rate
        self.trained = self.bundle.traits.trained_speech or TrainedSpeech()
        self.longest = self.trained.window_seconds(min(LONGEST, processor.max_seconds or LONGEST))
        if self.says_who:  # one window, because speaker names are only consistent within a window
            self.longest = processor.max_seconds or math.inf

    def _with_thresholds(self) -> Transcribe:
        """Return the task with the thresholds of this call. Raises ConfigError for an unsupported threshold."""
        thresholds = {
            "no_speech": self.options.no_speech_threshold,
            "mean_log_prob": self.options.log_prob_threshold,
            "compression_ratio": self.options.compression_ratio_threshold,
        }
        limits = {name: threshold for name, threshold in thresholds.items() if threshold is not None}
        if "no_speech" in limits and not self.bundle.capabilities.no_speech:
            raise ConfigError(
                f"{self.model or 'This model'} has no no-speech probability, unlike Whisper: leave out the no-speech "
                "threshold, and use a log-probability threshold or another VAD instead."
            )
        return self.task.model_copy(update={"checks": self.task.checks.with_limits(limits)}) if limits else self.task

    def transcribe(
        self,
        recordings: Iterable[Recording],
        on_error: OnError | None = None,
        on_window: Callable[[float], None] | None = None,
    ) -> Iterator[Transcript]:
        """Yield a transcript for each recording, in the order of the recordings.

        Args:
            recordings: opened with `open_recording`.
            on_error: called with the name and the AudioError of an unreadable recording, which is then skipped. If
                None, the error is raised.
            on_window: called for each finished window, with its share of the seconds of the recording.
        """
        plans: list[RecordingPlan] = []
        pooled = 0.0
        for recording in recordings:
            plans.append(self.plan(recording))
            # Silence and unreadable recordings count too: everything collected waits for the first transcript.
            pooled += max(1.0, plans[-1].samples / self.rate)
            if pooled >= POOL * self.options.batch_seconds:
                self._decode(plans, on_window)
                pooled = 0.0
            yield from self._finished(plans, on_error)
        self._decode(plans, on_window)
        yield from self._finished(plans, on_error)

    def plan(self, recording: Recording) -> RecordingPlan:
        """Read a recording once and find its windows. An audio error is stored in the plan's `error`."""
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
            plan.windows = cut(activity, self.rate, self.longest, silence=plan.samples / self.rate)
            return plan
        pad, silence = self.options.speech_pad, self.options.min_silence
        plan.windows = cut(
            activity,
            self.rate,
            self.longest,
            padding=self.trained.room if pad is None else pad,
            silence=self.trained.pause_limit if silence is None else silence,
            shortest=self.options.min_speech,
            overlap=min(OVERLAP, SHARE * self.longest),
        )
        if plan.turns is not None and not self.timed:
            plan.windows = divide_at_turns(plan.windows, plan.turns, self.rate)
        return plan

    def _check_length(self, plan: RecordingPlan) -> None:
        seconds = plan.samples / self.rate
        if seconds > self.longest:
            plan.error = AudioError(
                f"{plan.recording.name} has {seconds:.0f} s, but this model assigns speakers in recordings of up to "
                f"{self.longest:g} s: split it. Speaker names are not shared between the parts.",
                "too_long",
            )

    def _finished(self, plans: list[RecordingPlan], on_error: OnError | None) -> Iterator[Transcript]:
        """Yield the transcripts of the first plans that are done, and remove these plans from the list."""
        while plans and plans[0].done:
            plan = plans.pop(0)
            if plan.error is None:
                transcript = self.transcript(plan)
                for note in transcript.get("notes", [])[len(plan.recording.notes) :]:
                    log.warning(f"{plan.recording.name}: {note}")
                yield transcript
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
                if plan.error is not None:  # another window of this file was unreadable
                    continue
                try:
                    examples.append(self.example(plan, i))
                except AudioError as error:
                    plan.error = error
                    continue
                ready.append((plan, i))
            if not examples:
                continue
            for (plan, i), output in zip(ready, self.predict(examples), strict=True):
                plan.outputs[i] = output
                if on_window:
                    lengths = [window.end - window.start for window in plan.windows]
                    on_window(lengths[i] / sum(lengths) * plan.samples / self.rate)

    def example(self, plan: RecordingPlan, i: int) -> Example:
        """Return window `i` with its audio, for `predict`. Raises AudioError."""
        window = plan.windows[i]
        audio = plan.recording.read(window.start, window.end)
        asked = {"prompt": self.prompt, "translate": self.task.translate, "tokens": self.tokens}
        extra: dict[str, Any] = {name: value for name, value in asked.items() if value}
        if not self.says_who:
            extra["window"] = window
        name = f"{plan.recording.name}@{window.start / self.rate:.2f}"
        return Example(name, audio, language=self.language, context=self.context, extra=extra)

    @property
    def decoding(self) -> tuple[str, bool]:
        """Key of the decoding settings: windows of two transcribers of one model can share a batch if it is equal."""
        return self.task.model_dump_json(), self.timed

    def predict(self, examples: Sequence[Example], bundle: Bundle | None = None) -> list[dict[str, Any]]:
        """Return the model's output for each example, independent of the others. `bundle`: a copy of the model.

        A window with pauses whose text covers too little of its speech is decoded again in pieces; see `with_pieces`.
        """
        words = {"words": self.timed} if isinstance(self.task, Words) else {}

        def decode(examples: Sequence[Example]) -> list[dict[str, Any]]:
            return self.task.predict(bundle or self.bundle, examples, checked=self.task.checks.on, **words)

        return with_pieces(examples, decode, self.rate)

    def transcript(self, plan: RecordingPlan, count: int | None = None) -> Transcript:
        """Return the transcript of a recording whose windows are all done, or of its first `count` windows. The last of
        these waits for the next one if they overlap."""
        first = plan.windows[:count]
        answered = list(answers(first, plan.outputs, self.rate))
        reasons = [self._reasons_to_leave_out(output) for _, output in answered]
        windows, outputs, notes = join_windows(answered, reasons, self.rate)
        if 0 < len(first) < len(plan.windows) and plan.windows[len(first)].start < first[-1].end:
            windows.pop()
        segments: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        known = self.bundle.traits.known_languages
        language = known_code(self.language or "") or _detected_language(windows, outputs, known)
        words = list(self._words(windows, outputs)) if self.timed else []
        turns = plan.turns if plan.turns is not None and plan.turns.names else None
        if turns is not None:
            speakers = turns.speakers([word for _, word in words])
            words = [(i, {**word, "speaker": name}) for (i, word), name in zip(words, speakers, strict=True)]
        of_window: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for i, word in words:
            of_window[i].append(word)
        for i, window in enumerate(windows):
            output = outputs[i]
            if not output["text"]:
                continue
            segment = {
                "start": round(window.speech_start / self.rate, 3),
                "end": round(window.speech_end / self.rate, 3),
                "text": output["text"],
                "log_prob": output["log_prob"],
                **{name: output[name] for name in _OF_SEGMENTS if output.get(name)},
            }
            speech = window.part(window.speech_start, window.speech_end).speech
            if len(speech) > 1 and i not in of_window:
                segment["speech"] = [[round(t / self.rate, 3) for t in stretch] for stretch in speech]
            if reasons[i]:
                failed.append({**{k: segment[k] for k in ("start", "end", "text")}, "reason": ", ".join(reasons[i])})
                continue
            if "segments" in output:
                segments += [{**turn, **segment, **turn} for turn in output["segments"]]
                words += [(i, word) for word in in_order(output["words"])]
                continue
            if turns is None:
                segments.append(segment)
            elif i in of_window:
                segments += split_by_speaker(segment, of_window[i])
            else:
                segments.append(with_speaker(segment, turns, segments[-1]["speaker"] if segments else None))
        notes = [*note_on(first, plan.outputs, self.rate), *notes]
        return Transcript(
            audio=plan.recording.name,
            duration=round(plan.samples / self.rate, 3),
            language=language,
            text=joined_windows(s["text"] for s in segments),
            **({"words": [word for _, word in words]} if self.options.words else {}),
            segments=segments,
            **({"failed": failed} if failed else {}),
            **({"warning": UNREAD} if any(output.get("unread") for output in outputs) else {}),
            **plan.recording.selection.keys,
            **({"notes": [*plan.recording.notes, *notes]} if plan.recording.notes or notes else {}),
            model=self.model,
        )

    def _reasons_to_leave_out(self, output: dict[str, Any]) -> list[str]:
        """Return the failed checks for which a window's text is left out; `no_room` only affects word times."""
        return [] if self.options.keep_failed else [name for name in output["failed"] if name != "no_room"]

    def _words(
        self, windows: Sequence[Window], outputs: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the words of the windows in order and without overlap, each with its window's number. Times count from
        the start of the recording."""
        kept = [i for i in range(len(windows)) if not self._reasons_to_leave_out(outputs[i])]
        words = [(i, windows[i].start / self.rate, word) for i in kept for word in outputs[i]["words"]]
        times = in_order([{"start": w["start"] + offset, "end": w["end"] + offset} for _, offset, w in words])
        for (i, _, word), time in zip(words, times, strict=True):
            yield i, {"word": word["word"], **time, "confidence": word["confidence"]}


def _detected_language(
    windows: Sequence[Window], outputs: Sequence[dict[str, Any]], known: Sequence[str]
) -> str | None:
    """Return the language that the model detected in most of the speech, or the only one that it knows; else None."""
    seconds: dict[str, int] = {}
    for i, window in enumerate(windows):
        if outputs[i]["text"] and (code := outputs[i].get("language")):
            seconds[code] = seconds.get(code, 0) + window.speech_end - window.speech_start
    return max(seconds, key=lambda code: seconds[code], default=known[0] if len(known) == 1 else None)


def batches(items: list[Any], size: Callable[[Any], int], budget: int) -> Iterator[list[Any]]:
    """Yield batches, longest items first, of a padded size (longest times number) of at most `budget`, or one item."""
    batch: list[Any] = []
    for item in sorted(items, key=size, reverse=True):
        if batch and size(batch[0]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
