"""`mimi`: Kyutai's codec (Défossez et al. 2024), 24 kHz, 12.5 frames per second, up to 32 codebooks of 2,048."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Mimi(Neural):
    """Mimi: the first codebook holds what is said, the others how it sounds."""

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
