"""Shared part of models with an encoder of transformers: its output is computed once for the text, the CTC classes
and the word times of a batch, and recordings are heard while they come."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.contracts import GenerationOutput, Recognizer
from stentor.models.encoders.encode import encode
from stentor.models.encoders.geometry import Geometry
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder
from stentor.models.encoders.streaming.fastconformer import FastConformerChunks
from stentor.models.encoders.streaming.nemotron import NemotronChunks
from stentor.models.encoders.streaming.whisper import WhisperChunks

STREAMING: dict[str, type[FastConformerChunks | WhisperChunks]] = {
    "whisper": WhisperChunks,
    "parakeet_encoder": FastConformerChunks,
    "nemotron_asr_streaming_encoder": NemotronChunks,
}
"""Encoders that hear recordings while they come, by `model_type`."""


class HearsChunks:
    """A model with such an `encoder`."""

    encoder: Any

    def chunk_encoder(self, processor: Any, seconds: tuple[float, float]) -> ChunkEncoder:
        """Encoder of recordings while they arrive, in chunks and with a reach of so many seconds, for models that can
        (their processor has `streaming`)."""
        return STREAMING[self.encoder.config.model_type](self.encoder, processor, seconds)


class EncoderCache(HearsChunks, Recognizer, nn.Module):
    """A model that can cache the encoder's output and the greedy output of the last batch, and what models share that
    have an `encoder` of the geometry `shape` and perhaps a `ctc_head` on it."""

    encoder: Any
    shape: Geometry
    ctc_head: Any

    def __init__(self) -> None:
        super().__init__()
        self._caching = False
        self._encoded: list[tuple[Tensor, ...]] = []
        self._greedy_outputs: list[GenerationOutput] | None = None

    @contextmanager
    def cache_encoder(self) -> Iterator[None]:
        """Inside, audio is encoded once, for its text, its CTC classes, its word times and other ways of decoding, and
        the states of greedily written text are not computed again for its word times: frames of all batches and states
        of the last one are kept to the end. For inference only."""
        before, self._caching = self._caching, True
        try:
            yield
        finally:
            self._caching = before
            if not before:
                self._encoded, self._greedy_outputs = [], None

    def cached(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """The stored output for these inputs; empty when nothing is stored for them."""
        for seen_features, seen_lengths, *output in self._encoded:
            if torch.equal(seen_features, features) and torch.equal(seen_lengths, lengths):
                return tuple(output)
        return ()

    def store(self, features: Tensor, lengths: Tensor, *output: Tensor) -> None:
        """Store the encoder's output for these inputs, inside `cache_encoder`."""
        if self._caching:
            self._encoded.append((features, lengths, *output))

    def frames(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encoder frames [B, T, width], zero at padding, and lengths [B]. No graph is kept for a frozen encoder.
        `chunks`: as `encode` takes them."""
        if cached := self.cached(features, lengths):
            return cached[0], cached[1]
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in self.encoder.parameters())
        with torch.set_grad_enabled(needed):
            dtype = next(self.encoder.parameters()).dtype
            hidden, frames = encode(self.encoder, self.shape, features.to(dtype), lengths, chunks)
        if self.shape.window is not None:
            hidden = hidden[:, : int(frames.max())]
        self.store(features, lengths, hidden, frames)
        return hidden, frames

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the CTC classes [B, T, C], float32, from encoder frames."""
        return self.ctc_head(hidden.to(self.ctc_head.weight.dtype)).float().log_softmax(-1)

    def ctc_arguments(self, hidden: Tensor, frames: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Arguments of the loss `ctc` for encoder frames, from the processor's `ctc_targets`."""
        rows = inputs["ctc_rows"]
        return {
            "log_probs": self.ctc_log_probs(hidden)[rows].transpose(0, 1),
            "lengths": frames[rows],
            "targets": inputs["ctc_targets"],
            "target_lengths": inputs["ctc_target_lengths"],
        }

    def best_ctc_classes(self, features: Tensor, lengths: Tensor) -> list[list[int]]:
        """The most likely CTC class of each frame, per clip."""
        hidden, frames = self.frames(features, lengths)
        best = self.ctc_log_probs(hidden).argmax(-1)
        return [row[:n].tolist() for row, n in zip(best, frames.tolist())]
