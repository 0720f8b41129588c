"""Front-end settings: the layers of a pretrained self-supervised encoder."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from stentor.models.pretrained_section import PretrainedSection, TransformersConfig


class SSL(PretrainedSection):
    """A pretrained self-supervised encoder (WavLM, HuBERT, wav2vec 2.0) as front-end.

    The model reads a learnt mix of all its layers: their sum weighted by a softmax (Yang et al. 2021, SUPERB).
    """

    example: ClassVar[str] = "{model_type: wavlm, hidden_size: 144}"

    source: str | None = Field(None, alias="from")
    """Hub id or local folder, such as `microsoft/wavlm-base-plus`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wavlm, hidden_size: 144}`."""
    freeze: bool = True
    """Train only the mix of its layers. When it is trained as well, give it a learning rate of its own, about a tenth,
    by `optim.groups: [{params: ["frontend.encoder.*"], lr: 1e-5}]`."""
    normalize: bool | None = None
    """Bring each clip to zero mean and unit variance. Null: as it was pretrained."""
