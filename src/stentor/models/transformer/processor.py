"""Processor: features or raw audio and tokens of examples. Holds no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lhotse.cut import Cut
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.data.augment import Augment
from stentor.data.batch import Batch, Example, num_samples
from stentor.data.cut import text_of
from stentor.data.feature_cache import CachedFeatures, FeatureCache
from stentor.data.trained_speech import TrainedSpeech
from stentor.errors import DataError
from stentor.models.collate import Contents, spec_augment, usable_batch
from stentor.models.contracts import Processor
from stentor.models.encoders.features import Features
from stentor.models.encoders.geometry import SAMPLE_RATE, Geometry
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.encoders.streaming.chunks import Streaming, drawn_chunks
from stentor.models.pretrained.weights import read_json, write_json
from stentor.models.text.control_tokens import text_ids
from stentor.models.text.tokenizers import CTCAlphabet, padding_id, too_many_classes
from stentor.models.transformer.feature_cache import FeatureStore

FILE = "preprocessor_config.json"


class TransformerProcessor(FeatureCache, Processor):
    """Features (or raw audio for an SSL encoder), tokens and targets of the family `transformer`.

    Inputs of the audio: `features` float32 [B, T, size], zero at padding, with `lengths` int64 [B] in output frames;
    for a pretrained encoder `features` are its input (see `EncoderInputs.features`) with `lengths` in its steps. Output
    frame i is the time from i to i + 1 times `frame_seconds`. Clips shorter than a frame of the features count as one:
    silence is added.

    Of texts: `tokens` int64 [B, U], which begin with the start token, and `targets` int64 [B, U], which end with the
    end token and are -100 at padding. Without audio (a language model) these are all there is.
    """

    streaming: Streaming | None = None
    """Chunks of training clips; an export keeps them in its config, not in the processor's file."""
    writes_classes = True
    max_frames: int | None = None
    """Learnt positions of the encoder. None: it needs none."""
    longest_text: int | None = None
    """Most tokens that the decoder has positions for, after the start token; in the config of an export, too."""

    def __init__(
        self,
        features: Features | None = None,
        shape: Geometry | None = None,
        tokenizer: Any = None,
        tokenizer_type: str | None = None,
        ctc: str | list[str] | None = None,
        token_rate: float | None = None,
    ):
        """`features`: settings of the features; `shape`: of a pretrained encoder, in their place; neither: a
        language model. `tokenizer`: a fast transformers tokenizer of the type `characters` or `bpe`; None
        where no text is written. `ctc`: the units of a CTC head. `token_rate`: most tokens per second of audio."""
        self.features, self.tokenizer, self.tokenizer_type = features, tokenizer, tokenizer_type
        self.pretrained = EncoderInputs(None, shape) if shape is not None else None
        self.front: Features | EncoderInputs | None = self.pretrained or features
        self.max_seconds = self.pretrained.max_seconds if self.pretrained is not None else None
        self.sample_rate = features.sampling_rate if features is not None else SAMPLE_RATE
        self.ctc = CTCAlphabet(ctc) if ctc is not None else None
        self.token_rate = token_rate or (25.0 if tokenizer_type == "characters" else 8.0)
        self.store = FeatureStore.of(features) if features is not None and features.store is not None else None
        self.trained_speech: TrainedSpeech = TrainedSpeech()
        self.eos_id = 0  # of a CTC head alone: its blank, for its texts have no end token
        if tokenizer is not None:
            self.eos_id, self.bos_id = int(tokenizer.eos_token_id), int(tokenizer.bos_token_id)
            self.pad_id = padding_id(tokenizer)

    # Lengths, from metadata alone

    @property
    def has_audio(self) -> bool:
        """Whether there is audio: False for a language model."""
        return self.front is not None

    @property
    def size(self) -> int:
        """Values per frame of `features`; 0 where the model reads raw audio or none."""
        return self.features.size if self.features is not None else 0

    @property
    def frame_seconds(self) -> float:
        """Seconds from one output frame to the next."""
        assert self.front is not None
        return self.front.frame_seconds

    def frames(self, samples: int) -> int:
        """Output frames of a clip of so many samples: one at least."""
        assert self.front is not None
        return self.front.frames(samples)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Output frames of an item; for a language model its tokens with the end token."""
        if self.has_audio:
            return self.frames(round(seconds * self.sample_rate))
        return self.text_tokens(cut)

    def text_tokens(self, cut: Cut) -> int:
        """Tokens of an item's text, the end token included."""
        return len(self.ids(text_of(cut) or "")) + 1

    @property
    def has_text(self) -> bool:
        """Whether the model writes or scores texts, and does not label frames."""
        return self.tokenizer is not None or self.ctc is not None

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        most = int(seconds * self.token_rate) + 16
        return most if self.longest_text is None else min(most, self.longest_text)

    # Text

    def ids(self, text: str) -> list[int]:
        """Units of the output text: the tokenizer's tokens, or CTC classes where there is no tokenizer."""
        if self.tokenizer is not None:
            return text_ids(self.tokenizer, text)
        assert self.ctc is not None
        return self.ctc.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens; without a tokenizer of CTC classes that were merged already."""
        if self.tokenizer is None:
            return self.spell_classes(ids).strip()
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def spell_classes(self, classes: Sequence[int]) -> str:
        """Text of CTC classes that were merged already."""
        assert self.ctc is not None
        return self.ctc.spell(classes)

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        text = example.text or ""
        known = self.tokenizer.get_vocab().keys() if self.tokenizer_type == "characters" else set(text)
        if training and self.has_text and (missing := set(text) - known):
            return "not_in_alphabet", (
                f"{example.id}: the tokenizer cannot write {' '.join(sorted(missing)[:10])}. It was made of the texts "
                "of an earlier stage, or of the beginning of a stream: leave these records out, or take "
                "`model.text.type: bpe`, which can write everything."
            )
        return super().drop_reason(example, training)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        text, frames = example.text or "", self.frames(num_samples(example)) if self.has_audio else 0
        if self.max_frames is not None and frames > self.max_frames:
            return "too_long", self._positions(example, frames, "frames", self.max_frames, "encoder")
        most = None if self.longest_text is None else self.longest_text + 1
        writes = labels or not self.has_audio
        if most is not None and writes and len(text.encode()) >= most and (tokens := len(self.ids(text)) + 1) > most:
            return "text_too_long", self._positions(example, tokens, "tokens", most, "decoder")
        reason = super().refusal(example, labels) if self.has_audio else None
        if reason is not None or self.ctc is None or not labels:
            return reason
        fix = "lower `model.features.subsample`"
        return too_many_classes(example, self.ctc.encode(text), frames, self.sample_rate, fix)

    def _positions(self, example: Example, size: int, unit: str, most: int, part: str) -> str:
        return (
            f"{example.id}: its {size} {unit} are more than the {most} learnt positions of the {part}: raise "
            f"`model.{part}.max_positions` of a new model, or cut the record into shorter ones."
        )

    # Stored features

    def cached_features(self, cut: Cut) -> CachedFeatures | None:
        if self.store is None or self.features is None:
            return None
        return self.store.get(cut, self.features.raw)

    def check_cache(self, cuts: Sequence[Cut], augment: Augment) -> list[str]:
        return [] if self.store is None else self.store.summary(cuts, augment)

    # Batches

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch (see the class), padded on the right. With `labels` and a tokenizer also `tokens` and `targets`, with
        a CTC head `ctc_targets` (the classes of all items end to end) and `ctc_lengths` [B].

        The audio of an example is in `audio`; where it was not read, `extra["features"]` holds its stored features and
        `extra["samples"]` its length. Raises DataError for `packed`, which this family has not.
        """
        if packed:
            raise DataError("The family transformer does not support packed batches: leave out `data.layout: packed`.")
        return usable_batch(self, examples, labels, self._contents)

    def _contents(self, examples: Sequence[Example], labels: bool) -> Contents:
        inputs: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        sizes: list[int] = []
        if self.has_audio:
            inputs["features"], inputs["lengths"] = self.audio_inputs(examples)
            inputs |= drawn_chunks(self.streaming, examples, self.frame_seconds, labels)
            sizes = [self.frames(num_samples(e)) for e in examples]
        if labels and self.tokenizer is not None:
            texts = [self.ids(e.text or "") for e in examples]
            inputs["tokens"] = _padded([[self.bos_id, *ids] for ids in texts], self.pad_id)
            inputs["targets"] = _padded([[*ids, self.eos_id] for ids in texts], -100)
            counts["text"] = sum(len(ids) + 1 for ids in texts)
            sizes = sizes or [len(ids) + 1 for ids in texts]
        if labels and self.ctc is not None:
            spelled = [self.ctc.encode(e.text or "") for e in examples]
            inputs["ctc_targets"] = torch.tensor([c for classes in spelled for c in classes], dtype=torch.long)
            inputs["ctc_lengths"] = torch.tensor([len(classes) for classes in spelled], dtype=torch.long)
            counts["ctc"] = int(inputs["ctc_lengths"].sum())
        return inputs, counts, sum(sizes), max(sizes, default=0) * len(sizes)

    def audio_inputs(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """`features` and `lengths` (see the class); of SpecAugment on raw audio the time stripes become silence."""
        if self.pretrained is not None:
            return self.pretrained.features(examples)
        rows = [torch.from_numpy(self._frames(e)) for e in examples]
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    def _frames(self, example: Example) -> np.ndarray:
        """float32 [T, size]; SpecAugment falls on the frames before they are joined."""
        assert self.features is not None
        raw = example.extra.get("features")
        if raw is None:
            assert example.audio is not None
            raw = self.features.raw(example.audio, example.rng)
        frames = self.features.normalized(raw)
        masks = spec_augment(example)
        if example.rng is not None and masks is not None:
            frames = masks.apply(frames, example.rng)
        return np.ascontiguousarray(self.features.joined(frames), np.float32)

    # Files

    def save(self, folder: Path) -> None:
        """Write preprocessor_config.json and, where text is written, the tokenizer's files. Where features are stored
        is not written: it concerns the run."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        config = {
            "processor_class": type(self).__name__,
            "sampling_rate": self.sample_rate,
            "features": self.features.model_dump(exclude={"store", "store_bits"}) if self.features else None,
            "wave": asdict(self.pretrained.shape) if self.pretrained else None,
            "made": self.tokenizer_type,
            "ctc_alphabet": self.ctc.units if self.ctc else None,
            "token_rate": self.token_rate,
            "writes": self.tokenizer is not None,
            "trained_speech": asdict(self.trained_speech),
        }
        write_json(folder / FILE, config)

    @classmethod
    def load(cls, folder: Path) -> TransformerProcessor:
        """The processor of an export folder."""
        from transformers import PreTrainedTokenizerFast

        config = read_json(folder / FILE)
        processor = cls(
            Features(**config["features"]) if config["features"] else None,
            Geometry.of_export(config["wave"]) if config["wave"] else None,
            PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False) if config["writes"] else None,
            config["made"],
            config["ctc_alphabet"],
            config["token_rate"],
        )
        processor.trained_speech = TrainedSpeech.of_export(config)
        return processor


def _padded(rows: list[list[int]], fill: int) -> Tensor:
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=fill)
