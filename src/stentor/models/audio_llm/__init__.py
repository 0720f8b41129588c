"""Family `audio_llm`: pretrained recognisers in which an audio encoder and a projector feed a language model, and which
transformers has as one model with a processor.

What differs between such models is one class a model, in `kinds/` (see `stentor.models.audio_llm.processor`), known by
the `model_type` of transformers' config. Exports are what plain transformers or PEFT loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from stentor.models.peft import Lora
from stentor.models.pretrained_section import PretrainedFamily, TransformersConfig, check_origin
from stentor.models.quantize import Bits, check
from stentor.section import ConfigConflict

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.models.audio_llm.processor import AudioLLMProcessor

    Processor = type[AudioLLMProcessor]


class AudioLLMLora(Lora):
    """Low-rank adapters (PEFT). With adapters nothing else is trained."""

    targets: list[str] = Field([f"language_model.*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths below `language_model`, `lm_head` and the parts for audio, `audio_tower` and
    `multi_modal_projector`, in Granite Speech `encoder` and `projector`. `*` matches anything. Each must match at least
    one linear layer. Where none are given, Kyutai's are the same layers under its names (`*.q_proj.linear`)."""


class AudioLLM(PretrainedFamily):
    """A pretrained recogniser with an audio encoder, a projector and a language model, full or with LoRA: Voxtral,
    Qwen3-ASR and others. Which one it is follows from its `model_type`."""

    model_config = {"populate_by_name": True, "serialize_by_alias": True}

    type: Literal["audio_llm"] = "audio_llm"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of the model with its processor, such as mistralai/Voxtral-Mini-3B-2507."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    config: TransformersConfig = None
    """Build it untrained from the keys of its transformers config, `model_type` (such as `voxtral`) among them. Needs
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
    delay_seconds: float | None = Field(None, gt=0)
    """Of models that write while they listen (Voxtral Realtime, Kyutai): seconds after which a word is written. Null:
    the model's own. For Voxtral Realtime a whole number of frames of 0.08 s, trained with 0.08 to 2.4 s."""
    aliases: ClassVar[tuple[str, ...]] = ("voxtral", "qwen3_asr")
    tasks: ClassVar[tuple[str, ...]] = ("transcribe", "who_said_what")
    implementation: ClassVar[str | None] = __name__
    adapters_alone: ClassVar[bool] = True
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)

    _model_type: str | None = PrivateAttr(default=None)
    """transformers' `model_type`; with `from` it is known once the model's config was read."""

    @model_validator(mode="after")
    def _one_origin(self) -> AudioLLM:
        check(self.quantize, self.lora)
        check_origin(self, "{model_type: voxtral, text_config: {hidden_size: 64}}")
        if self.config is not None:
            from stentor.models.audio_llm.kinds import known_kinds

            self._model_type = str(self.config["model_type"])
            if self._model_type not in known_kinds():
                known = ", ".join(sorted(known_kinds()))
                raise ConfigConflict("config.model_type", f"'{self._model_type}' is none of {known}")
        kind = self.processor_class()
        if (self.tokenizer is None) != (self.config is None):
            raise ConfigConflict(
                "tokenizer",
                f"a model built from `config` needs `tokenizer`, a folder with {kind.tokenizer_holds}"
                if kind
                else "a pretrained model comes with its own tokenizer: leave `tokenizer` out",
            )
        return self

    def processor_class(self) -> Processor | None:
        """The class of the model's processor; None where it is not yet known."""
        from stentor.models.audio_llm.kinds import known_kinds

        return known_kinds()[self._model_type] if self._model_type else None

    def recipe_name(self) -> str:
        return self._model_type or self.type

    @classmethod
    def from_alias(cls, alias: str, keys: dict[str, Any]) -> dict[str, Any]:
        config = keys.get("config")
        return {**keys, "config": {"model_type": alias, **config}} if isinstance(config, dict) else keys

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        from stentor.models.audio_llm.kinds import known_kinds

        kind = known_kinds().get(str(config.get("model_type")))
        # Models for other purposes, such as Qwen's forced aligner, may have the same `model_type`.
        return kind is not None and kind.architecture in (config.get("architectures") or [kind.architecture])

    def decoding_options(self) -> frozenset[str]:
        kind = self.processor_class()
        return super().decoding_options() | (kind.hints if kind else frozenset())

    def translates(self) -> bool:
        kind = self.processor_class()  # refused when the model is built, where it is not yet known
        return kind is None or kind.translates

    def drop_reason(self, processor: Any, cut: Cut, training: bool) -> tuple[str, str] | None:
        return processor.drop_reason(cut, training)  # type: ignore[no-any-return]
