"""Family `omnivoice`: speech from text by masked codec tokens and a bidirectional language model.

The model of k2-fsa/OmniVoice (arXiv 2604.00688): the codec's codebooks of a frame are embedded and summed, stand behind
the style and the text, and those that are masked are predicted where they stand, by a decoder of transformers without
its causal mask. Published checkpoints load, and exports have their layout.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from stentor.errors import ConfigError
from stentor.models.codecs.base import Codec
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.section import PretrainedFamily, PretrainedSection
from stentor.models.transformer.config import TrainedTokenizer
from stentor.section import ConfigConflict


class LLM(PretrainedSection):
    """The backbone: any decoder of transformers whose attention can see in both directions, such as Qwen/Qwen3-0.6B."""


class OmniVoiceTokenizer(TrainedTokenizer):
    """A tokenizer built from the training texts."""

    size: int = Field(500, ge=270)
    """Vocabulary size of `bpe`, special tokens included."""
    phonemes: str | None = None
    """Built-in voice, such as `en-us`, whose rules convert every text to phonemes (IPA) before tokenisation. A model
    trained on little data can then say words that no training text has. Null: letters, as in OmniVoice."""

    @field_validator("phonemes")
    @classmethod
    def _voice(cls, value: str | None) -> str | None:
        from stentor.audio.synth import check_voice

        if value is not None:
            try:
                check_voice(value)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return value


class OmniVoiceLora(Lora):
    """Low-rank adapters (PEFT). The rest of the backbone is frozen; audio embeddings and heads are trained in full."""

    targets: list[str] = Field(
        [f"llm.*.{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")], min_length=1
    )
    """Globs on module paths; `*` matches anything. Each must match at least one linear layer."""


class OmniVoice(PretrainedFamily):
    """Masked codec tokens predicted by a bidirectional language model (OmniVoice)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["omnivoice"] = "omnivoice"
    source: str | None = Field(None, alias="from")
    """Hub id or folder of the OmniVoice model to start from, such as k2-fsa/OmniVoice, or an export."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    llm: LLM | None = None
    """The backbone of a new model. Null with `from`."""
    text: OmniVoiceTokenizer | None = None
    """Null: the language model's own tokenizer. Required when the language model is built from a config."""
    codec: Codec | None = None
    """The audio codec. Null: that of `from`, or none without `from`, which is enough to train on token shards but not
    to synthesise speech."""
    codebooks: int | None = Field(None, ge=1)
    """Codes per frame of a new model. Null: as in the codec, or 8 without one."""
    entries: int | None = Field(None, ge=2)
    """Entries per codebook of a new model; MASK is an additional one. Null: as in the codec, or 1024 without one."""
    attention: Literal["flex", "sdpa"] = "sdpa"
    """Attention kernel, which also sets the default of `data.layout`. `flex`: packed batches, with flex_attention on
    CUDA GPUs (elsewhere with SDPA item by item). `sdpa`: padded batches."""
    lora: OmniVoiceLora | None = None
    """Low-rank adapters. Null: none."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `llm.embed_tokens.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which a frozen pretrained backbone is stored. Trained weights are always float32."""
    tasks: ClassVar[tuple[str, ...]] = ("speak",)
    layouts: ClassVar[tuple[str, ...]] = ("padded", "packed")
    hypotheses: ClassVar[tuple[str, ...]] = ("sampled",)
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "llm"),)
    implementation: ClassVar[str | None] = __package__

    @model_validator(mode="after")
    def _consistent(self) -> OmniVoice:
        if (self.source is None) == (self.llm is None):
            raise ValueError("needs exactly one of `from` (an OmniVoice model) and `llm` (the backbone of a new one)")
        if self.source is not None:
            for key, value in {"text": self.text, "codebooks": self.codebooks, "entries": self.entries}.items():
                if value is not None:
                    raise ConfigConflict(key, "the model of `from` has its own: leave it out")
        elif self.llm is not None and self.llm.config is not None and self.text is None:
            raise ConfigConflict(
                "llm", "a language model built from `config` has no tokenizer: set `model.text: {type: characters}`"
            )
        elif self.llm is not None and self.llm.source is not None and self.text is not None:
            raise ConfigConflict("text", "a pretrained language model comes with its own tokenizer: leave it out")
        return self

    def layout(self) -> Literal["padded", "packed"]:
        return "packed" if self.attention == "flex" else "padded"
