"""Base of the classes that define one model of the family: prompt, audio and answers. Examples become batches here; no
torch module is held, so that it can be sent to loader workers."""

from __future__ import annotations

import bisect
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.cut import Cut, field_of, language_of, text_of
from stentor.errors import ConfigError, DataError
from stentor.models.audio_llm.config import NAMES, Names
from stentor.models.collate import Contents, usable_batch
from stentor.models.contracts import Processor
from stentor.models.pretrained.kind import Kinds, TransformersKind
from stentor.text.languages import among, known_code

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.models.audio_llm.modeling import AudioLLMModel

log = logging.getLogger("stentor")

PromptParts = tuple[list[int], list[int]]
"""Prompt tokens before and after the audio."""


KINDS: Kinds[type[AudioLLMProcessor]] = Kinds(package=f"{__package__}.kinds")


class AudioLLMProcessor(TransformersKind, Processor):
    """One model of the family, as facts (class attributes) and hooks around transformers' own processor, `hf`.

    A model is a subclass in a module of `kinds/`, or of a plug-in (`examples/model/audio_flamingo.py`). Most are a
    `stentor.models.audio_llm.chat.ChatProcessor`, whose prompt transformers' chat template makes, and need `positions`
    and `audio_inputs` alone. Hooks are called in this order: `read`, `settle` and `inspect` for configs, `setup`, then
    `ids`, `_prompt_parts`, `answer`, `positions` and `audio_inputs` for batches, `decode` and `named_language` for
    answers, `generation_config` and `save` for exports.
    """

    names: ClassVar[Names] = NAMES
    """Prefixes of tensor names, ours and those of transformers; the first that fits counts."""
    heads: ClassVar[tuple[str, ...]] = ("lm_head",)
    """Parts of transformers' model other than `model`: the output layer, and parts that exports include."""
    lora_targets: ClassVar[tuple[str, ...]] = tuple(f"language_model.*.{x}_proj" for x in "qkvo")
    """Default of `lora.targets`."""
    audio_options: ClassVar[dict[str, Any]] = {}
    """Arguments of transformers' `get_audio_features` besides `audio_inputs`."""
    audio_key: ClassVar[str] = "audio_token_id"
    """Key of the config that holds the id of the placeholder for audio."""
    hints: ClassVar[frozenset[str]] = frozenset()
    """Hints of `Family.decoding_options` that its prompt has a place for."""
    takes_delay: ClassVar[bool] = False
    """Whether it transcribes during the recording, so that `stream` applies to it."""
    translates: ClassVar[bool] = False
    """Whether its prompt can ask for a translation."""
    kinds: ClassVar[Kinds[type[AudioLLMProcessor]]] = KINDS
    """All classes that have `model_types`, by these."""

    sample_rate = 16000
    max_seconds: float
    longest_seconds: ClassVar[float] = 36000.0
    """Longest clip that the model is made for; how many positions it has may allow less."""

    # Ids of tokens, which `setup` sets
    eos_id: int
    pad_id: int
    audio_id: int
    end_ids: set[int]
    """All tokens that end an answer."""
    marker_id: int | None = None
    """The token after which the transcript begins, in models that name the language before it."""
    language_names: Mapping[str, str] = MappingProxyType({})
    """Names that prompts have for languages, by their codes. Empty: others or none."""
    naming = 0
    """Most tokens of an answer that are no text."""

    def __init__(self, hf: Any, config: Any, family: Any):
        """`hf`: what `read` gave; `config`: the model's config of transformers; `family`: the section of the model.
        Raises ConfigError for a delay of a model that has none."""
        self.hf, self.stream = hf, family.stream
        self.max_text_tokens, self.token_rate = family.max_text_tokens, family.token_rate
        if self.stream is not None and not self.takes_delay:
            raise ConfigError("model.stream: this model has no delay: it writes after the end of the audio.")
        self.seconds_limit = f"with `model.max_text_tokens: {self.max_text_tokens}` the model reads at most {{:g}} s"
        self._prompts: dict[tuple[str | None, bool], PromptParts] = {}
        self._warned = False
        self.setup(config)
        self.known_languages = tuple(self.language_names)
        text = config.get_text_config()
        ends = [part.to_dict().get("eos_token_id") for part in (config, text)]
        self.end_ids = {self.eos_id, *(i for e in ends for i in (e if isinstance(e, list) else [e]) if i is not None)}
        self.max_seconds = self._max_seconds(text.to_dict().get("max_position_embeddings"))

    def _max_seconds(self, positions: int | None) -> float:
        """Whole seconds for which a language model of so many positions has room. Raises ConfigError for none."""
        if positions is None:
            return self.longest_seconds
        prompts = (len(self.prompt(language, 0)) - self.positions(0) for language in (None, "en"))
        free = positions - max(prompts) - self.naming - self.max_text_tokens - 1
        seconds = range(int(self.longest_seconds) + 1)
        longest = bisect.bisect_right(seconds, free, key=lambda s: self.positions(s * self.sample_rate)) - 1
        if longest < 1:
            raise ConfigError(
                f"model.max_text_tokens: {self.max_text_tokens} leave no room for audio in the {positions} positions "
                "of the language model."
            )
        return float(longest)

    # What a model adds

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        """Fill what the processor knows into an untrained model's config, `settings`."""
        tokenizer = hf.tokenizer
        ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
        text = {f"{name}_token_id": value for name, value in ids.items() if value is not None}
        settings["text_config"] = {"vocab_size": len(tokenizer), **text, **(settings.get("text_config") or {})}
        settings.setdefault(cls.audio_key, tokenizer.convert_tokens_to_ids(hf.audio_token))

    @abstractmethod
    def setup(self, config: Any) -> None:
        """Set `eos_id`, `pad_id`, `audio_id` and what else the hooks need."""

    @abstractmethod
    def ids(self, text: str) -> list[int]:
        """Tokens of a text, without special tokens."""

    @abstractmethod
    def positions(self, samples: int) -> int:
        """Positions of the language model that the audio of a clip takes."""

    @abstractmethod
    def _prompt_parts(self, language: str | None, context: str | None, translate: bool) -> PromptParts:
        """Prompt tokens before and after the audio; without a language the model finds it out. Raises DataError for a
        language that the prompt cannot name."""

    @abstractmethod
    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Arguments of transformers' `get_audio_features` for the clips of a batch, each independent of the others."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return str(self.hf.tokenizer.decode(list(ids), skip_special_tokens=True))

    def generation_config(self) -> Any:
        """The GenerationConfig of an export, for transformers' `generate`."""
        from transformers import GenerationConfig

        return GenerationConfig(
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.pad_id,
            do_sample=False,
            max_new_tokens=self.max_text_tokens + self.naming,
        )

    def model_of(self, pretrained: Any) -> AudioLLMModel:
        """The model for training and decoding, made of the parts of transformers' model; a subclass where audio reaches
        the language model in another way than at positions of its own."""
        from stentor.models.audio_llm.modeling import AudioLLMModel

        return AudioLLMModel(pretrained, self)

    def learnt(self, example: Example) -> list[int]:
        """Tokens that are learnt of an example behind its prompt; none where it says nothing about them."""
        return self.answer(self.text_ids(example), example.language)

    def answer(self, text: list[int], language: str | None) -> list[int]:
        """Tokens that are learnt behind the prompt, for the tokens of a transcript."""
        return [*text, self.eos_id]

    def prompt_parts(self, language: str | None, context: str | None = None, translate: bool = False) -> PromptParts:
        """`_prompt_parts`, remembered where there is no context."""
        if context and "context" not in self.hints:
            if not self._warned:
                log.warning("The prompt of a %s cannot include `context`: it is not used.", self.model_types[0])
            context, self._warned = None, True
        if context:
            return self._prompt_parts(language, context, translate)
        key = (language, translate)
        if key not in self._prompts:
            self._prompts[key] = self._prompt_parts(language, None, translate)
        return self._prompts[key]

    def prompt(
        self, language: str | None, samples: int, context: str | None = None, translate: bool = False
    ) -> list[int]:
        """Prompt tokens of a clip, with the placeholder at each audio position."""
        before, after = self.prompt_parts(language, context, translate)
        return [*before, *self.span(samples), *after]

    def span(self, samples: int) -> list[int]:
        """Prompt tokens of the audio: the placeholder at each of its positions."""
        return [self.audio_id] * self.positions(samples)

    def prompt_of(self, example: Example, labels: bool) -> list[int]:
        """`prompt` of an example, in training (`labels`), where a model may have more to answer, or for generation."""
        translate = bool(example.extra.get("translate"))
        return self.prompt(example.language, num_samples(example), example.context, translate)

    def text_ids(self, example: Example) -> list[int]:
        """Tokens of what an example's answer says."""
        return self.ids(example.text or "")

    # Lengths, from metadata alone

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Positions of the language model for one item: prompt, audio, transcript and end token."""
        example = self.planned(cut, seconds)
        return len(self.prompt_of(example, labels=True)) + len(self.learnt(example))

    def planned(self, cut: Cut, seconds: float) -> Example:
        """The example that a record will be, without its audio."""
        # A language that the prompt cannot name is left out, and counted, where its batch is made.
        language = None if self._unknown(language_of(cut), cut.id) else language_of(cut)
        extra = {"samples": round(seconds * self.sample_rate)}
        return Example(cut.id, text=text_of(cut), language=language, context=field_of(cut, "context"), extra=extra)

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        return min(int(seconds * self.token_rate) + 16, self.max_text_tokens) + self.naming

    def _unknown(self, language: str | None, name: str) -> tuple[str, str] | None:
        """(reason, sentence) where the prompt cannot name the language of the item of this name."""
        try:
            self.prompt_parts(language)
        except DataError as error:
            return "unknown_language", f"{name}: {error}"
        return None

    # Batches

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        if reason := self._unknown(example.language, example.id) or super().refusal(example, labels):
            return reason
        tokens = len(self.text_ids(example)) if labels else 0
        if tokens > self.max_text_tokens:
            return "text_too_long", (
                f"{example.id}: the transcript has {tokens} tokens; `model.max_text_tokens` is {self.max_text_tokens}: "
                "raise it, or cut the record into shorter ones."
            )
        return None

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`, right padding) or for generation (left padding).

        Inputs, with B items and N audio positions, besides `audio_inputs`:

        * `input_ids` [B, L]; `audio_index` [N], positions in the flattened `input_ids`;
        * training: `label_index` [T], positions in the flattened sequence that predict `targets` [T];
        * generation: `attention_mask` and `position_ids` [B, L].

        Raises ConfigError for a translation that the prompt cannot ask for.
        """
        if not self.translates and any(e.extra.get("translate") for e in examples):
            raise ConfigError(
                f"A {self.model_types[0]} model transcribes and does not translate: leave out `translate`."
            )
        return usable_batch(self, examples, labels, self._contents)

    def _contents(self, examples: Sequence[Example], labels: bool) -> Contents:
        import torch

        prompts = [self.prompt_of(e, labels) for e in examples]
        answers = [self.learnt(e) if labels else [] for e in examples]
        lengths = [len(p) + len(a) for p, a in zip(prompts, answers)]
        width = max(lengths)
        ids = torch.full((len(examples), width), self.pad_id)
        label_index = []
        for i, (prompt, answer) in enumerate(zip(prompts, answers)):
            start = 0 if labels else width - lengths[i]
            ids[i, start : start + lengths[i]] = torch.tensor(prompt + answer)
            # The position before a token predicts it: the first one learnt is predicted at the end of the prompt.
            first = i * width + len(prompt) - 1
            label_index.append(torch.arange(first, first + len(answer)))
        inputs = {
            **self.audio_inputs(examples),
            "input_ids": ids,
            "audio_index": (ids.flatten() == self.audio_id).nonzero()[:, 0],
        }
        counts = {}
        if labels:
            inputs["label_index"] = torch.cat(label_index)
            inputs["targets"] = torch.tensor([token for answer in answers for token in answer])
            counts["text"] = len(inputs["targets"])
        else:
            begins = width - torch.tensor(lengths)[:, None]
            inputs["attention_mask"] = (torch.arange(width) >= begins).long()
            inputs["position_ids"] = (torch.arange(width) - begins).clamp(min=0)
        return inputs, counts, sum(lengths), ids.numel()

    def name_of(self, language: str | None) -> str | None:
        """The name of `language_names` for a language, None for none. Raises DataError for one that has none."""
        known = {name: name for name in self.language_names.values()} | dict(self.language_names)
        name = known.get(among(language, tuple(known)) or "")
        if name is None and (language or "").strip():
            there = ", ".join(sorted(set(map(known_code, self.language_names))))
            raise DataError(f"This model knows no {language!r}, but {there}. Leave the language out to detect it.")
        return name

    # Files

    def save(self, folder: Path) -> None:
        """Write the files of transformers' processor."""
        folder.mkdir(parents=True, exist_ok=True)
        self.hf.save_pretrained(folder)
