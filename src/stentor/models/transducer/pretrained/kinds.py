"""transformers' transducers: Parakeet, a FastConformer (Rekesh et al. 2023) with an RNN-T or a TDT head (Xu et al.
2023), and the streaming Nemotrons, in the chunks of their config. What differs between them is data."""

from dataclasses import dataclass, field
from typing import Any

from stentor.models.pretrained.kind import Kinds


@dataclass(frozen=True)
class Kind:
    """What one of transformers' transducers is made of, by the names of its classes there."""

    head: str
    """`TDT` or `RNNT`: of the class AutoModelFor..., and in small letters the loss term."""
    processor: str
    extractor: str
    options: dict[str, Any] = field(default_factory=dict)
    """Of a new processor."""
    causal: bool = False
    """Whether its convolutions look back only."""

    @property
    def term(self) -> str:
        """The loss term that the model is trained with."""
        return self.head.lower()


KINDS = Kinds(
    parakeet_tdt=Kind("TDT", "Parakeet", "Parakeet", {"decoder_type": "tdt"}),
    parakeet_rnnt=Kind("RNNT", "Parakeet", "Parakeet", {"decoder_type": "rnnt"}),
    nemotron_asr_streaming=Kind("RNNT", "NemotronAsrStreaming", "NemotronAsrStreaming", causal=True),
    nemotron3_5_asr=Kind("RNNT", "Nemotron3_5Asr", "NemotronAsrStreaming", causal=True),
)
"""By `model_type`."""
