"""Inputs of models with an audio encoder: features, lengths, letters and CTC targets of their processors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.audio.features import WhisperMel
from stentor.data.batch import Example, num_samples
from stentor.data.cut import Cut
from stentor.models.collate import SHORTEST, audio_batch, encoder_inputs, mask_features, pad_shortest
from stentor.models.contracts import Processor
from stentor.models.encoders.features import parakeet_mel
from stentor.models.encoders.geometry import SAMPLE_RATE, Geometry
from stentor.models.encoders.streaming.chunks import KnownChunks, Streaming, drawn_chunks
from stentor.models.text.control_tokens import text_ids
from stentor.models.text.tokenizers import CTCAlphabet, ctc_frames


class EncoderInputs(Processor):
    """Base of the processors of models with one of the encoders of `Geometry` and a tokenizer."""

    sample_rate = SAMPLE_RATE
    seconds_limit = "the encoder reads at most {:g} s"
    streaming: Streaming | KnownChunks | None = None
    """Chunks of training clips and streams; an export keeps them in its config, not in the processor's file."""

    def __init__(self, tokenizer: Any, shape: Geometry, ctc: str | list[str] | None = None):
        """`tokenizer`: a fast transformers tokenizer; `ctc`: the units of the CTC head, None without one."""
        self.tokenizer, self.shape = tokenizer, shape
        self.ctc = CTCAlphabet(ctc) if ctc is not None else None
        self._mel: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mel": None}

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return text_ids(self.tokenizer, text)

    def unknown_letters(self, text: str) -> str:
        """Up to ten letters of a text that the tokenizer has only its unknown token for; empty where all can be
        written, as with tokenizers of bytes."""
        unknown = self.tokenizer.unk_token_id
        if unknown is None or unknown not in self.ids(text):
            return ""
        letters = [c for c in sorted(set(text)) if not c.isspace() and unknown in self.ids(c)]
        return " ".join(letters[:10]) or repr(text)

    @property
    def frame_seconds(self) -> float:
        """Seconds from one encoder frame to the next."""
        return 1 / self.shape.frame_rate

    def frames(self, samples: int) -> int:
        """Encoder frames of a clip of so many samples, from metadata alone."""
        return int(self.shape.frames(self.shape.steps(max(samples, SHORTEST))))

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Frames of an item."""
        return self.frames(round(seconds * self.sample_rate))

    @property
    def max_seconds(self) -> float | None:  # type: ignore[override]
        """Longest clip that the encoder has positions for. None: any length."""
        return self.shape.max_samples / SAMPLE_RATE if self.shape.max_samples else None

    def features(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Log-mel [B, mels, T] or audio [B, T], zero at padding, with lengths [B] in the same steps."""
        if self.shape.fixed_features is not None:
            return encoder_inputs(self.shape, None, examples)
        clips = [pad_shortest(example.audio) for example in examples]
        lengths = torch.tensor([self.shape.steps(len(clip)) for clip in clips])
        if self.shape.kind == "wave":
            return audio_batch(clips, examples, self.shape.normalize), lengths
        if self.shape.window:
            clips = [np.pad(clip, (0, self.shape.window - len(clip))) for clip in clips]
        features = self._log_mel(clips)
        mask_features(features, lengths, examples)
        return features, lengths

    def _log_mel(self, clips: list[np.ndarray]) -> Tensor:
        if self.shape.log_mel == "parakeet":
            from transformers import ParakeetFeatureExtractor

            self._mel = self._mel or ParakeetFeatureExtractor(feature_size=self.shape.mels)
            return parakeet_mel(self._mel, clips)

        self._mel = self._mel or WhisperMel(self.shape.mels)
        return self._mel(clips)[0]

    def chunks(self, examples: Sequence[Example], training: bool) -> dict[str, Tensor]:
        """See `drawn_chunks`."""
        return drawn_chunks(self.streaming, examples, self.frame_seconds, training)

    def has_ctc_targets(self, example: Example) -> bool:
        """Whether a CTC head learns from an example: see `ctc_targets`."""
        assert self.ctc is not None
        return 0 < ctc_frames(self.ctc.encode(example.text or "")) <= self.frames(num_samples(example))

    def ctc_targets(self, examples: Sequence[Example], lengths: Tensor, inputs: dict[str, Tensor]) -> int:
        """Add CTC targets of the items that fit in their frames; returns the number of targets."""
        assert self.ctc is not None
        spelled = [self.ctc.encode(e.text or "") for e in examples]
        frames = self.shape.frames(lengths).tolist()
        fits = [i for i, (word, n) in enumerate(zip(spelled, frames)) if 0 < ctc_frames(word) <= n]
        inputs["ctc_rows"] = torch.tensor(fits, dtype=torch.long)
        inputs["ctc_targets"] = torch.tensor([c for i in fits for c in spelled[i]], dtype=torch.long)
        inputs["ctc_target_lengths"] = torch.tensor([len(spelled[i]) for i in fits], dtype=torch.long)
        return sum(len(spelled[i]) for i in fits)
