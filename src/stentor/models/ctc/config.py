"""Family `ctc`: encoders with a CTC head as transformers' AutoModelForCTC loads them.

wav2vec 2.0 (Baevski et al. 2020), HuBERT, WavLM, UniSpeech, Data2Vec audio, MMS with its language adapters (Pratap et
al. 2023) and Parakeet-CTC. Models are fine-tuned unchanged, or a pretrained encoder gets a new head and an alphabet
built from the training transcripts. Exports are plain transformers folders.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import BuiltFamily, TransformersConfig, check_origin
from stentor.models.text.spelling import Accents
from stentor.section import ConfigConflict, Section


class CTCLora(Lora):
    """Low-rank adapters (PEFT). The rest of the encoder is frozen; the head is trained."""

    targets: list[str] | None = Field(None, min_length=1)
    """Globs on module paths; `*` matches anything. Each must match at least one linear layer. Null: the query and
    value projections, for WavLM (whose attention reads its weights past any adapter) the feed-forward layers."""


class LanguageAdapter(Section):
    """Language adapter of MMS: small layers and a head for each language."""

    language: str
    """ISO 639-3 code, such as `deu`."""
    new: bool = False
    """Initialise a new adapter and head, with the alphabet of the training transcripts, for a language that the model
    does not have."""
    only: bool = True
    """Train only the adapter and the head."""


class CTCFamily(BuiltFamily):
    """An encoder with a CTC head (wav2vec 2.0, HuBERT, WavLM, MMS, Parakeet-CTC)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["ctc"] = "ctc"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a pretrained model, with or without a CTC head."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wav2vec2, hidden_size: 144}`."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    alphabet: Literal["own", "transcripts"] | None = None
    """Output alphabet. `own`: the model's own tokenizer. `transcripts`: the characters of the training transcripts,
    with a new head. Null: `own` where the pretrained model has a CTC head, else `transcripts`."""
    accents: Accents | None = None
    """Letters with accents that the alphabet lacks. `keep`: they are letters of their own, and records with them are
    refused. `strip`: they are written without accents (ö as o), and the run reports which; an alphabet made from
    `transcripts` has no accents then. Null: `keep` for subwords and while an alphabet is made, `strip` for characters
    that an alphabet lacks."""
    adapter: LanguageAdapter | None = None
    """Language adapter, for MMS only. Null: the model unchanged."""
    lora: CTCLora | None = None
    """Low-rank adapters. Null: none."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): this takes less memory and is a little
    slower. `4bit` needs bitsandbytes. Null: no quantisation."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `wav2vec2.feature_extractor.*` (the convolutions, often
    left as pretrained); LoRA adapters are never added there."""
    streaming: Streaming | None = None
    """Parakeet only: train for streaming, chunk by chunk. Convolutions and features then do not look ahead, which
    transformers does not support by itself. Null: the model reads whole recordings."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)
    has_accents: ClassVar[bool] = True
    hypotheses: ClassVar[tuple[str, ...]] = ("best",)
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)
    implementation: ClassVar[str | None] = __package__

    def decoding_options(self) -> frozenset[str]:
        return frozenset({"beams", "hotwords"})

    @model_validator(mode="after")
    def _one_origin(self) -> CTCFamily:
        check(self.quantize, self.lora)
        check_origin(self, "{model_type: wav2vec2, hidden_size: 144}")
        if self.config is not None and self.alphabet == "own":
            raise ConfigConflict(
                "alphabet", "a model built from `config` has no tokenizer of its own: use `transcripts`"
            )
        if self.streaming is not None and self.streaming.lookahead > 0:
            raise ConfigConflict("streaming.lookahead", "the transformers format cannot store it: leave it out")
        if self.adapter is not None and self.lora is not None and self.adapter.only:
            raise ConfigConflict(
                "adapter.only", "with `lora` set it `false`: `only` trains nothing but the language adapter"
            )
        return self

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        """Any model folder whose architecture is a `...ForCTC`: exports are plain transformers folders."""
        return any(str(name).endswith("ForCTC") for name in config.get("architectures") or [])
