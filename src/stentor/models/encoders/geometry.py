"""Geometry of audio encoders: features, frame rate and lengths, known without weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.encoders.features import Features, fixed_mel, fixed_whisper_mel
from stentor.models.encoders.streaming.chunks import Streaming

WAVE = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio")
"""Encoders that read raw audio through a stack of convolutions without padding."""
SAMPLE_RATE = 16000
HOP = 160  # samples between log-mel frames
LogMel = Literal["whisper", "parakeet", "fixed", "fixed_whisper"]


@dataclass(frozen=True)
class Geometry:
    """Shapes of an encoder's input and output, all derived from its transformers config."""

    kind: Literal["mel", "wave"]
    convs: tuple[tuple[int, int, int], ...]
    """(kernel, stride, padding) of each convolution over time."""
    mels: int = 80
    log_mel: LogMel = "whisper"
    """Kind of log-mel: Whisper's (floor 8 decades below the maximum), Parakeet's (mean and variance of each band), or
    one that does not look ahead (see `fixed_features`)."""
    normalize: bool = False
    """Raw audio only: zero mean and unit variance for each clip."""
    window: int | None = None
    """Samples that every clip is padded to before the encoder. None: as long as the longest clip of the batch."""
    whole_window: bool = False
    """Keep the frames of the padding, which the language model then reads."""
    max_frames: int | None = None
    """Most frames that the encoder has positions for."""

    @classmethod
    def of_export(cls, facts: dict[str, Any]) -> Geometry:
        """From the contents of preprocessor_config.json."""
        return cls(**{**facts, "convs": tuple(tuple(conv) for conv in facts["convs"])})

    @property
    def frame_rate(self) -> float:
        """Encoder frames per second."""
        return SAMPLE_RATE / (HOP if self.kind == "mel" else 1) / prod(stride for _, stride, _ in self.convs)

    @property
    def max_samples(self) -> int | None:
        """Longest clip in samples. None: any length."""
        if self.max_frames is None:
            return self.window
        return min(self.window or 1 << 62, int(self.max_frames / self.frame_rate * SAMPLE_RATE))

    def steps(self, samples: int) -> int:
        """Length of the encoder's input: log-mel frames or samples."""
        if self.whole_window:
            samples = self.window or samples
        if self.fixed_features is not None:
            return (samples + HOP // 2) // HOP
        return samples // HOP if self.kind == "mel" else samples

    @property
    def fixed_features(self) -> Features | None:
        """The log-mel where it does not look ahead."""
        makes = {"fixed": fixed_mel, "fixed_whisper": fixed_whisper_mel}.get(self.log_mel)
        return None if makes is None else makes(self.mels)

    def frames(self, steps: Any) -> Any:
        """Encoder frames of an input of `steps`; takes ints and integer tensors."""
        for kernel, stride, padding in self.convs:
            steps = (steps + 2 * padding - kernel) // stride + 1
        return steps


def geometry(
    config: Any,
    window: str = "natural",
    normalize: bool | None = None,
    log_mel: LogMel | None = None,
    where: str = "model.encoder",
) -> Geometry:
    """The geometry of an encoder from its transformers config. Raises ConfigError for unknown kinds."""
    kind = config.model_type
    if kind == "whisper" and (log_mel in (None, "whisper") or (log_mel == "fixed" and window == "natural")):
        return Geometry(
            "mel",
            ((3, 1, 1), (3, 2, 1)),
            mels=config.num_mel_bins,
            log_mel="fixed_whisper" if log_mel == "fixed" else "whisper",
            max_frames=config.max_source_positions,
            window=2 * config.max_source_positions * HOP if window != "natural" else None,
            whole_window=window == "30s_whole",
        )
    if log_mel is not None and kind != "parakeet_encoder":
        raise ConfigError(f"model.encoder.log_mel: {log_mel} is not for this encoder ({kind}, window {window}).")
    if window != "natural":
        raise ConfigError(f"model.encoder.window: {window} is for Whisper encoders; {kind} runs at natural length.")
    if kind == "parakeet_encoder":
        kernel, stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
        layers = config.subsampling_factor.bit_length() - 1
        return Geometry(
            "mel",
            ((kernel, stride, (kernel - 1) // 2),) * layers,
            mels=config.num_mel_bins,
            log_mel=log_mel or "parakeet",
            max_frames=config.max_position_embeddings,
        )
    if kind in WAVE:
        convs = tuple((kernel, stride, 0) for kernel, stride in zip(config.conv_kernel, config.conv_stride))
        layer_norm = kind == "data2vec-audio" or config.feat_extract_norm == "layer"
        return Geometry("wave", convs, normalize=layer_norm if normalize is None else normalize)
    raise ConfigError(
        f"{where}: {kind} encoders are not supported; known are whisper, parakeet_encoder, {', '.join(WAVE)}."
    )


def mask(lengths: Tensor, size: int) -> Tensor:
    """True at valid positions, bool [B, size], from lengths [B]."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def check_streaming(streaming: Streaming | None, config: Any, place: str) -> None:
    """Raise ConfigError for encoders that cannot read audio chunk by chunk."""
    if streaming is None:
        return
    if config.model_type == "whisper":
        return
    if config.model_type != "parakeet_encoder":
        raise ConfigError(
            f"{place} is for the encoders of Whisper and Parakeet (model_type: whisper or parakeet_encoder), not "
            f"{config.model_type}: leave it out."
        )
    kernel, stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
    if kernel - (kernel - 1) // 2 > stride:
        raise ConfigError(
            f"{place}: a subsampling with kernels of {kernel} and a stride of {stride} looks ahead; kernels of 3 with "
            "a stride of 2 do not."
        )
