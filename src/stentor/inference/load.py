"""Model loading, and the Python API of a loaded model.

`stentor.load("runs/digits").transcribe("a.wav").text`, `stentor.load("runs/diarizer").diarize("a.wav").segments`,
`stentor.load("runs/voice").speak("Good morning.").audio`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from stentor.data.storage import as_path, is_remote, name_of
from stentor.data.storage_cache import local_folder
from stentor.errors import ConfigError
from stentor.inference.diarize import Diarization, diarize, segments_by, with_speakers
from stentor.inference.inputs import open_recording
from stentor.inference.options import DecodingOptions, SpeakerCount
from stentor.inference.recording import Recording
from stentor.inference.speak import Speech, Utterance
from stentor.inference.speak.speaker import OF_CALLS, Speaker
from stentor.inference.speak.voice import VOICES, Voice, voice_names
from stentor.inference.stream import open_recogniser
from stentor.inference.stream.speaker_stream import SpeakerStream
from stentor.inference.stream.stream import Stream
from stentor.inference.transcribe import OnError, Transcriber, Transcript
from stentor.inference.vad import Detector, open_detector
from stentor.models.base import Bundle, Family
from stentor.tasks.base import Task
from stentor.tasks.diarize import Diarize
from stentor.tasks.language import Language
from stentor.tasks.speak import Speak
from stentor.tasks.speak.generation import Generation
from stentor.tasks.transcribe import Transcribe, times_tokens
from stentor.tasks.words import Words
from stentor.text.languages import find, unknown_language

if TYPE_CHECKING:
    from stentor.inference.speak.reference import Remark
    from stentor.inference.stream.speakers import OnlineDiarizer

AnyTask = TypeVar("AnyTask", bound=Task)

log = logging.getLogger(__name__)
Audio = str | Path | bytes | np.ndarray | BinaryIO | Recording
CONFIG = "config.json"
TRAINING_CONFIG = "training_config.json"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


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
        and segment. `options` are those of `transcriber`. Returns the transcript
        dict of the JSON contract, with `.text` and `.words`. Raises AudioError, and ConfigError when the model was
        trained for another task.
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
        """What is said, while it is said: `feed` it float32 samples at `rate` Hz (None: the model's), and `finish`.

        `delay`: see `stentor.inference.stream.open_recogniser`; `silence`: seconds after which speech has ended;
        `diarizer`: a second model, for the task `diarize`, that puts a speaker on every word; `vad`: what finds speech
        and its end, as `stentor.inference.vad.open_detector` takes it, or such a detector. Raises ConfigError when a
        model was trained for another task, for a language that nobody knows, and with a diarizer for a model without
        word times.
        """
        if language and find(language) is None:
            raise ConfigError(unknown_language(language))
        detector = open_detector(vad) if isinstance(vad, str) else vad
        stream = Stream(open_recogniser(self, language, delay, detector=detector), rate, silence)
        if language and not stream.recogniser.takes_language:
            log.warning(f"{self.name} writes what it hears in any language: the language {language} has no effect.")
        return stream if diarizer is None else SpeakerStream(stream, diarizer.online_diarizer(), rate)

    def online_diarizer(self, **options: float) -> OnlineDiarizer:
        """What says who speaks in a recording that comes, for a `SpeakerStream`; `options` are those of
        `OnlineDiarizer`. Raises ConfigError when the model does not tell speakers apart."""
        from stentor.inference.stream.speakers import OnlineDiarizer

        return OnlineDiarizer(self.bundle, self.for_diarization(), self.name, **options)

    @property
    def knows_times(self) -> bool:
        """Whether its transcripts can have word times."""
        return isinstance(self.task, Words) or times_tokens(self.bundle.model)

    @property
    def learned_context(self) -> bool | None:
        """Whether the records of its training had a context. None when that is not known."""
        if (self.training.get("task") or {}).get("context"):
            return True
        results = self.folder / "train_results.json"
        count = (_json(results).get("data") or {}).get("with_context") if results.is_file() else None
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
        """Who speaks when in a recording of any length, as `transcribe` takes it; an array is at `rate` Hz.

        The number of speakers may be given, or its bounds. Returns the dict of the JSON output, with `.segments`,
        `.speakers` and `.rttm()`. Raises AudioError, and ConfigError when the model was trained for another task.
        """
        count = SpeakerCount(speakers=speakers, min_speakers=min_speakers, max_speakers=max_speakers)
        task = with_speakers(self.for_diarization(), count)
        recording = open_recording(audio, self.bundle.processor.sample_rate, rate, channel)
        return next(diarize(self.bundle, task, [recording], self.name))

    def speaker_segments(self) -> Callable[[Recording], list[dict[str, Any]]]:
        """The function from a recording to its speakers' segments; see `stentor.inference.diarize.segments_by`."""
        return segments_by(self.bundle, self.for_diarization(), self.name)

    def speak(
        self,
        text: str,
        voice: Voice | str | Path | None = None,
        reference: str | Path | np.ndarray | None = None,
        *,
        recognizer: str | None = None,
        normalize: bool = False,
        denoise: bool | None = None,
        finish: bool = True,
        **options: Any,
    ) -> Speech:
        """A text of any length, spoken: `.audio` float32 [samples] at `.rate` Hz, and its `.codes`. Remarks are logged.

        Args:
            voice: a saved voice, by its path or, of `voices`, its name; see `stentor.inference.speak.voice`.
            reference: a recording of the voice, a file or an array.
            recognizer: the model that transcribes the reference where `reference_text` is not given.
            normalize: write numbers in words.
            denoise: ask for clean speech after a noisy reference (default: of models that have learned it).
            finish: trim and fade silence and set the level; without, the audio is as the codec gives it.
            options: `reference_text`, `reference_rate` (Hz, of an array), `instruct` (the voice in words), `language`,
                `duration` (seconds) or `speed` in the place of the duration rule, `seed`; and keys of the task's
                section `generation`, such as `steps=16`.

        Raises ConfigError, DataError and AudioError.
        """
        shared: dict[str, Any] = {"recognizer": recognizer, "normalize": normalize, "denoise": denoise}
        speaker, utterance = self._prepared(text, voice, reference, **shared, **options)
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
        """What speaks, and what it is to speak; parameters as in `speak`. Options that are no settings of the
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
        """The model as a `Speaker` with these options; raises ConfigError when it does not speak."""
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
            missing = getattr(self.bundle.processor, "codec_missing", None)
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


def load(path: str | Path, device: str = "auto") -> Model:
    """The model in a run folder, an export folder or a Hub repository, ready to use (evaluation mode).

    `device`: auto (the GPU when there is one), cpu, cuda, cuda:1, mps. Raises ConfigError when there is no such model,
    its family is unknown here, or the device is missing.
    """
    torch_device = pick_device(device)
    folder = find_export(path)
    config = _json(folder / CONFIG)
    families: dict[str, Any] = dict(Family.choices())
    family = next((known for known in families.values() if known.can_load(config)), None)
    if family is None:
        raise ConfigError(
            f"{folder / CONFIG} says model_type {config.get('model_type')!r}, which is no model family here; known: "
            f"{', '.join(sorted(families))}. A family of a plug-in needs --plugin."
        )
    bundle = family.load(folder)
    bundle.model.to(torch_device).eval()
    if (codec := getattr(bundle.processor, "codec", None)) is not None:
        codec.to(str(torch_device))
    training = _json(folder / TRAINING_CONFIG) if (folder / TRAINING_CONFIG).is_file() else {}
    # A folder that Stentor did not write: the task that its family is for.
    kind = family.tasks[0] if family.tasks and "transcribe" not in family.tasks else "transcribe"
    if getattr(bundle.processor, "turns", False):
        kind = "who_said_what"
    task: Task = Task.model_validate(training["task"] if training else {"type": kind})
    return Model(str(path), bundle, task, folder, training)


def find_export(path: str | Path) -> Path:
    """The export folder that a run folder, a checkpoint, an export folder or a Hub id means.

    Of a run that is not finished: the export of its best checkpoint, else of its latest. A Hub id is downloaded, or
    found in the local cache; a folder at an address is copied into the cache. Raises ConfigError.
    """
    return local_folder(_export_folder(path))


def _export_folder(path: str | Path) -> Path:
    folder = as_path(path)
    if folder.is_dir():
        if (folder / CONFIG).is_file():
            return folder
        if (folder / "export" / CONFIG).is_file():
            return folder / "export"
        checkpoints = folder / "checkpoints"
        for pointer in ("best", "latest"):
            if (checkpoints / pointer).is_file():
                export = checkpoints / (checkpoints / pointer).read_text("utf-8").strip() / "export"
                if (export / CONFIG).is_file():
                    return export
        if checkpoints.is_dir() or (folder / "resolved.yaml").is_file():
            raise ConfigError(f"The run {folder} has saved no checkpoint yet: train it until it has.")
        raise ConfigError(
            f"{folder} is neither a run folder nor an export folder: it has no {CONFIG}, export/ or checkpoints/."
        )
    if folder.exists():
        raise ConfigError(f"{folder} is a file; a model is a run folder, an export folder or a Hub id.")
    if is_remote(folder):
        raise ConfigError(f"There is no model at {name_of(folder)}: check the bucket and the path.")
    if not HUB_ID.fullmatch(str(path)):
        raise ConfigError(f"There is no model {path}: no such folder, and not a Hub id such as owner/name.")
    return _download(str(path))


def pick_device(name: str, here: bool = True) -> Any:
    """The torch device that `auto`, `cpu`, `cuda`, `cuda:N` or `mps` means. Raises ConfigError for another name, and,
    if it is to be `here`, for a device that this machine lacks."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"Unknown device {name}: take auto, cpu, cuda, cuda:N or mps.") from None
    if not here:
        return device
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"There is no device {name}: torch finds {torch.cuda.device_count()} GPUs (see `stentor doctor`)."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("There is no device mps: torch finds no Apple GPU here.")
    return device


def _download(name: str) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        # Weights in other formats than safetensors are never loaded.
        folder = Path(snapshot_download(name, ignore_patterns=["*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.msgpack"]))
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"There is no folder {name} here, and no model {name} on the Hugging Face Hub that you may read "
            "(private ones need `hf auth login`)."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"There is no folder {name} here, and the Hugging Face Hub cannot be reached to look for the model {name}. "
            "Check the path or the connection."
        ) from error
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"The Hub model {name} has no {CONFIG}.")
    return folder


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): export the model again.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object: export the model again.")
    return value
