"""Examples to batches for CTC models, with the features of the model's own processor."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lhotse.cut import Cut
from torch import Tensor

from stentor.data.batch import Batch, Example
from stentor.models.collate import Contents, encoder_inputs, num_samples, usable_batch
from stentor.models.encoders.geometry import Geometry
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.text.spelling import spelling
from stentor.models.text.tokenizers import ctc_frames


class CTCProcessor(EncoderInputs):
    """`extractor` and `tokenizer` are those of transformers, which an export holds."""

    writes_classes = True

    def __init__(self, shape: Geometry, extractor: Any, tokenizer: Any, blank: int):
        super().__init__(tokenizer, shape)
        self.extractor = extractor
        self.sample_rate = int(extractor.sampling_rate)
        self.eos_id = blank  # texts have no end token
        self.spelling = spelling(tokenizer)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Frames of an item."""
        return self.frames(round(seconds * self.sample_rate))

    def max_new_tokens(self, seconds: float) -> int:
        """At most one class per frame."""
        return self.frames(round(seconds * self.sample_rate))

    def features(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        return encoder_inputs(self.shape, self.extractor, examples)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """`features` and `lengths` (see `features`); with `labels` also `targets` (all clips' classes end to end) and
        `target_lengths` [B].

        Left out of training and listed in `Batch.dropped`: clips that the encoder has no positions for, texts with
        letters that the alphabet lacks, and texts with more labels than the clip has frames. In a batch for generation
        a clip that is too long raises DataError.
        """
        reasons = [self._drop_reason(example, labels) for example in examples]
        return usable_batch(examples, reasons, labels, self.sample_rate, partial(self._contents, examples, labels))

    def _contents(self, examples: Sequence[Example], labels: bool, usable: list[int]) -> Contents:
        examples = [examples[i] for i in usable]
        features, lengths = self.features(examples)
        inputs, counts = {"features": features, "lengths": lengths, **self.chunks(examples, labels)}, {}
        if labels:
            targets = [self.spelling.encode(e.text or "")[0] for e in examples]
            inputs["targets"] = torch.tensor([c for classes in targets for c in classes], dtype=torch.long)
            inputs["target_lengths"] = torch.tensor([len(classes) for classes in targets], dtype=torch.long)
            counts["ctc"] = len(inputs["targets"])
        frames = [self.frames(num_samples(e)) for e in examples]
        return inputs, counts, sum(frames), max(frames) * len(frames)

    def _drop_reason(self, example: Example, labels: bool) -> tuple[str, str] | None:
        """Reason why an item cannot be used, and a sentence."""
        reason = self.too_long(example)
        if reason or not labels:
            return reason
        return self.untrainable(example.id, example.text or "", num_samples(example))

    def untrainable(self, name: str, text: str, samples: int) -> tuple[str, str] | None:
        """(reason, sentence) for a record whose text cannot be learnt from a clip of so many samples.

        `not_in_alphabet`: letters that no class stands for; `empty_text`: only punctuation; `text_too_long`: CTC writes
        at most one class per frame, with a blank between equal ones.
        """
        classes, missing = self.spelling.encode(text)
        if missing:
            letters = " ".join(sorted(set(missing))[:10])
            return "not_in_alphabet", (
                f"{name}: the model's alphabet lacks {letters}; set `model.alphabet: transcripts` to make one from the "
                "training transcripts."
            )
        if not classes:
            return "empty_text", f"{name}: nothing in its text can be written."
        needed, frames = ctc_frames(classes), self.frames(samples)
        if needed > frames:
            return "text_too_long", (
                f"{name}: its text of {len(classes)} signs needs {needed} frames, and {samples / self.sample_rate:.2f} "
                f"s of audio give {frames}: do text and audio belong together?"
            )
        return None

    def ids(self, text: str) -> list[int]:
        """Classes of a text."""
        return self.spelling.encode(text)[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of what `generate` gives: classes without repeats and blanks."""
        return self.spelling.decode(ids)

    spell_classes = decode

    def save(self, folder: Path) -> None:
        """Write the files of transformers' processor: vocab.json or tokenizer.json, preprocessor_config.json, ..."""
        from transformers import ParakeetTokenizer, Wav2Vec2Processor

        folder.mkdir(parents=True, exist_ok=True)
        self.extractor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if isinstance(self.tokenizer, ParakeetTokenizer):
            from transformers import ParakeetProcessor

            ParakeetProcessor(self.extractor, self.tokenizer).save_pretrained(folder)
        else:
            Wav2Vec2Processor(self.extractor, self.tokenizer).save_pretrained(folder)
