"""Examples to batches for CTC models, with the features of the model's own processor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.data.batch import Batch, Example, num_samples
from stentor.models.collate import Contents, encoder_inputs, usable_batch
from stentor.models.encoders.geometry import Geometry
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.text.spelling import Accents, spelling, written
from stentor.models.text.tokenizers import too_many_classes


class CTCProcessor(EncoderInputs):
    """`extractor` and `tokenizer` are those of transformers, which an export holds."""

    writes_classes = True

    def __init__(self, shape: Geometry, extractor: Any, tokenizer: Any, blank: int, accents: Accents | None = None):
        super().__init__(tokenizer, shape)
        self.extractor = extractor
        self.sample_rate = int(extractor.sampling_rate)
        self.eos_id = blank  # texts have no end token
        self.spelling = spelling(tokenizer, accents)

    def max_new_tokens(self, seconds: float) -> int:
        """At most one class per frame."""
        return self.frames(round(seconds * self.sample_rate))

    def features(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        return encoder_inputs(self.shape, self.extractor, examples)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """`features` and `lengths` (see `features`); with `labels` also `targets` (all clips' classes end to end) and
        `target_lengths` [B].
        """
        return usable_batch(self, examples, labels, self._contents)

    def _contents(self, examples: Sequence[Example], labels: bool) -> Contents:
        features, lengths = self.features(examples)
        inputs, counts = {"features": features, "lengths": lengths, **self.chunks(examples, labels)}, {}
        if labels:
            targets = [self.spelling.encode(e.text or "")[0] for e in examples]
            inputs["targets"] = torch.tensor([c for classes in targets for c in classes], dtype=torch.long)
            inputs["target_lengths"] = torch.tensor([len(classes) for classes in targets], dtype=torch.long)
            counts["ctc"] = len(inputs["targets"])
        frames = [self.frames(num_samples(e)) for e in examples]
        return inputs, counts, sum(frames), max(frames) * len(frames)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        """Besides clips that are too long `not_in_alphabet`: letters that no class stands for; `empty_text`: only
        punctuation; `text_too_long`: CTC writes at most one class per frame, with a blank between equal ones."""
        reason = super().refusal(example, labels)
        if reason or not labels:
            return reason
        classes, missing = self.spelling.encode(example.text or "")
        if missing:
            letters = " ".join(sorted(set(missing))[:10])
            advice = "set `model.alphabet: transcripts` in a new run to make one from the training transcripts"
            if not spelling(self.tokenizer, "strip").encode(missing)[1]:
                advice += ", or `model.accents: strip` to train without accents"
            return "not_in_alphabet", f"{example.id}: the model's alphabet lacks {letters}; {advice}."
        if not classes:
            return "empty_text", f"{example.id}: nothing in its text can be written."
        return too_many_classes(example, classes, self.frames(num_samples(example)), self.sample_rate)

    def ids(self, text: str) -> list[int]:
        """Classes of a text."""
        return self.spelling.encode(text)[0]

    def written(self, letter: str) -> str:
        return written(self.spelling, letter)

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
