"""Contracts between models and tasks: what a task may ask of a model and its processor, and what they declare.

A plug-in's model and processor need not inherit from these classes: whatever they do not declare, they cannot do
(`Bundle.capabilities`, `Bundle.traits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from stentor.data.batch import num_samples
from stentor.data.cut import Cut
from stentor.errors import ConfigError
from stentor.models.text.control_tokens import text_ids
from stentor.models.text.tokenizers import CTCAlphabet
from stentor.text.languages import among, checked_language, known_code

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch

    from stentor.data.batch import Batch, Example
    from stentor.data.trained_speech import TrainedSpeech
    from stentor.losses.base import Loss


class GenerationOutput(NamedTuple):
    """Output of generation for one item of a batch. Plug-ins may return plain pairs of the first two fields."""

    ids: list[int]
    """Tokens, without the end token."""
    log_probs: list[float]
    """The model's log-probability of each token."""
    spans: list[tuple[float, float]] | None = None
    """The first and the last second of each token, from models that time their tokens."""
    language: list[int] | None = None
    """Tokens that name the language, of which the processor's `named_language(ids)` makes a code, None for none."""
    no_speech: float | None = None
    """Probability that no one speaks, from models that know it."""
    states: list[torch.Tensor] | None = None
    """Last hidden state [width] of each token and of the end token, where they were asked for."""
    alternatives: Sequence[GenerationOutput] = ()
    """All answers, this one first, where several were asked for."""


@dataclass(frozen=True)
class Capabilities:
    """Abilities of a model that writes text beyond writing it. The defaults are those of a plain recognizer."""

    times_tokens: bool = False
    """Outputs have `spans`: words have times without a task of their own."""
    names_language: bool = False
    """Outputs have `language`."""
    detects_language: bool = False
    """`language_probabilities(features)` gives a probability [B, languages] for each of `languages`, its token ids."""
    no_speech: bool = False
    """Outputs have `no_speech`."""
    ends_text: bool = True
    """Answers have an end token."""
    language_marker: int | None = None
    """Token before which an answer names its language. None: there is none."""
    aligns: Literal["words", "tokens"] | None = None
    """Forced alignment of known texts: `words` by `align(**inputs)` with an `aligner`, `tokens` by
    `align_tokens(inputs, ids)`. None: not supported."""
    writes_along: bool = False
    """It transcribes during a recording, a delay after each word (`audio_opener`)."""


class Recognizer:
    """Base class of models that write text."""

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of this model."""
        return Capabilities()

    def generate(
        self, inputs: dict[str, torch.Tensor], max_new_tokens: Any, eos_ids: Any, **options: Any
    ) -> list[GenerationOutput]:
        """Generate an output for each item of `Processor.collate(labels=False)`.

        `max_new_tokens`: a limit for each item. `options`: `beams`, `temperature`, `generators` (one for each item,
        for sampling), `num_answers` (> 1: several `alternatives`, see `decoding.search.answer`) and, where
        `Family.decoding_options` has `hotwords`, `bias` (see `decoding.bias`).
        """
        raise NotImplementedError

    def confidence_map(self) -> list[float] | None:
        """The logistic map [3] to confidences of words (see `stentor.metrics.calibration`). None: unchanged
        probabilities."""
        return None


@dataclass
class FrameOutput:
    """Outputs of an encoder for the frames of a batch."""

    logits: torch.Tensor
    """float32 [B, T, classes]."""
    embeddings: torch.Tensor | None
    """Speaker embeddings float32 [B, T, size], not normalised: they are averaged over frames, then normalised."""
    lengths: torch.Tensor
    """Frames of each item, int64 [B]."""


class ServedTask(Protocol):
    """The part of a task that the family serving it may use."""

    type: str

    def is_a(self, kinds: Sequence[str]) -> bool:
        """Whether the task is one of these types or a subclass of one."""

    def losses(self) -> dict[str, Loss]:
        """The loss terms where the config has no `losses:` section."""


class FrameLabeler(Protocol):
    """A model that labels frames, as the task `diarize` asks it."""

    def label_frames(self, **inputs: torch.Tensor) -> FrameOutput:
        """Classes and embeddings of the frames of a batch that is made for generation."""


class Speaker(Protocol):
    """A model that speaks, as the task `speak` asks it."""

    def speak(self, prompts: Sequence[Any], *, seeds: int | Sequence[int] = 0, **options: Any) -> list[np.ndarray]:
        """Codes [codebooks, frames] for each prompt of `processor.utterance`, a function of it and its seed alone."""


class Processor:
    """Base class of processors, which turn examples into tensors. Must pickle: it is sent to loader workers."""

    sample_rate: int
    max_seconds: float | None = None
    """Longest clip that the model takes, in seconds. None: any length."""
    seconds_limit: str = "the model reads at most {:g} s"
    """Sentence about `max_seconds`, which names the key that sets it, if any."""
    loss_parts: Mapping[str, float] = MappingProxyType({})
    """Terms that the model's own loss is the sum of, each divided by a count of its own, with their weights. Empty: it
    is one term."""

    # Of models that write text
    tokenizer: Any = None
    """transformers' tokenizer of the texts. None: there is none, or the model has a spelling of its own."""
    ctc: Any = None
    """Alphabet of a CTC head, with `decode(classes per frame)`. None: the model has no auxiliary CTC head."""
    writes_classes: ClassVar[bool] = False
    """Whether the text is written by CTC classes: `spell_classes(classes)` is their text."""
    trained_speech: TrainedSpeech | None = None
    """Statistics of the clips that the model was trained on, where other clips must be prepared in the same way."""
    streaming: Any = None
    """Chunks of a streaming model (`encoders.streaming.chunks`). None: clips are read as a whole."""
    turns: ClassVar[bool] = False
    """Whether answers say who speaks."""

    known_languages: Sequence[str] = ()
    """Codes of the languages that the model transcribes. Empty: not known."""

    # Of models that speak
    codec: Any = None
    """The `AudioCodec`. None: there is none."""
    codec_missing: str | None = None
    """Reason why the codec is missing, where there should be one."""
    letters: str | None = None
    """Letters and digits of the training texts. None: not known."""
    instructs: list[str] | None = None
    """Values of `instruct` in the training records. None: not known, or too many to list."""
    clones: ClassVar[bool] = True
    """Whether it speaks in the voice of a recording."""
    continues: ClassVar[bool] = True
    """Whether it can continue codes that are the beginning of the text, as samples of an evaluation do."""

    def written(self, letter: str) -> str:
        """Letters that the model is trained to write for one of a text: the same, others or none."""
        unknown = None if self.tokenizer is None else self.tokenizer.unk_token_id
        if isinstance(self.ctc, CTCAlphabet) and not self.ctc.by_words and not set(letter) <= set(self.ctc.units):
            return ""
        return "" if unknown is not None and unknown in text_ids(self.tokenizer, letter) else letter

    def spoken_language(self, language: str | None, model: str) -> str | None:
        """Code of the language of a call as the model knows it, None for none. Raises ConfigError for one that there is
        not, and for one that the model, which is called `model`, does not know."""
        code, known = checked_language(language), tuple(sorted(set(map(known_code, self.known_languages))))
        if code is not None and known and among(code, known) is None:
            raise ConfigError(f"{model or 'This model'} does not know {language!r}; its languages: {', '.join(known)}.")
        return code if code is None or known_code(code) in known else among(code, known) or code

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Cost of one item in sequence positions, from metadata alone; `seconds` is its length after augmentation."""
        raise NotImplementedError

    def packed_length(self, total: int) -> int:
        """Sequence positions of a packed batch whose items have so many, with its padding."""
        return total

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        """Return the reason why a record of this example is left out before `training` or evaluation, as (reason,
        sentence); None if the model can use it. Everything has to be known from metadata: the example has its text and
        its length, and its audio (or codes) may be zeros. A sentence names the limit, where it comes from and what to
        change. See `stentor.dataloading.planned`."""
        return self.refusal(example, training)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        """Like `drop_reason`, for an example that cannot be in a batch (of `collate(labels=labels)`)."""
        seconds = num_samples(example) / self.sample_rate if self.max_seconds else 0.0
        if not self.max_seconds or seconds <= self.max_seconds:
            return None
        return "too_long", (
            f"{example.id}: {seconds:.1f} s of audio; {self.seconds_limit.format(self.max_seconds)}. Cut it into "
            "shorter clips, as `stentor transcribe` does, or leave longer records out: "
            f"`data.max_seconds: {math.floor(self.max_seconds * 1000) / 1000:g}`."
        )

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch. With `labels` for training (right padding), without for generation (left padding). Examples with a
        `refusal` are left out and listed in `Batch.dropped`; in a batch for generation they raise DataError."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write processor and tokenizer files that `Family.load` reads."""
        raise NotImplementedError
