"""Front-end settings: a pretrained encoder in place of acoustic features."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from stentor.models.pretrained.section import PretrainedSection, TransformersConfig
from stentor.section import ConfigConflict


class SSL(PretrainedSection):
    """A pretrained encoder as front-end: a self-supervised one (WavLM, HuBERT, wav2vec 2.0), Whisper's or Parakeet's.

    The model reads its output or a mix of its layers. Clips for Whisper and Parakeet are no longer than what these have
    positions for (Whisper: 30 s).
    """

    example: ClassVar[str] = "{model_type: wavlm, hidden_size: 144}"

    source: str | None = Field(None, alias="from")
    """Hub id or local folder, such as `microsoft/wavlm-base-plus` or `openai/whisper-tiny.en`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wavlm, hidden_size: 144}`."""
    mix: bool | None = None
    """Read a learnt mix of all its layers, their sum weighted by a softmax (Yang et al. 2021, SUPERB), and not the
    output. Null: of a self-supervised one, whose last layers are less about speech than those in the middle."""
    subsample: int = Field(1, ge=1)
    """Of so many frames the mean is read: 5 makes 10 frames a second of Whisper's 50, enough to label speakers, and
    what is stored as much smaller."""
    freeze: bool = True
    """Leave it as it was pretrained; the mix of its layers is trained all the same. When it is trained as well, give it
    a learning rate of its own, about a tenth, by `optim.groups: [{params: ["frontend.encoder.*"], lr: 1e-5}]`."""
    store: Path | None = None
    """Folder for the frames of a frozen encoder: training audio that it has heard before, in this run or another, is
    not encoded again, and an epoch costs what the layers behind it cost. Whisper tiny takes 140 MB an hour, with
    `mix` five times as much. For audio that augmentation leaves as it is or changes in a few ways, such as `speed`.
    Null: encoded each time."""
    normalize: bool | None = None
    """Bring each clip of raw audio to zero mean and unit variance. Null: as it was pretrained."""

    @model_validator(mode="after")
    def _stored_frames_stay(self) -> SSL:
        if self.store is not None and not self.freeze:
            raise ConfigConflict("store", "the frames of an encoder that is trained change: leave it out")
        return self
