"""Examples to batches: prompts with audio positions in them, transcripts behind. Holds no torch module, so that it can
be sent to loader workers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lhotse.cut import Cut
from torch import Tensor

from stentor.data.batch import Batch, Example
from stentor.data.cut import field_of, language_of, text_of
from stentor.errors import DataError
from stentor.models.collate import num_samples, split_usable

log = logging.getLogger("stentor")

RATE = 16000


class AudioLLMProcessor(ABC):
    """Features, prompts and labels around transformers' own processor, `hf`."""

    sample_rate = RATE
    ctc = None
    max_seconds: float | None = None

    def __init__(self, hf: Any, max_text_tokens: int, token_rate: float):
        self.hf = hf
        self.max_text_tokens, self.token_rate = max_text_tokens, token_rate

    # Ids of special tokens, which subclasses set
    eos_id: int
    pad_id: int
    audio_id: int

    @abstractmethod
    def ids(self, text: str) -> list[int]:
        """Tokens of a text, without special tokens."""

    @abstractmethod
    def positions(self, samples: int) -> int:
        """Positions of the language model that the audio of a clip takes."""

    @abstractmethod
    def around(self, language: str | None, context: str | None = None) -> tuple[list[int], list[int]]:
        """Prompt tokens before and after the audio; without a language the model finds it out. Raises DataError for a
        language that the prompt cannot name."""

    @abstractmethod
    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """What the model's `audio` takes, for the clips of a batch."""

    @abstractmethod
    def generation_config(self) -> Any:
        """What transformers' `generate` should do with an export: a GenerationConfig."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids."""

    def answer(self, text: list[int], language: str | None) -> list[int]:
        """Tokens that are learnt behind the prompt of `question`, for the tokens of a transcript."""
        return [*text, self.eos_id]

    def question(self, language: str | None, context: str | None, labels: bool) -> tuple[list[int], list[int]]:
        """`around` in training (`labels`), where a family may leave more for the model to answer, and in generation."""
        return self.around(language, context)

    def prompt(self, language: str | None, samples: int, context: str | None = None, labels: bool = False) -> list[int]:
        """Prompt tokens of a clip, with the placeholder at each audio position."""
        before, after = self.question(language, context, labels)
        return [*before, *[self.audio_id] * self.positions(samples), *after]

    # Lengths, from metadata alone

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Positions of the language model for one item: prompt, audio, transcript and end token."""
        language, context = language_of(cut), field_of(cut, "context")
        try:
            self.around(language)
        except DataError:  # left out, and counted, where its batch is made
            language = None
        before, after = self.question(language, context, labels=True)
        text = self.answer(self.ids(text_of(cut) or ""), language)
        return len(before) + self.positions(round(seconds * RATE)) + len(after) + len(text)

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        return min(int(seconds * self.token_rate) + 16, self.max_text_tokens)

    # Batches

    def _drop_reason(self, example: Example, tokens: int) -> tuple[str, str] | None:
        """(reason, sentence) for an example, with so many tokens of text, that cannot be used."""
        seconds = num_samples(example) / RATE
        try:
            self.around(example.language)
        except DataError as error:
            return "unknown_language", f"{example.id}: {error}"
        if self.max_seconds is not None and seconds > self.max_seconds:
            return "too_long", f"{example.id}: {seconds:.1f} s; the model reads {self.max_seconds:g} s."
        if tokens > self.max_text_tokens:
            return "text_too_long", (
                f"{example.id}: the transcript has {tokens} tokens; `model.max_text_tokens` is {self.max_text_tokens}."
            )
        return None

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`, right padding) or for generation (left padding).

        Clips and transcripts that are too long and unknown languages are left out and listed in `Batch.dropped`; in a
        batch for generation they raise DataError. Inputs, with B items and N audio positions, besides `audio_inputs`:

        * `input_ids` [B, L]; `audio_index` [N], positions in the flattened `input_ids`;
        * training: `label_index` [T], positions in the flattened sequence that predict `targets` [T];
        * generation: `attention_mask` and `position_ids` [B, L].
        """
        texts = [self.ids(e.text or "") if labels else [] for e in examples]
        reasons = [self._drop_reason(e, len(text)) for e, text in zip(examples, texts)]
        usable, dropped = split_usable(examples, reasons, labels)
        if not usable:
            return Batch(inputs={}, counts={}, ids=[], dropped=dropped)
        examples, texts = [examples[i] for i in usable], [texts[i] for i in usable]
        prompts = [self.prompt(e.language, num_samples(e), e.context, labels) for e in examples]
        answers = [self.answer(text, e.language) if labels else [] for e, text in zip(examples, texts)]
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
        return Batch(
            inputs=inputs,
            counts=counts,
            ids=[e.id for e in examples],
            seconds=sum(num_samples(e) for e in examples) / RATE,
            tokens=sum(lengths),
            num_positions=ids.numel(),
            dropped=dropped,
        )

    # Files

    def save(self, folder: Path) -> None:
        """Write the files of transformers' processor."""
        folder.mkdir(parents=True, exist_ok=True)
        self.hf.save_pretrained(folder)
