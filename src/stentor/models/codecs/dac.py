"""`dac`: the Descript audio codec (Kumar et al. 2023), 16, 24 or 44.1 kHz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.models.codecs.neural import CodecGeometry, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Dac(Neural):
    """The Descript audio codec."""

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
