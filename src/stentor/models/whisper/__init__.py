"""Family `whisper`: Whisper (Radford et al. 2022) as transformers' WhisperForConditionalGeneration, full or with LoRA.

Trained on the window of 30 s that it was pretrained on and that plain transformers code gives it, or partly on shorter
ones (`full_window`). The names of its parts and weights are those of transformers, and so are its exports.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.models.base import Bundle, Family
from stentor.models.peft import Lora
from stentor.models.pretrained_section import TransformersConfig, check_origin
from stentor.models.quantize import Bits, check

if TYPE_CHECKING:
    from lhotse.cut import Cut


class WhisperLora(Lora):
    """Low-rank adapters (PEFT). Everything but the adapters is frozen."""

    targets: list[str] = Field(["*.q_proj", "*.k_proj", "*.v_proj", "*.out_proj"], min_length=1)
    """Globs on module paths; `*` matches anything, such as `model.encoder.*.q_proj`. Each must match at least one
    linear layer."""


class Whisper(Family):
    """Whisper, to be fine-tuned."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["whisper"] = "whisper"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a pretrained Whisper, such as `openai/whisper-small`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{d_model: 64, encoder_layers: 2}`; its tokenizer has the
    256 bytes and Whisper's special tokens."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    merges: int | None = Field(None, ge=0)
    """Cut texts into tokens with only the first so many merges of the tokenizer, for decoders that learnt no others.
    Null: all, as OpenAI's models did."""
    timestamps: float = Field(0.5, ge=0, le=1)
    """Share of the training items with known word times that are trained with Whisper's timestamp tokens, so that the
    model does not forget them. Items without word times never are."""
    full_window: float = Field(1.0, ge=0, le=1)
    """Share of the training batches that fill Whisper's window of 30 s. The input of the others ends about a second
    after their longest clip, which trains short clips many times as fast; `batch_tokens` counts whole windows all the
    same. Evaluation and transcription always fill the window."""
    lora: WhisperLora | None = None
    """Low-rank adapters. Null: all weights are trained."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): less memory, a little slower. `4bit` needs
    bitsandbytes. Null: as they are."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `model.encoder.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    token_rate: float = Field(25.0, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16."""

    wrap_layers: ClassVar[tuple[str, ...]] = ("WhisperEncoderLayer", "WhisperDecoderLayer")
    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)
    implementation: ClassVar[str | None] = __name__
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)

    @model_validator(mode="after")
    def _one_origin(self) -> Whisper:
        check(self.quantize, self.lora)
        check_origin(self)
        return self

    def decoding_options(self) -> frozenset[str]:
        return super().decoding_options() | {"prompt"}

    def drop_reason(self, processor: Any, cut: Cut, training: bool) -> tuple[str, str] | None:
        from stentor.data.cut import language_of

        message = processor.drop_reason(language_of(cut))
        return message and ("unknown_language", f"{cut.id}: {message}.")

    def save_ct2(self, bundle: Bundle, folder: Path, quantization: str | None) -> None:
        """Write what CTranslate2 and faster-whisper load, adapters folded in."""
        from stentor.models.whisper.ct2 import save

        save(bundle, folder, quantization)
