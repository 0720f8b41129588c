"""Examples to batches for the speech LLM. Holds no torch module, so that it can be sent to loader workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lhotse.cut import Cut
from torch import Tensor

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.cut import field_of, language_of, text_of
from stentor.data.trained_speech import TrainedSpeech
from stentor.models.collate import Contents, usable_batch
from stentor.models.encoders.geometry import HOP, SAMPLE_RATE, Geometry
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.pretrained.weights import read_json, write_json
from stentor.models.speech_llm.config import PromptSection
from stentor.models.text.control_tokens import as_text, template_ids, text_offsets
from stentor.models.text.tokenizers import padding_id
from stentor.text.languages import known_code

FILE = "preprocessor_config.json"


@dataclass
class TokenSequence:
    """One item as the language model reads it: `before`, audio, `after`, then `text` which it learns."""

    before: list[int]
    audio: int
    after: list[int]
    text: list[int]

    @property
    def prompt(self) -> int:
        return len(self.before) + self.audio + len(self.after)

    def __len__(self) -> int:
        return self.prompt + len(self.text)


class SpeechLLMProcessor(EncoderInputs):
    """Features, prompt and labels of the speech LLM."""

    def __init__(
        self,
        tokenizer: Any,
        shape: Geometry,
        factor: int,
        prompt: PromptSection,
        ctc: str | list[str] | None = None,
        tokenizer_type: str | None = None,
        token_rate: float | None = None,
    ):
        """`tokenizer`: a fast transformers tokenizer; `tokenizer_type`: `characters` or `bpe` when it was made from
        the data; `factor`: encoder frames per position; `ctc`: the characters of the CTC head."""
        super().__init__(tokenizer, shape, ctc)
        self.factor = factor
        self.prompt = prompt
        self.tokenizer_type = tokenizer_type
        self.token_rate = token_rate or (25.0 if tokenizer_type == "characters" else 6.0)
        self.eos_id = int(tokenizer.eos_token_id)
        self.pad_id = padding_id(tokenizer)
        self.flex = False  # packed batches carry the block tables of flex_attention
        self.longest: int | None = None  # positions of the language model
        self.trained_speech: TrainedSpeech = TrainedSpeech()
        # Tokenizers made here mark the start of the text with <s>; a pretrained model gets a line break, and its own
        # start token where its tokenizer puts one.
        self._start = [] if tokenizer_type else tokenizer("")["input_ids"][:1]
        if self._start == [self.eos_id] and tokenizer.bos_token_id != self.eos_id:
            self._start = []
        self._after = [tokenizer.bos_token_id] if tokenizer_type else template_ids(tokenizer, prompt.audio_end)

    # Lengths, from metadata alone

    def positions(self, samples: int) -> int:
        """TokenSequence of the language model that a clip of so many samples takes."""
        return -(-self.frames(samples) // self.factor)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """TokenSequence of the language model for one item: prompt, audio, transcript and end token."""
        context = field_of(cut, "context") if self.prompt.context else None
        prompt = self._start + template_ids(self.tokenizer, self.prefix(language_of(cut), context))
        text = self.ids(text_of(cut) or "")
        return len(prompt) + self.positions(round(seconds * SAMPLE_RATE)) + len(self._after) + len(text) + 1

    def packed_length(self, total: int) -> int:
        from stentor.models.packing.flex import BLOCK

        return total + (-total % BLOCK if self.flex else 0)

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        return int(seconds * self.token_rate) + 16

    # Prompt

    def prefix(self, language: str | None, context: str | None) -> str:
        """The words before the audio."""
        parts = [self.prompt.instruction] if self.prompt.instruction else []
        if language and self.prompt.language:
            parts.append(f"Language: {known_code(language)}.")
        if context and self.prompt.context:
            parts.append(f"Context: {as_text(self.tokenizer, context)}")
        start = self.prompt.audio_start
        return " ".join(parts) + start if parts or start.strip() else ""

    def prompt_ids(self) -> dict[str, list[int]]:
        """Token ids at the `start` of a sequence, before the words of the prompt, and `after` the audio."""
        return {"start": list(self._start), "after": list(self._after)}

    def sequence(self, example: Example, samples: int, labels: bool) -> TokenSequence:
        """The ids around the audio of one example."""
        language, context = example.language, example.context
        if labels and example.rng is not None and self.prompt.dropout > 0:
            drop = example.rng.random(2) < self.prompt.dropout
            language, context = None if drop[0] else language, None if drop[1] else context
        before = self._start + template_ids(self.tokenizer, self.prefix(language, context))
        text = [*self.ids(example.text or ""), self.eos_id] if labels else []
        return TokenSequence(before, self.positions(samples), self._after, text)

    # Batches

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        if unknown := self.unknown_letters(example.text or "") if training else "":
            return "not_in_alphabet", (
                f"{example.id}: the tokenizer cannot write {unknown}; use a language model whose tokenizer can, or a "
                "`tokenizer` made from the transcripts."
            )
        return super().drop_reason(example, training)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        reason = super().refusal(example, labels)
        if reason or self.longest is None:
            return reason
        audio, text = self.positions(num_samples(example)), (example.text or "") if labels else ""
        # A token is at least a byte: most need not be tokenised.
        written = len(f"{self.prefix(example.language, example.context)}{text}".encode()) + audio
        if written + len(self._start) + len(self._after) + 1 <= self.longest:
            return None
        total = len(self.sequence(replace(example, rng=None), num_samples(example), labels))
        if total <= self.longest:
            return None
        return "text_too_long" if audio <= self.longest // 2 else "too_long", (
            f"{example.id}: prompt, audio and text take {total} positions ({audio} of audio); the language model has "
            f"{self.longest} (its `max_position_embeddings`). Cut the record into shorter ones, shorten its `context`, "
            "or leave it out."
        )

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`, right padding or packed) or for generation (left padding)."""
        return usable_batch(self, examples, labels, partial(self._contents, packed=packed))

    def _contents(self, examples: Sequence[Example], labels: bool, packed: bool = False) -> Contents:
        features, lengths = self.features(examples)
        sequences = [self.sequence(e, num_samples(e), labels) for e in examples]
        total = sum(map(len, sequences))
        rows, width = (1, total) if packed else (len(sequences), max(map(len, sequences)))
        if packed:
            width = self.packed_length(total)
            starts = np.cumsum([0, *(len(s) for s in sequences[:-1])]).tolist()
        else:
            starts = [i * width + (0 if labels else width - len(s)) for i, s in enumerate(sequences)]
        inputs = {"features": features, "feature_lengths": lengths, **self.chunks(examples, labels)}
        inputs |= self._positions(sequences, starts, rows, width)
        if labels and not packed:
            del inputs["position_ids"]  # they count up from 0 under right padding, as is the default
        if packed and self.flex:
            from stentor.models.packing import flex

            inputs |= flex.tables([len(s) for s in sequences] + [width - total] * (width > total))
        counts = {}
        if labels:
            counts = self._labels(examples, sequences, starts, inputs)
        else:
            starts_in_row = torch.tensor([width - len(s) for s in sequences])
            inputs["attention_mask"] = (torch.arange(width) >= starts_in_row[:, None]).long()
        return inputs, counts, total, rows * width

    def _positions(
        self, sequences: Sequence[TokenSequence], starts: Sequence[int], rows: int, width: int
    ) -> dict[str, Tensor]:
        """`input_ids` and `position_ids` [rows, width] of sequences that begin at `starts` of the flattened batch, and
        `audio_index` and `audio_rows` [N], see `SpeechLLMModel.embed`."""
        ids = np.full(rows * width, self.pad_id)
        position_ids = np.zeros(rows * width, np.int64)
        audio_index, audio_rows = [], []
        per_clip = max(s.audio for s in sequences)  # positions per clip in the projector's output
        for i, (s, start) in enumerate(zip(sequences, starts)):
            audio = start + len(s.before)
            ids[start:audio] = s.before
            ids[audio + s.audio : start + len(s)] = s.after + s.text
            position_ids[start : start + len(s)] = np.arange(len(s))
            audio_index.append(np.arange(audio, audio + s.audio))
            audio_rows.append(np.arange(s.audio) + i * per_clip)
        return {
            "input_ids": torch.from_numpy(ids).view(rows, width),
            "audio_index": torch.from_numpy(np.concatenate(audio_index)),
            "audio_rows": torch.from_numpy(np.concatenate(audio_rows)),
            "position_ids": torch.from_numpy(position_ids).view(rows, width),
        }

    def _labels(
        self,
        examples: Sequence[Example],
        sequences: Sequence[TokenSequence],
        starts: Sequence[int],
        inputs: dict[str, Tensor],
    ) -> dict[str, int]:
        """Add the targets of all loss terms to `inputs`; returns their counts."""
        texts = [start + s.prompt for start, s in zip(starts, sequences)]
        # The position before a token predicts it: the first text token is predicted at the end of the prompt.
        label_index = [np.arange(text - 1, text - 1 + len(s.text)) for text, s in zip(texts, sequences)]
        inputs["label_index"] = torch.from_numpy(np.concatenate(label_index))
        inputs["targets"] = torch.tensor([token for s in sequences for token in s.text])
        counts = {"text": len(inputs["targets"])}
        if self.ctc is not None:
            counts["ctc"] = self.ctc_targets(examples, inputs["feature_lengths"], inputs)
        if all("words" in e.extra for e in examples):
            counts["alignment"] = self._words(examples, texts, [len(s.text) for s in sequences], inputs)
        return counts

    def _words(
        self, examples: Sequence[Example], first: list[int], tokens: list[int], inputs: dict[str, Tensor]
    ) -> int:
        """Add what the aligner wants, see `WordAligner.forward`. `first` are the positions of the texts' first tokens,
        `tokens` their numbers, end token included.

        `extra["words"]` of an example are dicts with `span`, the characters [start, end) of the text, and where they
        are known `start` and `end` in seconds; unknown times are NaN. Returns the number of words with times.
        """
        records = [e.extra["words"] for e in examples]
        rows, width = len(examples), max(map(len, records))
        text_rows = torch.full((rows, max(tokens)), -1)
        word_tokens = torch.full((rows, width, 2), -1)
        word_parts, word_times = torch.zeros(rows, width, 2), torch.full((rows, width, 2), torch.nan)
        for i, (example, words) in enumerate(zip(examples, records)):
            text_rows[i, : tokens[i]] = torch.arange(first[i], first[i] + tokens[i])
            if not words:
                continue
            ends, parts = self.word_tokens(example.text or "", [w["span"] for w in words])
            word_tokens[i, : len(words)] = torch.tensor(ends)
            word_parts[i, : len(words)] = torch.tensor(parts)
            for k, word in enumerate(words):
                if "start" in word:
                    word_times[i, k] = torch.tensor([word["start"], word["end"]])
        inputs |= {"text_rows": text_rows, "word_tokens": word_tokens, "word_parts": word_parts}
        inputs["word_times"] = word_times
        return int(word_times.isfinite().all(-1).sum())

    def word_tokens(
        self, text: str, spans: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[float, float]]]:
        """The (first, last) token of each span of characters [start, end), and which parts of these two it has.

        Exact for any tokenizer, as the tokenizer itself says which characters of the text a token stands for. The parts
        are the share of the first token before the span and the share of the last token up to its end: they tell words
        apart that lie in one token. A span without any token (characters that the tokenizer leaves out) gets the next
        one, or the last.
        """
        offsets = text_offsets(self.tokenizer, text)
        if not offsets:
            return [(0, 0)] * len(spans), [(0.0, 1.0)] * len(spans)  # the end token
        ends, parts = [], []
        token = 0
        for start, end in spans:
            while token < len(offsets) - 1 and offsets[token][1] <= start:
                token += 1
            last = token
            while last < len(offsets) - 1 and offsets[last + 1][0] < end:
                last += 1
            (a, b), (c, d) = offsets[token], offsets[last]
            before = (start - a) / (b - a) if b > a and text[a:start].strip() else 0.0
            upto = (end - c) / (d - c) if d > c and text[end:d].strip() else 1.0
            ends.append((token, last))
            parts.append((max(before, 0.0), min(max(upto, 0.0), 1.0)))
        return ends, parts

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()

    # Files

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and preprocessor_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        facts = {
            "processor_class": "SpeechLLMProcessor",
            "sampling_rate": SAMPLE_RATE,
            "hop_length": HOP,
            "encoder": asdict(self.shape),
            "factor": self.factor,
            "prompt": self.prompt.model_dump(),
            "ctc_alphabet": self.ctc.units if self.ctc else None,
            "made": self.tokenizer_type,
            "token_rate": self.token_rate,
            "pad_id": self.pad_id,
            "trained_speech": asdict(self.trained_speech),
        }
        write_json(folder / FILE, facts)

    @classmethod
    def load(cls, folder: Path) -> SpeechLLMProcessor:
        """The processor of an export folder."""
        from transformers import PreTrainedTokenizerFast

        facts = read_json(folder / FILE)
        processor = cls(
            PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False),
            Geometry.of_export(facts["encoder"]),
            facts["factor"],
            PromptSection(**facts["prompt"]),
            facts["ctc_alphabet"],
            facts["made"],
            facts["token_rate"],
        )
        processor.trained_speech = TrainedSpeech.of_export(facts)
        return processor
