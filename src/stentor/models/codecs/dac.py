"""`dac`: the Descript audio codec (Kumar et al. 2023), 16, 24 or 44.1 kHz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.models.codecs.neural import Facts, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Dac(Neural):
    """The Descript audio codec."""

    type: Literal["dac"] = "dac"
    codebooks: int | None = Field(None, ge=1)
    """Codebooks that are used, of those that it has. Null: all."""

    model_types: ClassVar[tuple[str, ...]] = ("dac",)
    usual: ClassVar[str | None] = "descript/dac_24khz"

    def model_class(self) -> Any:
        from transformers import DacModel

        return DacModel

    def facts(self, config: Any) -> Facts:
        codebooks = self.used(self.codebooks, config.n_codebooks)
        return Facts(config.sampling_rate, config.hop_length, codebooks, config.codebook_size)

    def codes(self, model: Any, wave: Tensor, facts: Facts) -> Tensor:
        return model.encode(wave[None, None], n_quantizers=facts.codebooks).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(audio_codes=codes).audio_values[0]
