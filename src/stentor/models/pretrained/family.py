"""Base of families whose models are one class of transformers with a processor. Each kind of model has a class of its
own, selected by the `model_type` of transformers' config. Exports load with plain transformers or PEFT."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.pretrained.kind import Kinds
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import BuiltFamily, TransformersConfig, check_origin
from stentor.section import ConfigConflict


class TransformersFamily(BuiltFamily):
    """A subclass has `lora`, its globs and a folder `kinds`; `audio_llm.build.TransformersBuilder` does the rest."""

    model_config = {"populate_by_name": True, "serialize_by_alias": True}

    source: str | None = Field(None, alias="from")
    """Hub id or local folder of the model with its processor, or a run of ours, adapters included."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    config: TransformersConfig = None
    """Build it untrained from the keys of its transformers config, `model_type` among them. Needs `tokenizer`."""
    tokenizer: str | None = None
    """Hub id or local folder with the processor for a model built from `config`."""
    lora: Lora | None = None
    """Low-rank adapters. Null: all weights are trained except those in `freeze`."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): this takes less memory and is a little
    slower. `4bit` needs bitsandbytes. Null: no quantisation."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which frozen parts of a base model are stored. Trained weights are always float32, as are frozen parts
    that `init` replaces, because the export contains them."""
    adapters_alone: ClassVar[bool] = True
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)
    example: ClassVar[str]
    """A `config`, for messages."""
    among: ClassVar[str]
    """The end of a message about a model of another `model_type`."""
    other_purpose: ClassVar[str]
    """The end of a message about another model of the same `model_type`."""

    @classmethod
    def kinds(cls) -> Kinds[Any]:
        """The class of the processor of each `model_type` of transformers' configs, those of plug-ins included."""
        kinds: Kinds[Any] = import_module(f"{cls.implementation}.processor").KINDS
        return kinds.complete()

    @classmethod
    def unknown(cls, model_type: str) -> str:
        """The end of a sentence about a model of a `model_type` that is not among `kinds`."""
        return f"which is {cls.among}, or another `model.type`."

    @model_validator(mode="after")
    def _one_origin(self) -> TransformersFamily:
        check(self.quantize, self.lora)
        check_origin(self, self.example)
        if self.config is not None:
            self._model_type = str(self.config["model_type"])
            if self._model_type not in self.kinds():
                known = ", ".join(sorted(self.kinds()))
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

    def processor_class(self) -> Any:
        """The class of the model's processor; None where it is not yet known."""
        return self.kinds()[self._model_type] if self._model_type else None

    def recipe_name(self) -> str:
        return self._model_type or self.type

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        kind = cls.kinds().get(str(config.get("model_type")))
        # Models for other purposes, such as Qwen's forced aligner, may have the same `model_type`.
        return kind is not None and kind.architecture in (config.get("architectures") or [kind.architecture])
