"""Family `audio_llm`: pretrained recognisers of transformers in which an audio encoder and a projector feed a language
model.

The differences between models are in one class per model, in `kinds/` (see `stentor.models.audio_llm.processor`),
selected by the `model_type` of transformers' config. Exports load with plain transformers or PEFT.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.delayed.config import DelayedStream
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.lora import Lora

Names = tuple[tuple[str, str], ...]
"""Prefixes of tensor names, ours and those of transformers; the first that fits counts."""
NAMES: Names = (("lm_head.", "lm_head."), ("", "model."))
"""Prefixes of most models."""


class AudioLLMLora(Lora):
    """Low-rank adapters (PEFT). Only the adapters are trained."""

    targets: list[str] = Field([f"language_model.*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths below `language_model`, `lm_head` and the parts for audio, `audio_tower` and
    `multi_modal_projector`, in Granite Speech `encoder` and `projector`. `*` matches anything. Each must match at least
    one linear layer. For Kyutai the default is the same layers under its names (`*.q_proj.linear`)."""


class AudioLLM(TransformersFamily):
    """A pretrained recogniser with an audio encoder, a projector and a language model, trained in full or with LoRA:
    Voxtral, Qwen3-ASR and others. Its `model_type` selects the kind."""

    type: Literal["audio_llm"] = "audio_llm"
    lora: AudioLLMLora | None = None
    """Low-rank adapters. Null: all weights are trained except those in `freeze`."""
    max_text_tokens: int = Field(1024, ge=1)
    """Longest transcript in tokens. Records with longer ones are left out and counted, never cut."""
    token_rate: float = Field(10.0, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16."""
    stream: DelayedStream | None = None
    """Delay of streaming models (Voxtral Realtime, Kyutai). Null: the model's own delay. Voxtral Realtime takes its
    delay as an input: a multiple of 0.08 s, or a range; it was trained with 0.08 to 2.4 s."""
    aliases: ClassVar[tuple[str, ...]] = ("voxtral", "qwen3_asr")
    tasks: ClassVar[tuple[str, ...]] = ("transcribe", "who_said_what")
    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")
    implementation: ClassVar[str | None] = __package__
    example: ClassVar[str] = "{model_type: voxtral, text_config: {hidden_size: 64}}"
    among: ClassVar[str] = "no audio language model known here: give one that docs/finetune.md lists"
    other_purpose: ClassVar[str] = "does not transcribe: give a recogniser"

    @model_validator(mode="before")
    @classmethod
    def _read_delay_seconds(cls, value: Any) -> Any:
        """The name that older run files and exports have for `stream: {delay: ...}`."""
        if not isinstance(value, dict) or "delay_seconds" not in value:
            return value
        value = dict(value)
        delay = value.pop("delay_seconds")
        if delay is not None and value.get("stream") is not None:
            raise ValueError("delay_seconds is the older name of `stream: {delay: ...}`: give one of the two")
        return value if delay is None else {**value, "stream": {"delay": delay}}

    def writes(self, search: str) -> bool:
        kind = self.processor_class()
        return super().writes(search) and (kind is None or not kind.takes_delay)

    def decoding_options(self) -> frozenset[str]:
        kind = self.processor_class()
        return super().decoding_options() | (kind.hints if kind else frozenset())

    def translates(self) -> bool:
        kind = self.processor_class()  # refused when the model is built, where it is not yet known
        return kind is None or kind.translates
