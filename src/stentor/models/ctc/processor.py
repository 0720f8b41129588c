"""From examples to the tensors that a CTC model reads, with the features of the model's own processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stentor.data.batch import Batch
from stentor.errors import DataError
from stentor.models.ctc.spelling import spelling
from stentor.models.speech_llm.encoders import HOP, Geometry
from stentor.models.speech_llm.tokenizers import ctc_frames

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.batch import Example

SHORTEST = 1600
"""Samples; silence is added to shorter clips, which convolutions make no frame of."""


class CTCProcessor:
    """`extractor` and `tokenizer` are those of transformers, which an export holds."""

    ctc = None  # the transcript itself is the CTC head's

    def __init__(self, shape: Geometry, extractor: Any, tokenizer: Any, blank: int):
        self.shape, self.extractor, self.tokenizer = shape, extractor, tokenizer
        self.sample_rate = int(extractor.sampling_rate)
        self.eos_id = blank  # texts have no end token
        self.spelling = spelling(tokenizer)
        self.max_seconds = shape.max_samples / self.sample_rate if shape.max_samples else None

    def frames(self, samples: int) -> int:
        """Frames of a clip of so many samples."""
        return int(self.shape.frames(self.shape.steps(max(samples, SHORTEST))))

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Frames of an item."""
        return self.frames(round(seconds * self.sample_rate))

    def max_new_tokens(self, seconds: float) -> int:
        """At most one class per frame."""
        return self.frames(round(seconds * self.sample_rate))

    def features(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Log-mel [B, mels, T] or audio [B, T], zero at padding, with lengths [B] in the same steps."""
        clips = [np.asarray(example.audio, np.float32) for example in examples]
        clips = [np.pad(clip, (0, max(0, SHORTEST - len(clip)))) for clip in clips]
        lengths = torch.tensor([self.shape.steps(len(clip)) for clip in clips])
        longest = int(lengths.max())
        if self.shape.kind == "wave":
            out = torch.zeros(len(clips), longest)
            for row, clip, example in zip(out, clips, examples):
                if self.shape.normalize:
                    clip = (clip - clip.mean()) / np.sqrt(clip.var() + 1e-7)
                row[: len(clip)] = torch.from_numpy(_hide_spans(clip, example))
            return out, lengths
        made = self.extractor(clips, sampling_rate=self.sample_rate, return_tensors="pt")
        out = made["input_features"][:, :longest].transpose(1, 2).contiguous()
        for row, length, example in zip(out, lengths.tolist(), examples):
            if (masks := _masks(example)) is not None:
                row[:, :length] = masks.apply(row[:, :length].T, example.rng).T
        return out, lengths

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """`features` and `lengths` (see `features`); with `labels` also `targets` (all clips' classes end to end) and
        `target_lengths` [B].

        Left out of training and listed in `Batch.dropped`: clips that the encoder has no positions for, texts with
        letters that the alphabet lacks, and texts with more labels than the clip has frames. In a batch for generation
        a clip that is too long raises DataError.
        """
        spelled = [self.spelling.encode(e.text or "") if labels else ([], "") for e in examples]
        dropped = []
        for example in examples:
            if why := self._refused(example, labels):
                dropped.append((example.id, *why))
        if dropped and not labels:
            raise DataError(f"{dropped[0][2]} Cut longer audio into windows first, as `stentor transcribe` does.")
        left_out = {name for name, _, _ in dropped}
        kept = [(e, classes) for e, (classes, _) in zip(examples, spelled) if e.id not in left_out]
        if not kept:
            return Batch(inputs={}, counts={}, ids=[], dropped=dropped)
        features, lengths = self.features([e for e, _ in kept])
        inputs = {"features": features, "lengths": lengths}
        if labels:
            inputs["targets"] = torch.tensor([c for _, classes in kept for c in classes], dtype=torch.long)
            inputs["target_lengths"] = torch.tensor([len(classes) for _, classes in kept], dtype=torch.long)
        frames = [self.frames(_samples(e)) for e, _ in kept]
        return Batch(
            inputs=inputs,
            counts={"ctc": sum(len(classes) for _, classes in kept)} if labels else {},
            ids=[e.id for e, _ in kept],
            seconds=sum(_samples(e) for e, _ in kept) / self.sample_rate,
            tokens=sum(frames),
            num_positions=max(frames) * len(frames),
            dropped=dropped,
        )

    def _refused(self, example: Example, labels: bool) -> tuple[str, str] | None:
        """Why an item cannot be used, and in words."""
        limit, samples = self.shape.max_samples, _samples(example)
        if limit is not None and samples > limit:
            seconds = samples / self.sample_rate
            return "too_long", f"{example.id}: {seconds:.1f} s; the encoder reads {self.max_seconds:g} s."
        if not labels:
            return None
        return self.untrainable(example.id, example.text or "", samples)

    def untrainable(self, name: str, text: str, samples: int) -> tuple[str, str] | None:
        """(reason, sentence) for a record whose text cannot be learnt from a clip of so many samples.

        `not_in_alphabet`: letters that no class stands for; `empty_text`: only punctuation; `text_too_long`: CTC writes
        at most one class per frame, with a blank between equal ones.
        """
        if refused := self.not_in_alphabet(name, text):
            return refused
        classes, _ = self.spelling.encode(text)
        if not classes:
            return "empty_text", f"{name}: nothing in its text can be written."
        needed, frames = ctc_frames(classes), self.frames(samples)
        if needed > frames:
            return "text_too_long", (
                f"{name}: its text of {len(classes)} signs needs {needed} frames, and {samples / self.sample_rate:.2f} "
                f"s of audio give {frames}: do text and audio belong together?"
            )
        return None

    def not_in_alphabet(self, name: str, text: str) -> tuple[str, str] | None:
        """(reason, sentence) for the text of the record `name` when it has letters that no class stands for."""
        _, missing = self.spelling.encode(text)
        if not missing:
            return None
        letters = " ".join(sorted(set(missing))[:10])
        return "not_in_alphabet", (
            f"{name}: the model's alphabet lacks {letters}; set `model.alphabet: transcripts` to make one from the "
            "training transcripts."
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Text of what `generate` gives: classes without repeats and blanks."""
        return self.spelling.decode(ids)

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


def _samples(example: Example) -> int:
    assert example.audio is not None
    return len(example.audio)


def _masks(example: Example) -> Any:
    from stentor.data.augment import SpecAugment

    settings = example.extra.get("spec_augment")
    return SpecAugment.model_validate(settings) if settings and example.rng is not None else None


def _hide_spans(clip: np.ndarray, example: Example) -> np.ndarray:
    """SpecAugment's time masks on raw audio: the stripes become silence; there are no frequencies to mask."""
    if (masks := _masks(example)) is None:
        return clip
    clip = clip.copy()
    for axis, first, last in masks.stripes(len(clip) // HOP, 2, example.rng):
        if axis == 0:
            clip[first * HOP : last * HOP] = 0
    return clip
