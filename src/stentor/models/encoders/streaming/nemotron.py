"""Nemotron's encoder (a cache-aware FastConformer, Noroozi et al. 2024) over recordings that come in pieces."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from stentor.models.encoders.streaming.fastconformer import FastConformerChunks


class StreamedMel:
    """The log-mel of transformers' extractor for these models, in which a frame does not depend on its neighbours."""

    def __init__(self, extractor: Any):
        self.extractor = extractor
        self.sampling_rate, self.size = extractor.sampling_rate, extractor.feature_size
        self.frame_seconds = extractor.hop_length / extractor.sampling_rate


class StreamedMelStream:
    """Its frames of a recording while it comes, bit by bit the same for any pieces: first `first` at a time, then
    `unit` at a time, each about so many hops after the start of the recording."""

    def __init__(self, mel: StreamedMel, first: int, unit: int):
        self.mel, self._next, self.unit = mel, first, unit
        self._signal = np.zeros(mel.extractor.n_fft // 2, np.float32)
        """Samples from the start of the next frame on; silence before the first one."""

    def add(self, samples: np.ndarray) -> np.ndarray:
        """The next frames float32 [T, size] that can be computed after these float32 [samples]."""
        extractor, rows = self.mel.extractor, [np.zeros((0, self.mel.size), np.float32)]
        self._signal = np.concatenate([self._signal, samples])
        while len(self._signal) >= (size := (self._next - 1) * extractor.hop_length + extractor.n_fft):
            rows.append(self._extract(self._signal[:size]))
            self._signal = self._signal[self._next * extractor.hop_length :]
            self._next = self.unit
        return np.concatenate(rows)

    def finish(self) -> np.ndarray:
        """The last frames."""
        left = (len(self._signal) - self.mel.extractor.n_fft // 2) // self.mel.extractor.hop_length
        return self._extract(self._signal, last=True) if left > 0 else np.zeros((0, self.mel.size), np.float32)

    def _extract(self, signal: np.ndarray, last: bool = False) -> np.ndarray:
        # the first sample, to which the emphasis lacks the one before, is outside of the window
        options = {"center": False, "is_last_audio_chunk": last, "return_tensors": "np"}
        features = self.mel.extractor(signal, sampling_rate=self.mel.sampling_rate, **options)
        return features["input_features"][0]  # type: ignore[no-any-return]


class NemotronChunks(FastConformerChunks):
    """transformers' NemotronAsrStreamingEncoder.

    Its frame i sees features up to `factor` * i, so that the first chunk has `factor` - 1 features less than the
    others: they lead it as zeros, also behind each layer of the subsampling. Frames see as many whole chunks before
    their own as the window has room for.
    """

    def __init__(self, encoder: Any, processor: Any, seconds: tuple[float, float]):
        super().__init__(encoder, processor, seconds, StreamedMel(processor.hf.feature_extractor))
        self.lead = self.factor - 1
        self.reach = (encoder.config.sliding_window - 1) // self.chunk * self.chunk

    def open_features(self) -> StreamedMelStream:
        unit = self.chunk * self.factor
        return StreamedMelStream(self.features, unit - self.lead, unit)

    @property
    def _stages(self) -> Sequence[Any]:
        stem = self.encoder.subsampling
        layers = [part for layer in stem.layers for part in (layer.depthwise_conv, layer.pointwise_conv, stem.act_fn)]
        return [stem.conv_in, stem.act_fn, *layers]

    def _edges(self, conv: Any) -> tuple[int, tuple[int, int]]:
        return conv.left_pad, conv.freq_pad

    def _norm(self, module: Any, x: Tensor) -> Tensor:
        return module.norm(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]
