"""Config section of an audio encoder."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.section import PretrainedSection
from stentor.section import ConfigConflict


class EncoderSection(PretrainedSection):
    """The audio encoder: Whisper, wav2vec2, HuBERT, WavLM, UniSpeech, Data2Vec audio or Parakeet (FastConformer)."""

    window: Literal["natural", "30s", "30s_whole"] = "natural"
    """Whisper only. `natural`: the encoder reads the clip at its own length. `30s`: the clip is padded with silence to
    30 seconds, as in Whisper's pretraining. This is slower, and sometimes a little better with a frozen encoder.
    `30s_whole`: the frames of the silence are kept too, as models imported from VoxLM read them."""
    log_mel: Literal["whisper", "parakeet", "fixed"] | None = None
    """Normalisation of the log-mel input. `parakeet` (Parakeet only): zero mean and unit variance of each band over the
    clip, which loses too much in clips well under a second. `whisper`: only a floor. `fixed`: the mean and deviation of
    general audio, or for Whisper one floor for all clips. Null: `fixed` with `streaming`, else the encoder's own."""
    streaming: Streaming | None = None
    """Parakeet and Whisper: train for streaming, chunk by chunk. Convolutions then do not look ahead. Null: the encoder
    reads whole recordings."""

    @model_validator(mode="after")
    def _no_looking_ahead(self) -> EncoderSection:
        if self.streaming is not None and self.log_mel not in (None, "fixed"):
            raise ConfigConflict(
                "log_mel", "for `streaming`, which reads recordings chunk by chunk: write `fixed`, or leave it out"
            )
        kind = (self.config or {}).get("model_type", "whisper")
        if self.streaming is not None and kind not in ("whisper", "parakeet_encoder"):
            raise ConfigConflict("streaming", f"is for the encoders of Parakeet and Whisper, not {kind}: leave it out")
        if self.streaming is not None and self.window != "natural":
            raise ConfigConflict("window", "for `streaming`, which reads recordings chunk by chunk: leave it out")
        return self
