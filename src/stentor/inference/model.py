"""A loaded model: the Python API.

`stentor.load("runs/digits").transcribe("a.wav").text`, `stentor.load("runs/diarizer").diarize("a.wav").segments`,
`stentor.load("runs/voice").speak("Good morning.").audio`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from stentor.errors import ConfigError
from stentor.inference.diarize import Diarization, diarize, require_speakers, with_speakers
from stentor.inference.options import DecodingOptions, SpeakerCount
from stentor.inference.recording import Recording, open_recording
from stentor.inference.speak.speaker import OF_CALLS, Speaker
from stentor.inference.speak.utterance import Speech, Utterance
from stentor.inference.speak.voice import VOICES, Voice, voice_names
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.inference.stream.stream import Stream
from stentor.inference.transcribe import OnError, Transcriber, Transcript
from stentor.inference.vad import Detector, open_detector
from stentor.models.base import Bundle
from stentor.tasks.base import Task
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.language import Language
from stentor.tasks.speak.generation import Generation
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe
from stentor.tasks.words import Words
from stentor.text.languages import find, unknown_language

if TYPE_CHECKING:
    from stentor.inference.speak.reference import Remark
    from stentor.inference.stream.speakers import OnlineDiarizer, SpeakerStream

AnyTask = TypeVar("AnyTask", bound=Task)

log = logging.getLogger(__name__)
Audio = str | Path | bytes | np.ndarray | BinaryIO | Recording


@dataclass
class Model:
    """A trained model with the task it was trained for."""

    name: str
    """The path or id that it was loaded from."""
    bundle: Bundle
    task: Task
    folder: Path
    """Its export folder."""
    training: dict[str, Any] = field(default_factory=dict)
    """The config that it was trained with; empty for a folder that plain transformers wrote."""

    def transcribe(
        self,
        audio: Audio,
        rate: int | None = None,
        language: str | None = None,
        context: str | None = None,
        words: bool | None = None,
        diarizer: Model | None = None,
        channel: int | None = None,
        **options: Any,
    ) -> Transcript:
        """The transcript of one recording of any length: a path, an http(s) address, the bytes of a file, an open
        binary file, or an array [samples], [samples, channels] or [channels, samples] at `rate` Hz.

        `channel`: one of its channels, from 0, in the place of their mean. `words`: with word times; default when the
        model has learned them. `diarizer`: a second model, for the task `diarize`, that puts a speaker on every word
        and segment. `options` are those of `transcriber`. Returns the transcript dict of the JSON contract, with
        `.text` and `.words`. Raises AudioError, and ConfigError when the model was trained for another task.
        """
        options |= {"language": language, "context": context}
        recording = open_recording(audio, self.bundle.processor.sample_rate, rate, channel)
        return next(self.transcribe_many([recording], None, words, diarizer, **options))

    def transcribe_many(
        self,
        recordings: Iterable[Audio],
        rate: int | None = None,
        words: bool | None = None,
        diarizer: Model | None = None,
        channel: int | None = None,
        on_error: OnError | None = None,
        on_window: Callable[[float], None] | None = None,
        **options: Any,
    ) -> Iterator[Transcript]:
        """Transcripts of many recordings, in their order, as they are done. Windows of several recordings are decoded
        together, so this is several times as fast as one call after another; recordings are opened as they are needed
        and their audio is not kept. Arrays are all at `rate` Hz.

        Parameters and errors as in `transcribe`; `on_error` and `on_window` as `Transcriber.transcribe` takes them.
        """
        words = self.knows_times if words is None else words
        transcriber = self.transcriber(None, diarizer, words=words, **options)
        opened = (open_recording(r, transcriber.rate, rate, channel) for r in recordings)
        return transcriber.transcribe(opened, on_error, on_window)

    def transcriber(
        self,
        decoding: DecodingOptions | None = None,
        diarizer: Model | None = None,
        tokens: bool = False,
        detector: Detector | None = None,
        on_warning: Callable[[str], None] = log.warning,
        **options: Any,
    ) -> Transcriber:
        """The model as a `Transcriber`; `options` are fields of `DecodingOptions`, in the place of those in `decoding`.
        Raises ConfigError when the model was trained for another task, or for an option that it cannot do."""
        task = self.for_transcription()
        asked = replace(decoding or DecodingOptions(), **options)
        segments = None if diarizer is None else diarizer.speaker_segments()
        if asked.context and "context" in self.bundle.family.decoding_options() and self.learned_context is False:
            on_warning(f"{self.name} was trained on records without any context: it has not learned to use one.")
        return Transcriber(self.bundle, task, asked, self.name, segments, tokens, detector, on_warning)

    def stream(
        self,
        rate: int | None = None,
        language: str | None = None,
        delay: float | None = None,
        silence: float = 0.8,
        diarizer: Model | None = None,
        vad: str | Detector = "energy",
    ) -> Stream | SpeakerStream:
        """Open a stream that transcribes during speech: `feed` it float32 samples at `rate` Hz (None: the model's), and
        `finish`.

        `delay`: see `inference.stream.recognisers.StreamOptions`; `silence`: seconds after which speech has ended;
        `diarizer`: a second model, for the task `diarize`, that puts a speaker on every word; `vad`: what finds speech
        and its end, as `stentor.inference.vad.open_detector` takes it, or such a detector. Raises ConfigError when a
        model was trained for another task, for an unknown language, and with a diarizer for a model without
        word times.
        """
        if language and find(language) is None:
            raise ConfigError(unknown_language(language))
        detector = open_detector(vad) if isinstance(vad, str) else vad
        stream = Stream(open_recogniser(self, StreamOptions(language, delay, detector=detector)), rate, silence)
        if language and not stream.recogniser.takes_language:
            log.warning(f"{self.name} writes what it hears in any language: the language {language} has no effect.")
        if diarizer is None:
            return stream
        from stentor.inference.stream.speakers import SpeakerStream

        return SpeakerStream(stream, diarizer.online_diarizer(), rate)

    def online_diarizer(self, **options: float) -> OnlineDiarizer:
        """Online diarizer for a `SpeakerStream`; `options` are those of
        `OnlineDiarizer`. Raises ConfigError when the model does not tell speakers apart."""
        from stentor.inference.stream.speakers import OnlineDiarizer

        return OnlineDiarizer(self.bundle, self.for_diarization(), self.name, **options)

    @property
    def knows_times(self) -> bool:
        """Whether its transcripts can have word times."""
        return isinstance(self.task, Words) or self.bundle.capabilities.times_tokens

    @property
    def learned_context(self) -> bool | None:
        """Whether the records of its training had a context. None when that is not known."""
        if (self.training.get("task") or {}).get("context"):
            return True
        results = self.folder / "train_results.json"
        count = (read_object(results).get("data") or {}).get("with_context") if results.is_file() else None
        return None if count is None else count > 0

    def diarize(
        self,
        audio: str | Path | np.ndarray,
        rate: int | None = None,
        speakers: int | None = None,
        min_speakers: int | None = None,
        max_speakers: int | None = None,
        channel: int | None = None,
    ) -> Diarization:
        """Speaker diarization of a recording of any length, as `transcribe` takes it; an array is at `rate` Hz.

        The number of speakers may be given, or its bounds. Returns the dict of the JSON output, with `.segments`,
        `.speakers` and `.rttm()`. Raises AudioError, and ConfigError when the model was trained for another task.
        """
        count = SpeakerCount(speakers=speakers, min_speakers=min_speakers, max_speakers=max_speakers)
        task = with_speakers(self.for_diarization(), count)
        recording = open_recording(audio, self.bundle.processor.sample_rate, rate, channel)
        return next(diarize(self.bundle, task, [recording], self.name))

    def speaker_segments(self) -> Callable[[Recording], list[dict[str, Any]]]:
        """The function from a recording to its speakers' segments, for a `Transcriber`. Raises ConfigError when the
        model does not tell speakers apart."""
        task, rate = self.for_diarization(), self.bundle.processor.sample_rate
        require_speakers(task, self.name)
        return lambda recording: next(diarize(self.bundle, task, [recording.at(rate)], self.name)).segments

    def speak(
        self,
        text: str,
        voice: Voice | str | Path | None = None,
        reference: str | Path | np.ndarray | None = None,
        *,
        finish: bool = True,
        **options: Any,
    ) -> Speech:
        """A text of any length, spoken: `.audio` float32 [samples] at `.rate` Hz, and its `.codes`. Remarks are logged.

        Args:
            voice: a saved voice, by its path or, of `voices`, its name; see `stentor.inference.speak.voice`.
            reference: a recording of the voice, a file or an array.
            finish: trim and fade silence and set the level; without, the audio is as the codec gives it.
            options: other fields of `Utterance`, such as `reference_text`, `instruct`, `language` and `seed`; those of
                `speaker` (`recognizer`, `normalize`, `denoise`); and keys of the task's section `generation`, such as
                `steps=16`.

        Raises ConfigError, DataError and AudioError.
        """
        speaker, utterance = self._prepared(text, voice, reference, **options)
        return next(speaker.speak([utterance], finish))

    def speak_stream(
        self,
        text: str,
        voice: Voice | str | Path | None = None,
        reference: str | Path | np.ndarray | None = None,
        *,
        finish: bool = True,
        **options: Any,
    ) -> Iterator[tuple[np.ndarray, int]]:
        """A text of any length, spoken piece by piece: (float32 [samples], Hz), each as soon as it is made, to be laid
        end to end. The first is short, so that it comes early. Parameters and errors as in `speak`."""
        speaker, utterance = self._prepared(text, voice, reference, **options)
        return ((piece.audio, piece.rate) for piece in speaker.stream(utterance, finish))

    def _prepared(
        self,
        text: str,
        voice: Voice | str | Path | None,
        reference: str | Path | np.ndarray | None,
        recognizer: str | None = None,
        normalize: bool = False,
        denoise: bool | None = None,
        **options: Any,
    ) -> tuple[Speaker, Utterance]:
        """Speaker and utterance for a text; parameters as in `speak`. Options that are no settings of the
        generation are fields of `Utterance`."""
        settings = (Generation.model_fields.keys() | OF_CALLS) - {"seed"}
        generation = {name: options.pop(name) for name in settings & options.keys()}
        speaker = self.speaker(generation, recognizer, normalize, denoise)
        return speaker, speaker.prepare(Utterance(text, voice=voice, reference=reference, **options))

    def speaker(
        self,
        generation: Mapping[str, Any] | None = None,
        recognizer: str | None = None,
        normalize: bool = False,
        denoise: bool | None = None,
        remark: Remark | None = None,
    ) -> Speaker:
        """The model as a `Speaker`; parameters as there. Raises ConfigError when it does not speak."""
        task = self.for_speech()
        speaker = Speaker(self.bundle, task, self.training, generation, recognizer, normalize, denoise, remark)
        speaker.voices = self.folder / VOICES
        return speaker

    @property
    def voices(self) -> list[str]:
        """Names of the voices that travel with the model."""
        return voice_names(self.folder / VOICES)

    def for_speech(self) -> Speak:
        """The task, when it is `speak`; raises ConfigError when it is another, or the model has no codec."""
        task = self._task(Speak, "to speak")
        if self.bundle.processor.codec is None:  # type: ignore[attr-defined]
            missing = self.bundle.traits.codec_missing
            raise ConfigError(
                f"{self.name} has no audio codec, so its codes cannot be made to sound: "
                + (missing or f"put the codec whose tokens it was trained on into {self.folder / 'audio_tokenizer'}.")
            )
        return task

    def for_diarization(self) -> Diarize:
        """The task, when it is `diarize`; raises ConfigError when it is another."""
        return self._task(Diarize, "to tell speakers apart")

    def for_transcription(self) -> Transcribe:
        """The task, when it is `transcribe`; raises ConfigError when it is another."""
        return self._task(Transcribe, "to transcribe")

    def for_texts(self) -> Language:
        """The task, when it is `language`; raises ConfigError when it is another."""
        return self._task(Language, "to write texts")

    def _task(self, kind: type[AnyTask], purpose: str) -> AnyTask:
        if not isinstance(self.task, kind):
            raise ConfigError(f"{self.name} was trained for the task {self.task.type}, not {purpose}.")
        return self.task


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of an export. Raises ConfigError where there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): export the model again.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object: export the model again.")
    return value
