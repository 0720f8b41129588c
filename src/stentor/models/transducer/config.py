"""Family `transducer`: an audio encoder, a network that reads what was written so far, and a joint of both.

The recurrent neural network transducer (Graves 2012) writes along the frames: at each it writes tokens until it writes
blank, so words come in order, with times, and never run on. Either transformers' models of the kind (Parakeet TDT and
RNNT, Nemotron), or any encoder that `speech_llm` takes with a GRU that is trained here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.data.cut import Cut
from stentor.models.encoders.section import EncoderSection
from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.kind import Kinds
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import BuiltFamily, TransformersConfig
from stentor.models.text.tokenizers import CTCHeadSection, TokenizerSection
from stentor.section import ConfigConflict, Section


@dataclass(frozen=True)
class TransducerKind:
    """Parts of one of transformers' transducers, by the names of its classes there."""

    head: str
    """`TDT` or `RNNT`: of the class AutoModelFor..., and in small letters the loss term."""
    processor: str
    extractor: str
    options: dict[str, Any] = field(default_factory=dict)
    """Mel bins of a new processor."""
    causal: bool = False
    """Whether its convolutions look back only."""

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
    """The network that reads the tokens written so far, a GRU, and the joint behind it."""

    hidden: int = Field(320, ge=1)
    """Width of the GRU and of the joint."""
    layers: int = Field(1, ge=1)
    """Layers of the GRU."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on its output."""


class TransducerLora(Lora):
    """Low-rank adapters (PEFT). A part that gets adapters is frozen but for them."""

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
    """The audio encoder of a transducer that is put together here."""
    predictor: PredictorSection = PredictorSection()
    tokenizer: TokenizerSection | None = None
    """Vocabulary, made from the training transcripts. Null: a pretrained transducer's own tokenizer, for other
    models characters. A pretrained transducer with a new tokenizer keeps its encoder and learns to write again."""
    ctc: CTCHeadSection | None = None
    """Auxiliary CTC head on the encoder. Null: none."""
    streaming: Streaming | None = None
    """Pretrained Parakeets only: train it to hear a recording while it comes, chunk by chunk. Its convolutions then
    look back only, and its features do not look ahead, which transformers alone does not know. Null: it hears
    recordings as a whole. For another encoder it is `encoder.streaming`."""
    times: bool = False
    """A head on the encoder that says at each frame since when and for how long its word is said, for word times to the
    millisecond. The loss term `times` trains it on records with word times. Otherwise words are where they are written,
    to the frame."""
    lora: TransducerLora | None = None
    """Low-rank adapters. Null: none."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): less memory, a little slower. `4bit` needs
    bitsandbytes. Null: as they are."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `encoder.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    tasks: ClassVar[tuple[str, ...]] = ("transcribe", "words")
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config", "encoder"),)
    hypotheses: ClassVar[tuple[str, ...]] = ("best",)
    implementation: ClassVar[str | None] = __package__

    @model_validator(mode="after")
    def _one_origin(self) -> TransducerFamily:
        check(self.quantize, self.lora)
        if sum(origin is not None for origin in (self.source, self.config, self.encoder)) != 1:
            raise ValueError(
                "give one of `from` (a Hub id or folder), `config` (a transformers config) and `encoder` (the encoder "
                "of a transducer that is put together here)"
            )
        if self.streaming is not None and self.encoder is not None:
            raise ConfigConflict("streaming", "with `encoder`, write it there: `encoder: {streaming: ...}`")
        if self.streaming is not None and self.streaming.lookahead > 0:
            raise ConfigConflict("streaming.lookahead", "a folder of transformers has no place for it: leave it out")
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

    def drop_reason(self, processor: Any, cut: Cut, training: bool) -> tuple[str, str] | None:
        from stentor.data.cut import language_of, text_of

        if sentence := processor.unknown_language(language_of(cut)):
            return "unknown_language", f"{cut.id}: {sentence}"
        unknown = processor.unknown_letters(text_of(cut) or "") if training else ""
        if not unknown:
            return None
        return "not_in_alphabet", f"{cut.id}: the model cannot write {unknown}."
