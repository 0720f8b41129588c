"""Config section of an audio encoder."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.section import PretrainedSection
from stentor.section import ConfigConflict


class EncoderSection(PretrainedSection):
    """The audio encoder: Whisper, wav2vec2, HuBERT, WavLM, UniSpeech, Data2Vec audio or Parakeet (FastConformer)."""

    window: Literal["natural", "30s"] = "natural"
    """Whisper only. `natural`: the encoder sees the clip as long as it is. `30s`: silence is added up to 30 seconds, as
    Whisper was pretrained; slower, sometimes a little better with a frozen encoder."""
    log_mel: Literal["whisper", "parakeet", "fixed"] | None = None
    """Kind of log-mel that it reads. `parakeet` (for Parakeet alone) brings each band of the clip to zero mean and unit
    variance, which takes too much from clips well under a second; `whisper` only floors it; `fixed` brings it to the
    mean and deviation of general audio, or for Whisper gives it one floor, whatever the clip. Null: `fixed` with
    `streaming`, else the encoder's."""
    streaming: Streaming | None = None
    """Parakeet and Whisper: train it to hear a recording while it comes, chunk by chunk. Its convolutions then look
    back only. Null: it hears recordings as a whole."""

    @model_validator(mode="after")
    def _no_looking_ahead(self) -> EncoderSection:
        if self.streaming is not None and self.log_mel not in (None, "fixed"):
            raise ConfigConflict(
                "log_mel", "for `streaming`, which hears recordings while they come: write `fixed`, or leave it out"
            )
        kind = (self.config or {}).get("model_type", "whisper")
        if self.streaming is not None and kind not in ("whisper", "parakeet_encoder"):
            raise ConfigConflict("streaming", f"is for the encoders of Parakeet and Whisper, not {kind}: leave it out")
        if self.streaming is not None and self.window != "natural":
            raise ConfigConflict("window", "for `streaming`, which hears recordings while they come: leave it out")
        return self
