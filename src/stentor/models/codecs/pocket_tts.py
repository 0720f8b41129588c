"""`pocket_tts`: Kyutai's continuous codec of Pocket TTS: 24 kHz, 12.5 frames per second, 32 real numbers a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.errors import ConfigError
from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class PocketTTS(Neural):
    """Mimi without its quantizer: its "codes" are latents, float32 [32, frames], for models that speak by flow."""

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
