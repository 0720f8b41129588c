"""`xcodec2`: X-codec 2 (Ye et al. 2025), 16 kHz, 50 frames per second, one codebook of 65,536 entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.audio.kaldi import KaldiFeatures
from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Xcodec2(Neural):
    """X-codec 2: one code per frame, from acoustic and semantic (w2v-BERT) features. Its codes are kept as int32."""

    type: Literal["xcodec2"] = "xcodec2"

    model_types: ClassVar[tuple[str, ...]] = ("xcodec2",)
    default_source: ClassVar[str | None] = "HKUSTAudio/xcodec2-hf"
    transformers_class: ClassVar[str] = "Xcodec2Model"

    def geometry(self, config: Any) -> CodecGeometry:
        return CodecGeometry(config.sampling_rate, config.hop_length, 1, math.prod(config.quantization_levels))

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        return model.encode(wave[None, None], input_features=semantic_features(wave, geometry)).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(audio_codes=codes).audio_values[0, 0]


def semantic_features(wave: Tensor, geometry: CodecGeometry) -> Tensor:
    """Input of its w2v-BERT for a wave [frames * hop]: Kaldi's filter banks of 16-bit audio, each bin normalised over
    the clip, two frames at a time, float32 [1, frames, 160]."""
    import torch

    fbank = KaldiFeatures(snip_edges=True, high_freq=geometry.sample_rate / 2, sampling_rate=geometry.sample_rate)
    edge = geometry.hop // 2
    padded = torch.nn.functional.pad(wave.cpu() * 2**15, (edge, edge)).numpy()
    bins = torch.from_numpy(fbank.extract(padded)).to(wave.device)
    bins = (bins - bins.mean(0)) / (bins.var(0) + 1e-7).sqrt()
    return bins[: len(bins) // 2 * 2].reshape(1, -1, 2 * bins.shape[1])
