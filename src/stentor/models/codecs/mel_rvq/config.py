"""`mel_rvq`: residual k-means over stacked log-mel frames, fitted in seconds, and a decoder trained in minutes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.codecs.base import AudioCodec, Codec
from stentor.section import Section

if TYPE_CHECKING:
    import numpy as np

DECODING = {"iterations", "momentum"}
"""Keys that may be set for a codec that exists already."""


class Decoder(Section):
    """A small network that turns the codes' mel frames into audio: pulses at a predicted pitch and noise, filtered."""

    steps: int = Field(1000, ge=1)
    """Number of training steps, each on about 10 s of audio. 1,000 steps take about two minutes on one core."""
    minutes: float = Field(20.0, gt=0)
    """Minutes of audio to train on, taken from the start of the data and kept in memory (4 MB a minute)."""
    width: int = Field(128, ge=8)
    """Number of channels."""
    layers: int = Field(4, ge=1)
    """Number of blocks. Each spans 7 mel frames."""
    lr: float = Field(2e-3, gt=0)
    """Peak learning rate (AdamW, cosine)."""


class MelRVQ(Codec):
    """Residual vector quantisation of log-mel frames by k-means."""

    type: Literal["mel_rvq"] = "mel_rvq"
    codebooks: int = Field(4, ge=1, le=64)
    """Codes of each frame: each codebook quantises what the ones before left over."""
    entries: int = Field(256, ge=2, le=65536)
    """Entries of each codebook."""
    sample_rate: int = Field(16000, ge=8000, le=48000)
    """Hz of the audio that it takes and gives."""
    mels: int = Field(80, ge=8, le=256)
    """Mel filters."""
    hop: int = Field(160, ge=16)
    """Samples between mel frames."""
    window: int = Field(640, ge=32)
    """Samples of the Hann window of a mel frame."""
    stack: int = Field(2, ge=1, le=16)
    """Mel frames in each frame of codes: with a hop of 160 samples at 16 kHz, 2 makes 50 frames per second."""
    floor: float = Field(1e-6, gt=0)
    """Added to mel powers before the logarithm: what is much quieter counts as silence. Speech at a peak of 0.9 has
    mel powers up to about 3."""
    fit_frames: int = Field(40000, ge=100)
    """Most frames of codes that it is fitted on; of more, a random part is taken."""
    rounds: int = Field(15, ge=1)
    """Rounds of k-means."""
    decoder: Decoder | None = None
    """Network that decodes, trained after the codebooks are fitted; `{}` for the usual one. Null: Griffin-Lim, which
    needs no training and sounds metallic."""
    iterations: int = Field(32, ge=0)
    """Iterations of Griffin-Lim for each clip that is decoded."""
    momentum: float = Field(0.99, ge=0, lt=2)
    """Acceleration of Griffin-Lim (Perraudin et al. 2013); 0 is the plain algorithm."""

    fits: ClassVar[bool] = True
    model_types: ClassVar[tuple[str, ...]] = ("mel_rvq",)

    @model_validator(mode="after")
    def _valid(self) -> MelRVQ:
        if self.window < 2 * self.hop:
            raise ValueError("`window` must be at least twice `hop`")
        fixed = self.model_fields_set - DECODING - {"type", "source", "revision"}
        if self.source is not None and fixed:
            raise ValueError(f"{', '.join(sorted(fixed))}: the codec of `from` has its own; remove the key or `from`")
        return self

    @property
    def rate(self) -> int:
        return self.sample_rate

    def read(self, folder: Path) -> AudioCodec:
        from stentor.models.codecs.mel_rvq.codec import MelRVQCodec

        return MelRVQCodec.load(folder, {key: getattr(self, key) for key in DECODING & self.model_fields_set})

    def fit(self, audios: Iterable[np.ndarray], seed: int = 0) -> AudioCodec:
        """Fitted on audio, float32 [samples] at `sample_rate`; the same for the same audio in the same order and seed.

        Raises DataError without a clip of at least one frame.
        """
        from stentor.models.codecs.mel_rvq.codec import MelRVQCodec

        return MelRVQCodec.fit(self, audios, seed)
