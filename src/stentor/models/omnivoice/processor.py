"""Processor of OmniVoice: examples to batches. Holds no part of the model, so that loader workers can have it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lhotse.cut import Cut

from stentor.audio.synth import phonemes
from stentor.data.batch import Batch, Example
from stentor.data.conditions import Conditions
from stentor.data.cut import field_of, language_of, text_of
from stentor.models.codec_processor import CodecProcessor
from stentor.models.codecs.base import INSIDE, AudioCodec
from stentor.models.omnivoice.generate import Prompt
from stentor.models.omnivoice.text import ABSENT, NONVERBAL, cleaned, spoken, style, style_language
from stentor.models.packing.flex import BLOCK, tables
from stentor.models.text.tokenizers import padding_id

IGNORED = -100
STYLES = 10_000
"""Languages and instructs whose lengths are remembered."""


@dataclass
class Sample:
    """Input ids and labels of one item."""

    ids: np.ndarray
    """int64 [C, L]: text tokens, repeated in every row, then codes, MASK where they are hidden."""
    labels: np.ndarray
    """int64 [C, L]: the code of each hidden cell, -100 elsewhere."""
    text: int
    """Positions of style and text; the frames follow."""

    @property
    def length(self) -> int:
        return self.ids.shape[1]


def training_sample(
    conditions: Conditions, codes: np.ndarray, text: list[int], mask_id: int, rng: np.random.Generator
) -> Sample:
    """The sample of codes [C, T] behind `text`, the ids of style and text: none where it is unconditional.

    Each cell (codebook, frame) behind the prompt is hidden by itself with the probability `conditions.mask_ratio`
    (`rng`), and only hidden cells are learned.
    """
    books, frames = codes.shape
    prompt = conditions.prompt_frames(frames)
    target = codes[:, prompt:].astype(np.int64)
    hidden = rng.random(target.shape) < conditions.mask_ratio
    before = len(text) + prompt
    ids = np.empty((books, len(text) + frames), np.int64)
    ids[:, : len(text)] = text
    ids[:, len(text) : before] = codes[:, :prompt]
    ids[:, before:] = np.where(hidden, mask_id, target)
    labels = np.full_like(ids, IGNORED)
    labels[:, before:] = np.where(hidden, target, IGNORED)
    return Sample(ids, labels, len(text))


class OmniVoiceProcessor(CodecProcessor):
    """Texts and codes (or audio, which `codec` encodes) to ids, masks and labels."""

    tags = NONVERBAL

    def __init__(self, tokenizer: Any, codebooks: int, vocabulary: int, mask_id: int, codec: AudioCodec | None = None):
        """`tokenizer`: a fast transformers tokenizer with OmniVoice's special tokens; `vocabulary`: entries of a
        codebook without MASK."""
        super().__init__(tokenizer, codebooks, vocabulary, codec)
        self.mask_id = mask_id
        self.instruct_from: str | None = None  # the field that describes the voice of records without an `instruct`
        self.phonemes: str | None = None  # the built-in voice by whose rules texts become phonemes; None: letters
        self.pad_id = padding_id(tokenizer)
        self.flex = False  # packed batches carry the block tables of flex_attention
        self._costs: dict[str, int] = {}

    # Text

    def text_ids(
        self, text: str, language: str | None = None, instruct: str | None = None, denoise: bool = False
    ) -> list[int]:
        """Style and text as the model reads them, in training and in use."""
        language, instruct = (value and self.plain(value) for value in (language, instruct))
        styled = style(language, instruct, denoise)
        return self.template_ids(styled) + self.template_ids(spoken(self.plain(self.read(text))))

    def read(self, text: str) -> str:
        """The text as it is tokenised: cleaned up, and as phonemes where they are asked for."""
        return phonemes(cleaned(text), self.phonemes) if self.phonemes else cleaned(text)

    def template_ids(self, string: str) -> list[int]:
        """See `CodecProcessor.template_ids`; tags of sounds are tokenised by themselves."""
        ids_of = super().template_ids
        return [i for part in NONVERBAL.split(string) if part for i in ids_of(part)]

    def knows(self, text: str) -> bool:
        """Whether the tokenizer has a token for any character of a text that is no white space: for any sound."""
        return bool(text.strip()) if self.phonemes else super().knows(text)

    # Lengths, from metadata alone

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Most positions that one item takes, whatever parts of its style are dropped: style, text and frames."""
        instruct = field_of(cut, "instruct") or (field_of(cut, self.instruct_from) if self.instruct_from else None)
        denoise = field_of(cut, "clean_start_token_idx") is not None
        styled = self._style_cost(style_language(language_of(cut))) + self._style_cost(instruct) + denoise
        text = len(self.ids(self.read(text_of(cut) or "")))
        if pinyin := field_of(cut, "text_pinyin"):
            text = max(text, len(self.ids(self.read(pinyin))))
        return styled + 2 + text + self.frames(cut, seconds)

    def _style_cost(self, value: Any) -> int:
        """Most positions of one part of the style, whether dropped or not; cached, as many records share them."""
        key = ABSENT if value in (None, "") else str(value)
        if key not in self._costs:
            if len(self._costs) >= STYLES:
                self._costs.clear()
            self._costs[key] = 2 + max(len(self.ids(key)), len(self.ids(ABSENT)))
        return self._costs[key]

    # Batches

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch with the conditions of `extra["conditions"]`, its cells masked by `Example.rng`. Items whose codes
        are not the model's, or cannot be made, are listed in `Batch.dropped`."""
        encoded, dropped = self.encoded(examples)
        samples = [self.sample(example, codes) for example, codes in encoded]
        if not samples:
            return self.batch(encoded, dropped, inputs={}, counts={})
        inputs = self.packed(samples) if packed else self.padded(samples)
        counts = {f"codes_{c}": len(inputs[f"targets_{c}"]) for c in range(self.codebooks)} if labels else {}
        tokens, positions = sum(s.length for s in samples), inputs["audio_mask"].numel()
        return self.batch(encoded, dropped, inputs=inputs, counts=counts, tokens=tokens, num_positions=positions)

    def sample(self, example: Example, codes: np.ndarray) -> Sample:
        """The sample of one example with its codes [C, T]."""
        conditions = example.extra["conditions"]
        text: list[int] = []
        if not conditions.unconditional:
            text = self.text_ids(conditions.text, conditions.language, conditions.instruct, conditions.denoise)
        assert example.rng is not None
        # A copy: the same example gives the same sample each time.
        return training_sample(conditions, codes, text, self.mask_id, copy.deepcopy(example.rng))

    def padded(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Inputs of the model's forward, samples padded at the right to the longest."""
        width = max(s.length for s in samples)
        starts = [i * width for i in range(len(samples))]
        inputs = self._inputs(samples, starts, len(samples), width)
        if any(s.length < width for s in samples):
            inputs["lengths"] = torch.tensor([s.length for s in samples])
        return inputs

    def packed_length(self, total: int) -> int:
        return rounded(total) if self.flex else total

    def packed(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Inputs of the model's forward, samples end to end in one row."""
        lengths = [s.length for s in samples]
        total = sum(lengths)
        width = self.packed_length(total)
        if width > total:
            lengths.append(width - total)
        inputs = self._inputs(samples, np.cumsum([0, *lengths])[: len(samples)].tolist(), 1, width)
        inputs["position_ids"] = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None]
        if self.flex:
            return inputs | tables(lengths, causal=False)
        documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        return inputs | {"documents": torch.from_numpy(documents)}

    def _inputs(
        self, samples: Sequence[Sample], starts: Sequence[int], rows: int, width: int
    ) -> dict[str, torch.Tensor]:
        """Inputs of both layouts; `starts` are the samples' positions in the flattened [rows * width]."""
        ids = np.full((self.codebooks, rows * width), self.pad_id)
        labels = np.full((self.codebooks, rows * width), IGNORED)
        audio = np.zeros(rows * width, bool)
        for sample, start in zip(samples, starts, strict=True):
            end = start + sample.length
            ids[:, start:end], labels[:, start:end] = sample.ids, sample.labels
            audio[start + sample.text : end] = True
        positions = [np.flatnonzero(row != IGNORED) for row in labels]
        inputs = {
            "input_ids": torch.from_numpy(ids.reshape(-1, rows, width).swapaxes(0, 1).copy()),
            "audio_mask": torch.from_numpy(audio).view(rows, width),
            "rows": torch.from_numpy(np.concatenate(positions)),
        }
        return inputs | {f"targets_{c}": torch.from_numpy(labels[c, p]) for c, p in enumerate(positions)}

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
        """The prompt of an utterance: style, the reference's text and the text in one, the reference's codes, as in a
        training sample with a prompt.

        `reference` is (codes [C, T], their text). `denoise` asks for clean speech after a noisy reference and is
        nothing without one. `frames`, the length of the speech, must be at least 1.
        """
        if frames is None or frames < 1:
            raise ValueError(f"an utterance of {frames} frames")
        codes = torch.zeros(self.codebooks, 0, dtype=torch.long)
        if reference is not None:
            codes = torch.as_tensor(reference[0]).long()
            text = f"{reference[1].strip()} {text.strip()}"
        ids = self.text_ids(text, language, instruct, denoise and reference is not None)
        rows = torch.tensor(ids).expand(self.codebooks, -1)
        return Prompt(torch.cat([rows, codes], 1), torch.arange(len(ids) + codes.shape[1]) >= len(ids), frames)

    # Files

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, and the codec into `audio_tokenizer`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        if self.codec is not None:
            self.codec.save(folder / INSIDE)


def rounded(total: int) -> int:
    """A length of whole blocks for so many positions, one of about sixteen between two powers of two: kernels that are
    compiled for a length then see few of them."""
    step = max(BLOCK, 1 << max(total.bit_length() - 5, 0))
    return -(-total // step) * step
