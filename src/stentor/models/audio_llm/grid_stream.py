"""Audio of recordings while they come, for models on the frame grid: their encoders with their caches, frame by
frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stentor.models.codecs.resample import resample
from stentor.models.delayed.modeling import FrameStream


class RealtimeAudio(FrameStream):
    """Voxtral Realtime: log-mels after the model's silence, the caches of convolutions and attention."""

    def __init__(self, model: Any, processor: Any, delay: int):
        super().__init__()
        self.model, self.processor, self.delay = model, processor, delay
        extractor = processor.hf.feature_extractor
        self._before = processor.silence_before
        self._hop = processor.samples_a_frame
        self._centre = extractor.win_length // 2  # silence before the first window, which is around the first sample
        self._needed = self._hop - extractor.hop_length + extractor.win_length
        self._dropped = extractor.hop_length  # transformers leaves out the last column
        self._signal = np.zeros(self._centre + self._before, np.float32)
        self._caches: dict[str, Any] = {}

    def _add(self, samples: np.ndarray) -> None:
        self._signal = np.concatenate([self._signal, samples])

    def _finish(self) -> None:
        total = self.processor.positions(self.samples, self.delay) * self._hop
        self._add(np.zeros(total - self._before - self.samples + self._centre, np.float32))

    @property
    def ready(self) -> bool:
        return len(self._signal) >= self._needed

    @torch.no_grad()
    def encode(self) -> None:
        piece = np.pad(self._signal[: self._needed], (0, self._dropped))
        self._signal = self._signal[self._hop :]
        extractor = self.processor.hf.feature_extractor
        mel = extractor(piece, sampling_rate=self.processor.sample_rate, center=False).input_features
        mel = torch.as_tensor(np.asarray(mel), device=self.model.lm_head.weight.device)
        out = self.model._audio_features(
            self.model, input_features=mel, use_cache=True, return_dict=True, **self._caches
        )
        self._caches = {"padding_cache": out.padding_cache, "past_key_values": out.past_key_values}
        self.frames.append(out.pooler_output[0, 0])


class KyutaiAudio(FrameStream):
    """Kyutai: tokens of the codec Mimi, after resampling; before them the first frame, which is none of the audio."""

    PIECE = 1280
    """Samples that are resampled at a time."""
    AROUND = 64
    """Samples on either side that resampling sees, more than its filter has."""

    def __init__(self, model: Any, processor: Any):
        super().__init__()
        self.model, self.processor = model, processor
        self._before, self._behind = processor.silence()
        self._signal = np.zeros(self.AROUND, np.float32)
        self._wave = torch.zeros(self._before)
        """Samples at the rate of the codec."""
        self._resampled = 0
        self._caches: dict[str, Any] = {}
        self.frames.append(model.code_embeddings(model.first_codes())[0, 0])

    def _add(self, samples: np.ndarray) -> None:
        self._signal = np.concatenate([self._signal, samples])
        while len(self._signal) >= self.PIECE + 2 * self.AROUND:
            self._resample()

    def _finish(self) -> None:
        rate, to = self.processor.sample_rate, self.processor.rate
        total = -(-self.samples * to // rate)
        while self._resampled < total:
            short = max(0, self.PIECE + 2 * self.AROUND - len(self._signal))
            self._signal = np.pad(self._signal, (0, short))
            self._resample()
        wave = self._wave[: len(self._wave) - (self._resampled - total)]
        self._wave = torch.nn.functional.pad(wave, (0, self._behind))

    def _resample(self) -> None:
        rate, to = self.processor.sample_rate, self.processor.rate
        piece = torch.from_numpy(self._signal[: self.PIECE + 2 * self.AROUND])
        around, count = self.AROUND * to // rate, self.PIECE * to // rate
        self._wave = torch.cat([self._wave, resample(piece, rate, to)[around : around + count]])
        self._signal, self._resampled = self._signal[self.PIECE :], self._resampled + count

    @property
    def ready(self) -> bool:
        return len(self._wave) >= self.processor.frame

    @torch.no_grad()
    def encode(self) -> None:
        frame, self._wave = self._wave.split([self.processor.frame, len(self._wave) - self.processor.frame])
        frame = frame.to(self.model.lm_head.weight.device)
        out = self.model.codec_model.encode(frame[None, None], use_streaming=True, return_dict=True, **self._caches)
        self._caches = {"padding_cache": out.padding_cache, "encoder_past_key_values": out.encoder_past_key_values}
        self.frames.append(self.model.code_embeddings(out.audio_codes.transpose(1, 2))[0, 0])
