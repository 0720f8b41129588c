"""`xcodec2`: X-codec 2 (Ye et al. 2025), 16 kHz, 50 frames per second, one codebook of 65,536 entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.models.codecs.neural import Facts, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Xcodec2(Neural):
    """X-codec 2: one code per frame, from acoustic and semantic (w2v-BERT) features. Its codes are kept as int32."""

    type: Literal["xcodec2"] = "xcodec2"

    model_types: ClassVar[tuple[str, ...]] = ("xcodec2",)
    usual: ClassVar[str | None] = "HKUSTAudio/xcodec2-hf"

    def model_class(self) -> Any:
        from transformers import Xcodec2Model

        return Xcodec2Model

    def facts(self, config: Any) -> Facts:
        import math

        return Facts(config.sampling_rate, config.hop_length, 1, math.prod(config.quantization_levels))

    def codes(self, model: Any, wave: Tensor, facts: Facts) -> Tensor:
        return model.encode(wave[None, None], input_features=semantic_features(wave, facts)).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(audio_codes=codes).audio_values[0, 0]


def semantic_features(wave: Tensor, facts: Facts) -> Tensor:
    """What its w2v-BERT hears of a wave [frames * hop]: Kaldi's filter banks of 16-bit audio, each bin normalised over
    the clip, two frames at a time, float32 [1, frames, 160]."""
    import torch

    from stentor.audio.kaldi import KaldiFeatures

    fbank = KaldiFeatures(snip_edges=True, high_freq=facts.sample_rate / 2, sampling_rate=facts.sample_rate)
    edge = facts.hop // 2
    padded = torch.nn.functional.pad(wave.cpu() * 2**15, (edge, edge)).numpy()
    bins = torch.from_numpy(fbank.extract(padded)).to(wave.device)
    bins = (bins - bins.mean(0)) / (bins.var(0) + 1e-7).sqrt()
    return bins[: len(bins) // 2 * 2].reshape(1, -1, 2 * bins.shape[1])
