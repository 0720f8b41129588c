"""`encodec`: Meta's codec (Défossez et al. 2022), 24 kHz, 75 frames per second, codebooks of 1,024 entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Encodec(Neural):
    """EnCodec for mono audio."""

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
                "This EnCodec is stereo, or keeps a level beside the codes of each chunk: use one for mono speech, "
                f"such as {self.default_source}."
            )
        if self.bandwidth not in config.target_bandwidths:
            known = ", ".join(f"{value:g}" for value in config.target_bandwidths)
            raise ConfigError(f"codec.bandwidth: the codec has no {self.bandwidth:g} kbit/s; it has {known}.")
        codebooks = int(1000 * self.bandwidth // (config.frame_rate * config.codebook_nbits))
        return CodecGeometry(config.sampling_rate, config.hop_length, max(1, codebooks), config.codebook_size)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        return model.encode(wave[None, None], bandwidth=self.bandwidth).audio_codes[0, 0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes[None], [None]).audio_values[0, 0]
