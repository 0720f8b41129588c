"""Base of the families of pretrained speech recognisers in which an audio encoder and a projector feed a language
model, and which transformers has as one model with a processor.

Such a family is a subclass of `AudioLLM` with three hooks, a processor (`stentor.models.audio_llm.processor`) and a
model (`stentor.models.audio_llm.modeling`). Its exports are what plain transformers or PEFT loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.errors import DataError
from stentor.models.peft import Lora
from stentor.models.pretrained_section import PretrainedFamily, TransformersConfig
from stentor.models.quantize import Bits, check
from stentor.section import ConfigConflict

if TYPE_CHECKING:
    import torch
    from lhotse.cut import Cut

    from stentor.models.audio_llm.modeling import AudioLLMModel
    from stentor.models.audio_llm.processor import AudioLLMProcessor


class AudioLLMLora(Lora):
    """Low-rank adapters (PEFT). With adapters nothing else is trained."""

    targets: list[str] = Field([f"language_model.*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths below `audio_tower`, `multi_modal_projector`, `language_model` and `lm_head`; `*` matches
    anything. Each must match at least one linear layer. In the audio tower the fourth is called `out_proj`."""


class AudioLLM(PretrainedFamily):
    """A pretrained recogniser with an audio encoder, a projector and a language model, full or with LoRA."""

    model_config = {"populate_by_name": True, "serialize_by_alias": True}

    source: str | None = Field(None, alias="from")
    """Hub id or local folder of the model with its processor."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    config: TransformersConfig = None
    """Build it untrained from the keys of its transformers config (`audio_config`, `text_config`). Needs
    `tokenizer`."""
    tokenizer: str | None = None
    """Hub id or local folder with the processor for a model built from `config`."""
    lora: AudioLLMLora | None = None
    """Low-rank adapters. Null: all weights are trained but those in `freeze`."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): less memory, a little slower. `4bit` needs
    bitsandbytes. Null: as they are."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `audio_tower.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Storage of parts that are not trained (but for adapters). Trained weights are always in float32."""
    max_text_tokens: int = Field(1024, ge=1)
    """Transcripts of more tokens are left out and counted, never cut."""
    token_rate: float = Field(10.0, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16."""
    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)
    implementation: ClassVar[str | None] = __name__
    adapters_alone: ClassVar[bool] = True

    architecture: ClassVar[str]
    """transformers' class of the whole model."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)
    tokenizer_holds: ClassVar[str]
    """What the folder `tokenizer` must hold, for messages."""
    always_float32: ClassVar[tuple[str, ...]] = ()
    """Names of parameters, within their part, that `dtype` leaves alone."""

    @model_validator(mode="after")
    def _one_origin(self) -> AudioLLM:
        check(self.quantize, self.lora)
        if (self.source is None) == (self.config is None):
            kind = self.architecture.removesuffix("ForConditionalGeneration")
            raise ValueError(f"give either `from` (a Hub id or folder) or `config` (keys of a {kind}Config), not both")
        if (self.tokenizer is None) != (self.config is None):
            raise ConfigConflict(
                "tokenizer",
                f"a model built from `config` needs `tokenizer`, a folder with {self.tokenizer_holds}"
                if self.tokenizer is None
                else "a pretrained model comes with its own tokenizer: leave `tokenizer` out",
            )
        return self

    # What a family adds

    def settle(self, settings: dict[str, Any], name: str, **options: Any) -> None:
        """Fill in what the processor of the folder or Hub id `name` knows of an untrained model's config, `settings`.
        Raises OSError or ValueError when it cannot be read."""
        raise NotImplementedError

    def inspect(self, config: Any) -> None:
        """Raise ConfigError for a transformers config that this family cannot work with."""

    def processor_of(self, name: str, config: Any, **options: Any) -> AudioLLMProcessor:
        """The processor of a folder or Hub id, for a model with this transformers config. Raises OSError or ValueError
        when it cannot be read."""
        raise NotImplementedError

    def model_of(self, pretrained: torch.nn.Module, processor: AudioLLMProcessor) -> AudioLLMModel:
        """The model for training and decoding, made of the parts of transformers' model."""
        raise NotImplementedError

    def drop_reason(self, processor: Any, cut: Cut, training: bool) -> tuple[str, str] | None:
        from stentor.data.cut import language_of

        try:
            processor.around(language_of(cut))
        except DataError as error:
            return "unknown_language", f"{cut.id}: {error}"
        return None
