"""Front-end settings: a pretrained encoder in place of acoustic features."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from stentor.models.pretrained_section import PretrainedSection, TransformersConfig


class SSL(PretrainedSection):
    """A pretrained encoder as front-end: a self-supervised one (WavLM, HuBERT, wav2vec 2.0), Whisper's or Parakeet's.

    Of a self-supervised one the model reads a learnt mix of all its layers: their sum weighted by a softmax (Yang et
    al. 2021, SUPERB). Of the others it reads the output; clips are then no longer than what the encoder has positions
    for (Whisper: 30 s).
    """

    example: ClassVar[str] = "{model_type: wavlm, hidden_size: 144}"

    source: str | None = Field(None, alias="from")
    """Hub id or local folder, such as `microsoft/wavlm-base-plus` or `openai/whisper-tiny.en`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wavlm, hidden_size: 144}`."""
    freeze: bool = True
    """Leave it as it was pretrained; the mix of its layers is trained all the same. When it is trained as well, give it
    a learning rate of its own, about a tenth, by `optim.groups: [{params: ["frontend.encoder.*"], lr: 1e-5}]`."""
    normalize: bool | None = None
    """Bring each clip of raw audio to zero mean and unit variance. Null: as it was pretrained."""
