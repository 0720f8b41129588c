"""Published codecs of transformers, except Higgs Audio v2 (higgs_audio_v2.py), whose module transformers hides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.audio.kaldi import KaldiFeatures
from stentor.errors import ConfigError
from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Encodec(Neural):
    """EnCodec for mono audio (Défossez et al. 2022): 24 kHz, 75 frames per second, codebooks of 1,024 entries."""

    type: Literal["encodec"] = "encodec"
    bandwidth: float = Field(6.0, gt=0)
    """kbit/s, one of those that the codec has: at 24 kHz, 1.5, 3, 6, 12 and 24 are 2, 4, 8, 16 and 32 codebooks."""

    model_types: ClassVar[tuple[str, ...]] = ("encodec",)
    default_source: ClassVar[str | None] = "facebook/encodec_24khz"
    transformers_class: ClassVar[str] = "EncodecModel"
    fills: ClassVar[bool] = True

    def geometry(self, config: Any) -> CodecGeometry:
        if config.audio_channels != 1 or config.normalize or config.chunk_length_s is not None:
            raise ConfigError(
                "This EnCodec is stereo, or keeps a level with the codes of each chunk: use one for mono speech, "
                f"such as {self.default_source}."
            )
        if self.bandwidth not in config.target_bandwidths:
            known = ", ".join(f"{value:g}" for value in config.target_bandwidths)
            raise ConfigError(f"codec.bandwidth: the codec has no {self.bandwidth:g} kbit/s; it has {known}.")
        codebooks = int(1000 * self.bandwidth // (config.frame_rate * config.codebook_nbits))
        return CodecGeometry(config.sampling_rate, config.hop_length, max(1, codebooks), config.codebook_size)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        # As `model.encode` in one piece, whose loop over pieces would make the length a constant in a graph.
        return model.quantizer.encode(model.encoder(wave[None, None]), self.bandwidth)[:, 0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes[None], [None]).audio_values[0, 0]


class Dac(Neural):
    """The Descript audio codec (Kumar et al. 2023): 16, 24 or 44.1 kHz."""

    type: Literal["dac"] = "dac"
    codebooks: int | None = Field(None, ge=1)
    """Codebooks that are used, of those that it has. Null: all."""

    model_types: ClassVar[tuple[str, ...]] = ("dac",)
    default_source: ClassVar[str | None] = "descript/dac_24khz"
    transformers_class: ClassVar[str] = "DacModel"

    def geometry(self, config: Any) -> CodecGeometry:
        codebooks = self.num_codebooks(self.codebooks, config.n_codebooks)
        return CodecGeometry(config.sampling_rate, config.hop_length, codebooks, config.codebook_size)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        return model.encode(wave[None, None], n_quantizers=geometry.codebooks).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(audio_codes=codes).audio_values[0]


class Mimi(Neural):
    """Mimi (Défossez et al. 2024): 24 kHz, 12.5 frames per second, up to 32 codebooks of 2,048 entries. The first
    describes the words, the others the sound."""

    type: Literal["mimi"] = "mimi"
    codebooks: int | None = Field(None, ge=2)
    """Codebooks that are used, of the 32 that it has. Null: 8, as Moshi does."""

    model_types: ClassVar[tuple[str, ...]] = ("mimi",)
    default_source: ClassVar[str | None] = "kyutai/mimi"
    transformers_class: ClassVar[str] = "MimiModel"
    fills: ClassVar[bool] = True

    def geometry(self, config: Any) -> CodecGeometry:
        codebooks = self.num_codebooks(self.codebooks, config.num_quantizers, default=8)
        return CodecGeometry(config.sampling_rate, config.frame_size, codebooks, config.codebook_size)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        return model.encode(wave[None, None], num_quantizers=geometry.codebooks).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes).audio_values[0, 0]


class Xcodec2(Neural):
    """X-codec 2 (Ye et al. 2025): 16 kHz, 50 frames per second, one code of 65,536 per frame, from acoustic and
    semantic (w2v-BERT) features. Its codes are kept as int32."""

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


class PocketTTS(Neural):
    """Kyutai's codec of Pocket TTS: Mimi without its quantizer, 24 kHz, 12.5 frames per second. Its "codes" are
    latents, float32 [32, frames], for models that speak by flow."""

    type: Literal["pocket_tts"] = "pocket_tts"

    model_types: ClassVar[tuple[str, ...]] = ("pocket_tts_audio_tokenizer",)
    default_source: ClassVar[str | None] = "eustlb/pocket-tts-audio-tokenizer"
    transformers_class: ClassVar[str] = "PocketTTSAudioTokenizerModel"

    def geometry(self, config: Any) -> CodecGeometry:
        return CodecGeometry(config.sampling_rate, config.frame_size, config.latent_dim, None)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        if model.encoder is None:
            raise ConfigError(
                "This codec of Pocket TTS has no encoder: it speaks, but can read no recordings. Give the whole one as "
                "`model.codec`."
            )
        return model.encode(wave[None, None]).latents[0].T

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes.transpose(1, 2)).audio_values[0, 0]
