"""Family `transducer`: an audio encoder, a network that reads what was written so far, and a joint of both.

The recurrent neural network transducer (Graves 2012) writes along the frames: at each it writes tokens until it writes
blank, so words come in order, with times, and never run on. Either transformers' models of the kind (Parakeet TDT and
RNNT, Nemotron), or any encoder that `speech_llm` takes with a GRU that is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.models.encoders.section import EncoderSection
from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.kind import Kinds
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import BuiltFamily, TransformersConfig
from stentor.models.text.spelling import Accents
from stentor.models.text.tokenizers import CTCHeadSection, TokenizerSection
from stentor.section import ConfigConflict, Section


@dataclass(frozen=True)
class TransducerKind:
    """Parts of one of transformers' transducers, by the names of its classes there."""

    head: str
    """`TDT` or `RNNT`, as in the class AutoModelFor...; in lower case the loss term."""
    processor: str
    extractor: str
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a new processor."""
    causal: bool = False
    """Whether its convolutions do not look ahead."""

    @property
    def term(self) -> str:
        """The loss term that the model is trained with."""
        return self.head.lower()


KINDS = Kinds(
    parakeet_tdt=TransducerKind("TDT", "Parakeet", "Parakeet", {"decoder_type": "tdt"}),
    parakeet_rnnt=TransducerKind("RNNT", "Parakeet", "Parakeet", {"decoder_type": "rnnt"}),
    nemotron_asr_streaming=TransducerKind("RNNT", "NemotronAsrStreaming", "NemotronAsrStreaming", causal=True),
    nemotron3_5_asr=TransducerKind("RNNT", "Nemotron3_5Asr", "NemotronAsrStreaming", causal=True),
)
"""transformers' transducers by `model_type`: Parakeet, a FastConformer (Rekesh et al. 2023) with an RNN-T or a TDT head
(Xu et al. 2023), and the streaming Nemotrons, in the chunks of their config. What differs between them is data."""


class PredictorSection(Section):
    """The predictor, a GRU that reads the tokens written so far, and the joint network after it."""

    hidden: int = Field(320, ge=1)
    """Width of the GRU and of the joint network."""
    layers: int = Field(1, ge=1)
    """Layers of the GRU."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on its output."""


class TransducerLora(Lora):
    """Low-rank adapters (PEFT). A part with adapters is frozen except for the adapters."""

    targets: list[str] = Field(["encoder.*.q_proj", "encoder.*.v_proj"], min_length=1)
    """Globs on module paths; `*` matches anything. Each must match at least one linear layer."""


class TransducerFamily(BuiltFamily):
    """A transducer: pretrained (Parakeet TDT and RNNT, Nemotron), or any encoder with a new predictor and joint."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["transducer"] = "transducer"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a pretrained transducer."""
    config: TransformersConfig = None
    """Build transformers' model untrained from its config, such as `{model_type: parakeet_tdt}`."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""
    encoder: EncoderSection | None = None
    """Audio encoder of a new transducer, which is built from it with a new predictor and joint."""
    predictor: PredictorSection = PredictorSection()
    tokenizer: TokenizerSection | None = None
    """Tokenizer built from the training transcripts. Null: a pretrained transducer's own tokenizer; for other models,
    characters. With a new tokenizer, a pretrained transducer keeps its encoder and gets a new predictor and joint."""
    accents: Accents | None = None
    """Letters with accents that the tokenizer lacks. `keep`: records with them are refused. `strip`: accents are left
    out (ö is written as o), of the texts of a new tokenizer too; the run reports which. Null: `keep`."""
    ctc: CTCHeadSection | None = None
    """Auxiliary CTC head on the encoder. Null: none."""
    streaming: Streaming | None = None
    """Pretrained Parakeet only: train for streaming, chunk by chunk. Convolutions and features then do not look ahead,
    which transformers does not support by itself. Null: the model reads whole recordings. For other encoders use
    `encoder.streaming`."""
    times: bool = False
    """Add a head on the encoder that predicts, at each frame, the start and end of its word, for word times with a
    resolution of milliseconds. The loss term `times` trains it on records with word times. False: the time of a word is
    the frame at which it is written."""
    lora: TransducerLora | None = None
    """Low-rank adapters. Null: none."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): this takes less memory and is a little
    slower. `4bit` needs bitsandbytes. Null: no quantisation."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `encoder.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    tasks: ClassVar[tuple[str, ...]] = ("transcribe", "words")
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config", "encoder"),)
    has_accents: ClassVar[bool] = True
    hypotheses: ClassVar[tuple[str, ...]] = ("best",)
    implementation: ClassVar[str | None] = __package__

    @model_validator(mode="after")
    def _one_origin(self) -> TransducerFamily:
        check(self.quantize, self.lora)
        if sum(origin is not None for origin in (self.source, self.config, self.encoder)) != 1:
            raise ValueError(
                "give one of `from` (a Hub id or folder), `config` (a transformers config) and `encoder` (the encoder "
                "of a new transducer)"
            )
        if self.accents == "strip" and self.encoder is not None:
            raise ConfigConflict(
                "accents", "`strip` goes with `from` or `config`: with `encoder` all letters are written"
            )
        if self.streaming is not None and self.encoder is not None:
            raise ConfigConflict("streaming", "with `encoder`, write it there: `encoder: {streaming: ...}`")
        if self.streaming is not None and self.streaming.lookahead > 0:
            raise ConfigConflict("streaming.lookahead", "the transformers format cannot store it: leave it out")
        for key in ("ctc", "times") if self.encoder is None else ():
            if getattr(self, key):
                raise ConfigConflict(key, "goes with `encoder`: models of transformers have no such head")
        if self.encoder is None and self.predictor != PredictorSection():
            raise ConfigConflict("predictor", "goes with `encoder`: models of transformers have one, sized by `config`")
        return self

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        """Exports with an encoder of ours, and any folder of transformers with one of its transducers."""
        return config.get("model_type") in ("transducer", *KINDS)

    def decoding_options(self) -> frozenset[str]:
        return frozenset({"beams", "hotwords"})
