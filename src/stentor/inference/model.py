"""Loaded models: the Python API.

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

from stentor.audio.selection import Selection
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

if TYPE_CHECKING:
    from stentor.inference.speak.reference import Remark
    from stentor.inference.stream.speakers import OnlineDiarizer, SpeakerStream

AnyTask = TypeVar("AnyTask", bound=Task)

log = logging.getLogger(__name__)
Audio = str | Path | bytes | np.ndarray | BinaryIO | Recording


@dataclass
class Model:
    """A trained model and its task. Create it with `stentor.load`."""

    name: str
    """Path or Hub id that the model was loaded from."""
    bundle: Bundle
    task: Task
    folder: Path
    """Export folder of the model."""
    training: dict[str, Any] = field(default_factory=dict)
    """Config of the training; empty for a folder that transformers wrote."""

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
        """Transcribe one recording of any length.

        Args:
            audio: path, http(s) URL, bytes of a file, open binary file, or array [samples], [samples, channels] or
                [channels, samples].
            rate: sample rate of an array in Hz.
            words: compute word times; by default if the model has learned them.
            diarizer: second model, trained for the task `diarize`, that assigns a speaker to every word and segment.
            channel: use this channel, counted from 0, instead of the mean of all channels.
            options: `language`, `context` and the other fields of `DecodingOptions`.

        Raises AudioError for unreadable audio, and ConfigError for an unsupported option or a model of another task.
        """
        options |= {"language": language, "context": context}
        recording = open_recording(audio, self.bundle.processor.sample_rate, rate, Selection(channel))
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
        """Transcribe many recordings and yield the transcripts in the order of the recordings.

        Windows of several recordings are decoded together, which is several times faster than calling `transcribe` for
        each. Recordings are opened when they are needed, and their audio is not kept. Arguments and errors as in
        `transcribe`; `on_error` and `on_window` as in `Transcriber.transcribe`.
        """
        words = self.knows_times if words is None else words
        transcriber = self.transcriber(None, diarizer, words=words, **options)
        opened = (open_recording(r, transcriber.rate, rate, Selection(channel)) for r in recordings)
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
        """Return a `Transcriber` of this model. `options` are fields of `DecodingOptions` and override `decoding`.

        Raises ConfigError if the model was trained for another task or does not support an option."""
        task = self.for_transcription()
        asked = replace(decoding or DecodingOptions(), **options)
        segments = None if diarizer is None else diarizer.speaker_segments()
        if asked.context and "context" in self.bundle.family.decoding_options() and self.learned_context is False:
            on_warning(f"{self.name} was trained on records without context, so it has not learned to use one.")
        return Transcriber(self.bundle, task, asked, self.name, segments, tokens, detector)

    def stream(
        self,
        rate: int | None = None,
        language: str | None = None,
        delay: float | None = None,
        silence: float = 0.8,
        diarizer: Model | None = None,
        vad: str | Detector = "energy",
    ) -> Stream | SpeakerStream:
        """Open a stream that transcribes live audio: `feed` it float32 samples, then call `finish`.

        Args:
            rate: sample rate of the fed audio in Hz; default: the rate of the model.
            language: code of the spoken language, such as `en`.
            delay: seconds of a chunk, or seconds from one answer to the next; default: as the model was trained, or 1.
            silence: seconds of silence after which speech has ended.
            diarizer: second model, trained for the task `diarize`, that assigns a speaker to every word.
            vad: speech detector: `energy`, `silero`, the path of a silero_vad.onnx file, or a `Detector`.

        Raises ConfigError if a model was trained for another task, for an unknown language, and if a diarizer is given
        but the model has no word times.
        """
        detector = open_detector(vad) if isinstance(vad, str) else vad
        stream = Stream(open_recogniser(self, StreamOptions(language, delay, detector=detector)), rate, silence)
        if language and not stream.recogniser.takes_language:
            log.warning(f"{self.name} transcribes any language, so the language {language} has no effect.")
        if diarizer is None:
            return stream
        from stentor.inference.stream.speakers import SpeakerStream

        return SpeakerStream(stream, diarizer.online_diarizer(), rate)

    def online_diarizer(self, **options: float) -> OnlineDiarizer:
        """Return an `OnlineDiarizer` of this model, for a `SpeakerStream`; `options` are its arguments.

        Raises ConfigError if the model does not distinguish speakers."""
        from stentor.inference.stream.speakers import OnlineDiarizer

        return OnlineDiarizer(self.bundle, self.for_diarization(), self.name, **options)

    @property
    def knows_times(self) -> bool:
        """Whether transcripts can have word times."""
        return isinstance(self.task, Words) or self.bundle.capabilities.times_tokens

    @property
    def learned_context(self) -> bool | None:
        """Whether the training records had a context; None if unknown."""
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
        """Diarize one recording of any length: find who speaks when.

        `audio`, `rate` and `channel` as in `transcribe`. Give the number of `speakers` if you know it, or bounds.
        Raises AudioError for unreadable audio, and ConfigError if the model was trained for another task.
        """
        count = SpeakerCount(speakers=speakers, min_speakers=min_speakers, max_speakers=max_speakers)
        task = with_speakers(self.for_diarization(), count)
        recording = open_recording(audio, self.bundle.processor.sample_rate, rate, Selection(channel))
        return next(diarize(self.bundle, task, [recording], self.name))

    def speaker_segments(self) -> Callable[[Recording], list[dict[str, Any]]]:
        """Return a function that diarizes a recording, for a `Transcriber`.

        Raises ConfigError if the model does not distinguish speakers."""
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
        """Synthesize a text of any length. Remarks about the text and the voice are logged.

        Args:
            voice: saved voice: a `Voice`, a path, or a name from `voices`.
            reference: recording of the voice to clone, a file or an array.
            finish: trim and fade silence and set the level. If False, the audio is exactly what the codec returns.
            options: other fields of `Utterance`, such as `reference_text`, `instruct`, `language` and `seed`; arguments
                of `speaker` (`recognizer`, `normalize`, `denoise`); and keys of the section `task.generation`, such
                as `steps=16`.

        Raises ConfigError for invalid options, DataError for a text that cannot be spoken or a damaged voice, and
        AudioError for an unusable reference.
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
        """Synthesize a text of any length and yield each piece, (float32 [samples], Hz), as soon as it is ready.

        The first piece is short so that speech starts early. Arguments and errors as in `speak`."""
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
        """Return a speaker and a prepared utterance; arguments as in `speak`. Options that are not generation settings
        are fields of `Utterance`."""
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
        """Return a `Speaker` of this model; arguments as there. Raises ConfigError if it is not a synthesis model."""
        task = self.for_speech()
        speaker = Speaker(self.bundle, task, self.training, generation, recognizer, normalize, denoise, remark)
        speaker.voices = self.folder / VOICES
        return speaker

    @property
    def voices(self) -> list[str]:
        """Names of the voices that are saved with the model."""
        return voice_names(self.folder / VOICES)

    def for_speech(self) -> Speak:
        """Return the task `speak`. Raises ConfigError if the model has another task or no codec."""
        task = self._task(Speak, "to speak")
        if self.bundle.processor.codec is None:  # type: ignore[attr-defined]
            missing = self.bundle.traits.codec_missing
            raise ConfigError(
                f"{self.name} has no audio codec, so its codes cannot be decoded to audio: "
                + (missing or f"put the codec whose tokens it was trained on into {self.folder / 'audio_tokenizer'}.")
            )
        return task

    def for_diarization(self) -> Diarize:
        """Return the task `diarize`. Raises ConfigError if the model has another task."""
        return self._task(Diarize, "to diarize")

    def for_transcription(self) -> Transcribe:
        """Return the task `transcribe`. Raises ConfigError if the model has another task."""
        return self._task(Transcribe, "to transcribe")

    def for_texts(self) -> Language:
        """Return the task `language`. Raises ConfigError if the model has another task."""
        return self._task(Language, "to generate text")

    def _task(self, kind: type[AnyTask], purpose: str) -> AnyTask:
        if not isinstance(self.task, kind):
            raise ConfigError(f"{self.name} was trained for the task {self.task.type}, not {purpose}.")
        return self.task


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of an export. Raises ConfigError if there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): export the model again.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} contains no JSON object: export the model again.")
    return value
