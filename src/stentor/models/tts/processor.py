"""Base of the classes that define one model of the family: prompt, batches, loss and speech."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.cut import Cut, field_of, text_of
from stentor.errors import ConfigError
from stentor.models.codec_processor import CodecProcessor, check_codec
from stentor.models.codecs.base import INSIDE, AudioCodec, open_codec
from stentor.models.pretrained.kind import Kinds, ProcessorFiles, TransformersKind

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.tts.modeling import TTSModel

log = logging.getLogger("stentor")

IGNORED = -100
"""Label of a position that is not learned."""


@dataclass
class Sample:
    """One item of a training batch."""

    ids: list[int]
    """Tokens of the text with its surrounding special tokens."""
    codes: np.ndarray
    """Integers [codebooks, frames]; of codecs without entries real numbers."""
    rng: np.random.Generator
    """The item's own chance, the same each time."""


@dataclass
class Prompt:
    """One utterance to speak."""

    ids: list[int]
    """Tokens of the text with its surrounding special tokens."""
    limit: int
    """Most frames to speak."""
    codes: np.ndarray | None = None
    """Integers [codebooks, frames] of the voice."""
    before: list[int] | None = None
    """Tokens of the text of these codes. None: they are the beginning of this text."""
    after: int = 0
    """Frames to speak after the one that ends it, of models that end so (Pocket TTS)."""


KINDS: Kinds[type[TTSProcessor]] = Kinds(package=f"{__package__}.kinds")


class TTSProcessor(CodecProcessor, TransformersKind):
    """One model of the family, as facts (class attributes) and hooks around transformers' own processor, `hf`.

    A model is a subclass in a module of `kinds/`, or of a plug-in. Hooks are called in this order: `read`, `settle` and
    `inspect` for configs, `setup` and `model_codec`, then `prompt_ids` and `inputs` for batches, `loss` in training,
    `utterance` and `generate` in use, `save` for exports. Those that compute (`loss`, `generate`) are methods of the
    class and see transformers' model alone.
    """

    names: ClassVar[tuple[tuple[str, str], ...]] = (("", ""),)
    """Tensors have the same names with us and with transformers."""
    lora_targets: ClassVar[tuple[str, ...]] = tuple(f"*.{x}_proj" for x in "qkvo")
    """Default of `lora.targets`."""
    blank: ClassVar[int | None] = None
    """Token that replaces those of the text in the unconditional input of guidance. None: not trained without text."""
    names_voice: ClassVar[bool] = False
    """Whether its prompt has a place for an `instruct`."""
    generation_keys: ClassVar[tuple[str, ...]] = ("temperature", "top_k", "top_p")
    """Keys of the section `generation` that mean something to it."""
    kinds: ClassVar[Kinds[type[TTSProcessor]]] = KINDS
    """All classes that have `model_types`, by these."""

    more = 0
    """Positions of an item besides those of its text and its frames."""
    longest: int
    """Most positions of one item, which `setup` sets."""

    def __init__(self, hf: Any, config: Any, family: Any):
        """`hf`: what `read` gave; `config`: the model's config of transformers; `family`: the section of the model."""
        super().__init__(hf.tokenizer, 0, 0)
        self.hf, self.generation = hf, family.generation
        self._generation_config: Any = None
        self._warned = False
        if unknown := sorted(self.generation.model_dump(exclude_none=True).keys() - {*self.generation_keys}):
            raise ConfigError(
                f"model.generation.{unknown[0]}: a {self.model_types[0]} has no such setting; it has "
                f"{', '.join(self.generation_keys)}."
            )
        self.setup(config)
        self.entries = self.vocabulary

    def use(self, codec: AudioCodec) -> None:
        """Make the codes with this codec. Raises ConfigError where the model has no room for them."""
        check_codec(codec, self.codebooks, self.entries, "model.codec", smaller=True)
        self.codec, self.vocabulary = codec, codec.vocabulary

    # What a model adds

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        return CodecFiles.from_pretrained(name, trust_remote_code=False, **options)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        """Fill what processor and codec know into an untrained model's config, `settings`."""

    @abstractmethod
    def setup(self, config: Any) -> None:
        """Set `codebooks`, `vocabulary` (codes that the model has room for), `longest` and what else is needed."""

    def model_codec(self, pretrained: Any) -> AudioCodec:
        """The codec that came with the model or its processor: a copy of its own, on the CPU."""
        return self.hf.codec()  # type: ignore[no-any-return]

    def fit(self, pretrained: Any, audios: Iterator[np.ndarray]) -> None:
        """Set what an untrained model takes from the training audio, float32 [samples] at the codec's rate."""
        return

    @abstractmethod
    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        """Tokens of a text to speak with its surrounding special tokens."""

    @abstractmethod
    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], int | dict[str, int]]:
        """(inputs of `loss`, what it sums over) of a training batch, padded at the right. Of an item nothing may
        depend on the others."""

    @classmethod
    @abstractmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """The loss of transformers' model on a batch as a sum: its own, times what it is divided by there."""

    @classmethod
    @abstractmethod
    def generate(cls, pretrained: Any, prompt: Prompt, **options: Any) -> np.ndarray:
        """Codes [codebooks, frames] of one utterance. `options` are those of transformers' `generate` that the section
        `generation` sets; chance is that of torch, which was seeded for this utterance."""

    # Model

    def model_of(self, pretrained: Any) -> TTSModel:
        """The model for training and speaking around transformers' own."""
        from stentor.models.tts.modeling import TTSModel

        if self.codec is None:
            self.use(self.model_codec(pretrained))
        self._generation_config = pretrained.generation_config
        return TTSModel(pretrained, self)

    def generation_config(self) -> Any:
        """The GenerationConfig of an export, for transformers' `generate`."""
        return self._generation_config

    # Batches

    def text_ids(self, example: Example) -> list[int]:
        """Tokens of an example's text under the conditions that the task drew."""
        conditions = example.extra["conditions"]
        if not conditions.unconditional:
            return self.prompt_ids(conditions.text, conditions.instruct)
        ids = self.prompt_ids(example.text or "", example.extra.get("instruct"))
        return ids if self.blank is None else [self.blank] * len(ids)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Positions of one item: text and frames."""
        text = len(self.prompt_ids(text_of(cut) or "", field_of(cut, "instruct")))
        return text + self.frames(cut, seconds) + self.more

    def lengths(self, text: int, frames: int) -> list[tuple[str, int, int]]:
        """(what, an item's positions of it, the model's) for each limit that the model has, from the positions of its
        text and of its frames."""
        return [("text and frames", text + frames, self.longest)]

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        if reason := super().drop_reason(example, training):
            return reason
        text = len(self.prompt_ids(example.text or "", example.extra.get("instruct")))
        if (codes := example.extra.get("codes")) is not None:
            frames = codes.shape[1]
        else:
            assert self.codec is not None
            frames = self.codec.frames(num_samples(example))
        for what, positions, most in self.lengths(text, frames + self.more):
            if positions > most:
                return "too_long", (
                    f"{example.id}: {positions} positions of {what}; the model has {most} (in its config): cut the "
                    "record into shorter ones, or leave it out."
                )
        return None

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A training batch. Items whose codes are not the model's, or cannot be made, are listed in `Batch.dropped`.
        What the task draws about prompts and masks is for other models and not used."""
        encoded, dropped = self.encoded(examples)
        if not encoded:
            return self.batch(encoded, dropped, inputs={}, counts={})
        samples = [Sample(self.text_ids(e), codes, copy.deepcopy(e.rng)) for e, codes in encoded]  # type: ignore[arg-type]
        inputs, count = self.inputs(samples)
        counts = {f"codes_{part}": n for part, n in count.items()} if isinstance(count, dict) else {"codes": count}
        lengths = [len(s.ids) + s.codes.shape[1] for s in samples]
        sizes = {"tokens": sum(lengths), "num_positions": len(lengths) * max(lengths)}
        return self.batch(encoded, dropped, inputs=inputs, counts=counts if labels else {}, **sizes)

    # Use

    def utterance(
        self,
        text: str,
        language: str | None = None,
        instruct: str | None = None,
        reference: tuple[Any, str] | None = None,
        frames: int | None = None,
        denoise: bool = False,
    ) -> Prompt:
        """The prompt of an utterance. `reference` is (codes [C, T], their text; empty where they are the beginning of
        this text). `frames` is a plan only: the model ends by itself, at the latest after twice as many and a second.
        """
        if instruct and not self.names_voice and not self._warned:
            self._warned = True
            log.warning("The prompt of a %s cannot include an `instruct`: it is not used.", self.model_types[0])
        assert frames is not None
        prompt = Prompt(self.prompt_ids(text, instruct), 2 * frames + round(self.frame_rate))
        if reference is not None:
            self.clone(prompt, text, instruct, *reference)
        return prompt

    def clone(self, prompt: Prompt, text: str, instruct: str | None, codes: np.ndarray, before: str) -> None:
        """Give the prompt of a text the voice of these codes [C, T] of the text `before`."""
        prompt.codes = codes
        prompt.before = self.prompt_ids(before, instruct) if before.strip() else None

    # Files

    def save(self, folder: Path) -> None:
        """Write the codec into `audio_tokenizer`, and with `save_hf` the files of transformers' processor."""
        assert self.codec is not None
        self.codec.save(folder / INSIDE)
        self.save_hf(folder)

    def save_hf(self, folder: Path) -> None:
        """Write the files of transformers' processor."""
        self.hf.save_pretrained(folder)


class CodecFiles(ProcessorFiles):
    """Files of processors that transformers hides without torchaudio: a tokenizer with a chat template, the `settings`
    of processor_config.json, and where the codec is."""

    NAMES = ("processor_config.json",)

    def __init__(self, tokenizer: Any, files: dict[str, dict[str, Any]]):
        super().__init__(tokenizer, files)
        if not self.chat_template:
            raise ValueError(f"{tokenizer.name_or_path} has no chat template")
        if not files:
            raise ValueError(f"{tokenizer.name_or_path} does not appear to have a file named {self.NAMES[0]}")
        self.settings = files[self.NAMES[0]]

    def codec(self) -> AudioCodec:
        """The codec next to an export, else that which the settings name."""
        inside = Path(self.tokenizer.name_or_path) / INSIDE
        if inside.is_dir():
            return open_codec(str(inside))
        name = self.settings.get("audio_tokenizer", {}).get("audio_tokenizer_name_or_path")
        if name is None:
            raise ConfigError(
                f"{self.tokenizer.name_or_path}: {self.NAMES[0]} names no codec: give its folder or Hub id as "
                "`model.codec: {from: ...}`."
            )
        return open_codec(name)

    def render(self, conversation: list[dict[str, Any]]) -> str:
        """The text of a conversation, as the chat template writes it, up to where audio begins."""
        return str(self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))


def message(role: str, *content: str) -> dict[str, Any]:
    """A turn of a conversation; each of `content` is a text, or "" for audio."""
    return {"role": role, "content": [{"type": "text", "text": c} if c else {"type": "audio"} for c in content]}


def delayed(codes: np.ndarray, delays: Sequence[int], begin: int, pad: int, end: int | None = None) -> Tensor:
    """int64 [frames + 1 (+ 1) + largest delay, codebooks]: codes [codebooks, frames] behind a frame of `begin` (and
    before one of `end`), each codebook as many frames later as its delay says; `begin` before it and `pad` behind."""
    import torch

    frames = torch.as_tensor(codes).long().T
    rows = [frames.new_full((1, len(delays)), begin), frames]
    if end is not None:
        rows.append(frames.new_full((1, len(delays)), end))
    line = torch.cat(rows)
    out = line.new_full((len(line) + max(delays), len(delays)), pad)
    for c, delay in enumerate(delays):
        out[:delay, c] = begin
        out[delay : delay + len(line), c] = line[:, c]
    return out


def filled(ids: list[int], token: int, count: int) -> list[int]:
    """Replace the first occurrence of a token by so many of them."""
    place = ids.index(token)
    return [*ids[:place], *[token] * count, *ids[place + 1 :]]
