"""Forced alignment of known texts, by a trained aligner, a transducer, a CTC model or Whisper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from stentor.audio.activity import Activity, EnergyDetector
from stentor.data.batch import Example
from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import Aligned, Aligner, Clip, Word
from stentor.inference.align.long_audio import by_windows
from stentor.inference.load import CONFIG, TRAINING_CONFIG, find_export, load, pick_device
from stentor.inference.model import Model, read_object
from stentor.inference.recording import Recording
from stentor.inference.vad import Window
from stentor.models.base import Bundle, Family
from stentor.models.transducer.config import TransducerFamily
from stentor.tasks.words import UNWRITTEN_WORD, Words
from stentor.text.languages import known_code

Engine = Literal["aligner", "transducer", "ctc", "whisper"]
ENGINES: tuple[Engine, ...] = ("aligner", "transducer", "ctc", "whisper")
UNSURE = 0.45
"""A text whose times a trained aligner is less sure of in the mean (0 to 1) is not what was said. Of 160 utterances
with two models all were above 0.47 with their own text; with the text of another most were below."""
UNLIKELY = 0.05
"""The same for the mean confidence of the words: all were above 0.1, with the text of another half were below for a
recogniser of 76 % WER, and nearly none for a good one that also knows what people say."""
UNWRITTEN = 0.4
"""The same of transducers: of 60 synthetic utterances with the quickstart's model all were above 0.8 with their own
text (above 0.5 if not calibrated), and about nine in ten below 0.46 with the text of another."""


def engine_of(model: str, engine: str | None = None) -> tuple[Path, Engine]:
    """The model's folder and the engine that it serves, from its config alone; `engine` is what the user asked for.

    Raises ConfigError when there is no such model, or it does not serve that engine.
    """
    if engine is not None and engine not in ENGINES:
        raise ConfigError(f"Unknown --engine {engine}; known: {', '.join(ENGINES)}, and voice for the built-in voice.")
    folder = find_export(model)
    config = read_object(folder / CONFIG)
    kinds = config.get("architectures") or []
    served: tuple[Engine, ...]
    if "WhisperForConditionalGeneration" in kinds:
        served = ("whisper",)
    elif any(kind.endswith("ForCTC") for kind in kinds):
        served = ("ctc",)
    elif config.get("model_type") in Family.choices() or TransducerFamily.can_load(config):
        task = read_object(folder / TRAINING_CONFIG)["task"]["type"] if (folder / TRAINING_CONFIG).is_file() else None
        family = config.get("family") or {}
        has = {
            "aligner": task == "words" and family.get("aligner"),
            "transducer": TransducerFamily.can_load(config),
            "ctc": family.get("ctc"),
        }
        served = tuple(name for name in ENGINES if has.get(name))
    else:
        served = ()
    if not served:
        raise ConfigError(
            f"{model} cannot align: it is not a Whisper model, a CTC model, a transducer, or a Stentor model with an "
            "aligner (task words) or a CTC head."
        )
    if engine is not None and engine not in served:
        raise ConfigError(f"{model} does not support --engine {engine}, only {', '.join(served)}.")
    return folder, engine or served[0]  # type: ignore[return-value]  # it is one of `served`


def open_aligner(model: str, engine: str | None = None, device: str = "auto", lag: float | None = None) -> Aligner:
    """The aligner in a run folder, an export, a folder or Hub id of a transducer, CTC or Whisper model.
    Raises ConfigError.

    `lag`, for Whisper models only: seconds that their attention is late.
    """
    folder, engine = engine_of(model, engine)
    if lag is not None and engine != "whisper":
        raise ConfigError(f"--lag is for the attention of Whisper models, not for the engine {engine}: leave it out.")
    if engine == "whisper":
        from stentor.inference.align.whisper import WhisperAligner

        return WhisperAligner(folder, pick_device(device), lag or 0.0)
    if any(kind.endswith("ForCTC") for kind in read_object(folder / CONFIG).get("architectures") or []):
        from stentor.inference.align.ctc import CTCAligner, TransformersCTC

        return CTCAligner(TransformersCTC(folder, pick_device(device)))
    return aligner_of(load(folder, device), engine)


def aligner_of(model: Model, engine: str | None = None) -> Aligner:
    """The aligner of a model that is loaded; the weights are in memory once, but for models that transformers loads.
    Raises ConfigError."""
    folder, engine = engine_of(str(model.folder), engine)
    if engine == "whisper" or (read_object(folder / CONFIG).get("family") is None and engine == "ctc"):
        return open_aligner(str(folder), engine, str(next(model.bundle.model.parameters()).device))
    if engine == "ctc":
        from stentor.inference.align.ctc import CTCAligner, SpeechLLMCTC

        return CTCAligner(SpeechLLMCTC(model.bundle, model.name))
    task = model.task
    if not isinstance(task, Words):  # transducers align whatever they were trained for
        task = Words.model_validate({**task.model_dump(), "type": "words"})
    return TrainedAligner(model.bundle, task)


def clip_of(recording: Recording, text: str, language: str | None = None, name: str | None = None) -> Clip:
    """A recording with its text: reads through the recording once, for its length and its pauses. Raises AudioError."""
    activity: Activity = EnergyDetector().activity(recording.blocks(), recording.rate)
    return Clip(name or recording.name, text, known_code(language) if language else None, recording, activity)


class TrainedAligner:
    """The alignment module of a model that was trained for the task `words`, or a transducer."""

    def __init__(self, bundle: Bundle, task: Words):
        self.bundle, self.task = bundle, task
        self.rate = bundle.processor.sample_rate
        self.longest = min(bundle.processor.max_seconds or 30.0, 30.0)

    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """See `stentor.inference.align.base.Aligner`; confidences are calibrated."""
        short = [clip for clip in clips if clip.seconds <= self.longest and clip.text.strip()]
        batched = {id(clip): aligned for clip, aligned in zip(short, self._align(short))}

        def piece(clip: Clip, window: Window, text: str) -> Aligned:
            if text == clip.text and id(clip) in batched:
                return batched[id(clip)]
            return self._align([clip], window, text)[0]

        return [by_windows(clip, self.longest, piece, self._recognize, transcribe, pauses=False) for clip in clips]

    def _align(self, clips: Sequence[Clip], window: Window | None = None, text: str | None = None) -> list[Aligned]:
        """Word times of clips, or of a window of one clip, as one batch; one by one when some text does not fit."""
        if not clips:
            return []
        try:
            alignments = self.task.align(self.bundle, [self._example(clip, window, text) for clip in clips])
        except DataError:
            if len(clips) == 1:
                return [Aligned([], reason="too_long_text")]
            return [self._align([clip])[0] for clip in clips]
        return [Aligned([], reason="too_long_text") if w is None else self._aligned(w) for w in alignments]

    def _aligned(self, words: list[dict[str, Any]]) -> Aligned:
        if not words:
            return Aligned([], reason="no_words")
        processor = self.bundle.processor
        unknown = {processor.tokenizer.unk_token_id}
        words = [w | UNWRITTEN_WORD if set(processor.ids(w["word"])) == unknown else w for w in words]
        times = [Word(w["word"], w["start"], w["end"], w["confidence"], w.get("unwritten", False)) for w in words]
        written = [w for w in words if not w.get("unwritten")] or words
        confidence = sum(w["confidence"] for w in written) / len(written)
        certainty = sum(w["signs"][1] for w in written) / len(written)
        if self.bundle.capabilities.times_tokens:
            mismatch = confidence < UNWRITTEN
        else:
            mismatch = confidence < UNLIKELY or certainty < UNSURE
        return Aligned(times, cost=1 - confidence, reason="mismatch" if mismatch else None)

    def _recognize(self, clip: Clip, window: Window) -> str:
        (output,) = self.task.predict(self.bundle, [self._example(clip, window, None)], words=False)
        return output["text"]

    def _example(self, clip: Clip, window: Window | None, text: str | None) -> Example:
        audio = clip.recording.read(window.start, window.end) if window else clip.recording.read(0, clip.samples)
        return Example(clip.id, audio, clip.text if text is None else text, clip.language, self.task.context)
