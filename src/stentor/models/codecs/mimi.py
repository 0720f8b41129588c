"""`mimi`: Kyutai's codec (Défossez et al. 2024), 24 kHz, 12.5 frames per second, up to 32 codebooks of 2,048."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.models.codecs.neural import Facts, Neural

if TYPE_CHECKING:
    from torch import Tensor


class Mimi(Neural):
    """Mimi: the first codebook holds what is said, the others how it sounds."""

    type: Literal["mimi"] = "mimi"
    codebooks: int | None = Field(None, ge=2)
    """Codebooks that are used, of the 32 that it has. Null: 8, as Moshi does."""

    model_types: ClassVar[tuple[str, ...]] = ("mimi",)
    usual: ClassVar[str | None] = "kyutai/mimi"

    def model_class(self) -> Any:
        from transformers import MimiModel

        return MimiModel

    def facts(self, config: Any) -> Facts:
        codebooks = self.used(self.codebooks, config.num_quantizers, usual=8)
        return Facts(config.sampling_rate, config.frame_size, codebooks, config.codebook_size)

    def codes(self, model: Any, wave: Tensor, facts: Facts) -> Tensor:
        return model.encode(wave[None, None], num_quantizers=facts.codebooks).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes).audio_values[0, 0]
