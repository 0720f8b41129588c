"""`higgs_audio_v2`: Boson AI's codec, which OmniVoice uses: 24 kHz, 25 frames per second, 8 codebooks of 1,024."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.models.codecs.neural import CodecGeometry, Neural
from stentor.models.codecs.resample import with_resample

if TYPE_CHECKING:
    from torch import Tensor

MODELING = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
"""By its whole name: without torchaudio, transformers hides it."""


class HiggsAudioV2(Neural):
    """Higgs Audio v2: acoustic and semantic (HuBERT) features in the same codebooks."""

    type: Literal["higgs_audio_v2"] = "higgs_audio_v2"
    codebooks: int | None = Field(None, ge=1)
    """Codebooks that are used, of those that it has. Null: all."""

    model_types: ClassVar[tuple[str, ...]] = ("higgs_audio_v2_tokenizer",)
    default_source: ClassVar[str | None] = "eustlb/higgs-audio-v2-tokenizer"

    def model_class(self) -> Any:
        with with_resample():  # the module imports torchaudio, for this one function
            modeling = import_module(MODELING)
        return modeling.HiggsAudioV2TokenizerModel

    def geometry(self, config: Any) -> CodecGeometry:
        codebooks = self.num_codebooks(self.codebooks, config.num_quantizers)
        return CodecGeometry(config.sample_rate, config.hop_length, codebooks, config.codebook_size)

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        return model.encode(wave[None, None]).audio_codes[0]

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        return model.decode(codes).audio_values[0, 0]
