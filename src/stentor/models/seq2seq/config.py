"""Family `seq2seq`: speech recognisers whose decoder attends to an audio encoder, as transformers has them, full or
with LoRA: Whisper (Radford et al. 2022), Moonshine (Jeffries et al. 2024), Moonshine streaming and Cohere ASR.

Which model it is says `model_type` of its config. `MODELS` holds what is known of each without torch; the module
of that name holds its `Processor` (features, prompt, limits) and its `Model` (how its encoder is run), over the shared
ones in processor.py and modeling.py. The names of parts and weights are those of transformers, and so are the exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.models.pretrained.kind import Kinds
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import BuiltFamily, TransformersConfig, check_origin


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that are known without its weights."""

    title: str
    keys: frozenset[str] = frozenset()
    """Keys of the section that only this model has."""
    options: frozenset[str] = frozenset()
    """Options of a transcription call that it supports; see `Family.decoding_options`."""
    translates: bool = False


MODELS: Kinds[ModelFacts] = Kinds(
    whisper=ModelFacts(
        "Whisper", frozenset({"merges", "timestamps", "full_window"}), frozenset({"prompt"}), translates=True
    ),
    moonshine=ModelFacts("Moonshine"),
    moonshine_streaming=ModelFacts("Moonshine streaming"),
    cohere_asr=ModelFacts("Cohere ASR"),
)
"""By `model_type` of transformers; a module of this package has the same name."""


class Seq2SeqLora(Lora):
    """Low-rank adapters (PEFT). Only the adapters are trained."""

    targets: list[str] = Field(["*.q_proj", "*.k_proj", "*.v_proj", "*.o*_proj"], min_length=1)
    """Globs on module paths; `*` matches anything, such as `model.encoder.*.q_proj`. Each must match at least one
    linear layer. The projection behind attention is called `out_proj` in Whisper, `o_proj` in the others."""


class Seq2Seq(BuiltFamily):
    """A pretrained encoder-decoder to fine-tune: Whisper, Moonshine, Moonshine streaming or Cohere ASR."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["seq2seq"] = "seq2seq"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a pretrained model, such as `openai/whisper-small` or `UsefulSensors/moonshine-base`.
    """
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: whisper, d_model: 64, encoder_layers: 2}`;
    its tokenizer has the 256 bytes and the model's special tokens."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    merges: int | None = Field(None, ge=0)
    """Whisper only: number of tokenizer merges to use, counted from the first, for decoders trained with fewer. Null:
    all, as in OpenAI's models."""
    timestamps: float = Field(0.5, ge=0, le=1)
    """Whisper only: share of the training items with word times that are trained with timestamp tokens, so that the
    model does not forget them. Items without word times are trained without."""
    full_window: float = Field(1.0, ge=0, le=1)
    """Whisper only: share of the training batches padded to its full window of 30 s. Other batches end about a second
    after their longest clip, which makes training on short clips many times as fast. `batch_tokens` counts whole
    windows in both cases. Evaluation and transcription always use the full window."""
    lora: Seq2SeqLora | None = None
    """Low-rank adapters. Null: all weights are trained."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): this takes less memory and is a little
    slower. `4bit` needs bitsandbytes. Null: no quantisation."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `model.encoder.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    token_rate: float = Field(25.0, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16."""

    aliases: ClassVar[tuple[str, ...]] = ("whisper",)
    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)
    implementation: ClassVar[str | None] = __package__
    adapters_alone: ClassVar[bool] = True
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        return config.get("model_type") in MODELS

    @model_validator(mode="after")
    def _one_origin(self) -> Seq2Seq:
        check(self.quantize, self.lora)
        check_origin(self, "{model_type: whisper, d_model: 64}")
        return self

    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")

    def facts(self) -> ModelFacts:
        """The facts about this model. For a model at `from` that is not loaded yet, those of Whisper."""
        return MODELS.get(self._model_type or (self.config or {}).get("model_type", ""), MODELS["whisper"])

    def decoding_options(self) -> frozenset[str]:
        return super().decoding_options() | self.facts().options

    def translates(self) -> bool:
        return self.facts().translates
