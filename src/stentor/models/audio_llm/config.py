"""Family `audio_llm`: pretrained recognisers in which an audio encoder and a projector feed a language model, and which
transformers has as one model with a processor.

What differs between such models is one class a model, in `kinds/` (see `stentor.models.audio_llm.processor`), known by
the `model_type` of transformers' config. Exports are what plain transformers or PEFT loads.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.delayed.config import DelayedStream
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.lora import Lora

Names = tuple[tuple[str, str], ...]
"""Prefixes of tensor names here and in transformers; the first that matches counts."""
NAMES: Names = (("lm_head.", "lm_head."), ("", "model."))
"""Those of most models."""


class AudioLLMLora(Lora):
    """Low-rank adapters (PEFT). With adapters nothing else is trained."""

    targets: list[str] = Field([f"language_model.*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths below `language_model`, `lm_head` and the parts for audio, `audio_tower` and
    `multi_modal_projector`, in Granite Speech `encoder` and `projector`. `*` matches anything. Each must match at least
    one linear layer. Where none are given, Kyutai's are the same layers under its names (`*.q_proj.linear`)."""


class AudioLLM(TransformersFamily):
    """A pretrained recogniser with an audio encoder, a projector and a language model, full or with LoRA: Voxtral,
    Qwen3-ASR and others. Which one it is follows from its `model_type`."""

    type: Literal["audio_llm"] = "audio_llm"
    lora: AudioLLMLora | None = None
    """Low-rank adapters. Null: all weights are trained but those in `freeze`."""
    max_text_tokens: int = Field(1024, ge=1)
    """Transcripts of more tokens are left out and counted, never cut."""
    token_rate: float = Field(10.0, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16."""
    stream: DelayedStream | None = None
    """Delay of models that write while they listen (Voxtral Realtime, Kyutai). Null: the model's own delay. Voxtral
    Realtime is given it: a whole number of frames of 0.08 s, or the least and the most, trained with 0.08 to 2.4 s."""
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
