"""Which encoders of transformers hear recordings while they come, and how."""

from __future__ import annotations

from typing import Any

from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder
from stentor.models.encoders.streaming.fastconformer import FastConformerChunks
from stentor.models.encoders.streaming.nemotron import NemotronChunks
from stentor.models.encoders.streaming.whisper import WhisperChunks
from stentor.models.pretrained.kind import Kinds

KINDS: Kinds[type[FastConformerChunks | WhisperChunks]] = Kinds(
    whisper=WhisperChunks, parakeet_encoder=FastConformerChunks, nemotron_asr_streaming_encoder=NemotronChunks
)
"""By `model_type`."""


class HearsChunks:
    """A model with such an `encoder`."""

    encoder: Any

    def chunk_encoder(self, processor: Any, seconds: tuple[float, float]) -> ChunkEncoder:
        """What hears recordings while they come, in chunks and with a reach of so many seconds, for models that can
        (their processor has `streaming`)."""
        return KINDS[self.encoder.config.model_type](self.encoder, processor, seconds)
