"""Audio encoders of transformers, run so that a clip gives the same frames in any batch.

`Geometry` holds what is known without weights: features, frame rate, lengths. `encode` runs an encoder on a padded
batch: every convolution sees zeros beyond the end of a clip, as it would if the clip came alone, and attention never
sees padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.errors import ConfigError
from stentor.models.encoders.features import Features, fixed_mel, fixed_whisper_mel
from stentor.models.encoders.streaming.chunks import Streaming, chunk_mask
from stentor.models.encoders.streaming.layers import CausalConv, Lookahead

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
    """Whose log-mel: Whisper's (floor 8 decades below the maximum), Parakeet's (mean and variance of each band), or one
    that does not look ahead (see `fixed_features`)."""
    normalize: bool = False
    """Raw audio only: zero mean and unit variance for each clip."""
    window: int | None = None
    """Samples that every clip is padded to before the encoder. None: as long as the longest clip of the batch."""
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
            window=2 * config.max_source_positions * HOP if window == "30s" else None,
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
        layer_norm = getattr(config, "feat_extract_norm", "layer") == "layer"
        return Geometry("wave", convs, normalize=layer_norm if normalize is None else normalize)
    raise ConfigError(
        f"{where}: {kind} encoders are not supported; known are whisper, parakeet_encoder, {', '.join(WAVE)}."
    )


def mask(lengths: Tensor, size: int) -> Tensor:
    """True at valid positions, bool [B, size], from lengths [B]."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def encode(
    encoder: Any,
    shape: Geometry,
    features: Tensor,
    lengths: Tensor,
    chunks: Tensor | None = None,
    states: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Encoder frames of a padded batch.

    `features`: log-mel [B, mels, T] or audio [B, T]; `lengths` [B] in the same steps; `chunks` [B, 3]: what each item's
    frames see of one another (see `Streaming.draw`), for encoders that `adjust` made to hear chunk by chunk. Returns
    hidden states [B, frames, width], zero at padding, and their lengths [B]; a list `states` gets those of the layers'
    input and of each layer but the last, whose are returned after its norm. Wave encoders whose first convolution
    has a group norm (wav2vec2-base) get the statistics of each clip alone, so they too are independent of the
    batch; transformers itself lets padding into these statistics.
    """
    frames = shape.frames(lengths)
    if encoder.config.model_type == "whisper":
        if shape.window is not None:  # as pretrained: silence is part of the input, only its frames are dropped later
            hidden = whisper_layers(encoder, F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))), states=states)
        else:
            hidden = _whisper(encoder, features, lengths, frames, chunks, states)
    elif encoder.config.model_type == "parakeet_encoder":
        keep = mask(lengths, features.shape[2])
        features = (features * keep[:, None]).transpose(1, 2)
        if hasattr(encoder, "lookahead"):
            hidden = _chunked(encoder, features, keep, frames, chunks)
        else:
            hidden = _last(encoder(features, attention_mask=keep, output_hidden_states=states is not None), states)
    else:
        keep = mask(lengths, features.shape[1])
        hidden = _last(_wave(encoder, features * keep, keep, lengths, states is not None), states)
    valid = mask(frames, hidden.shape[1])[..., None]
    if states is not None:
        states[:] = [state * valid for state in states]
    return hidden * valid, frames


def _last(output: Any, states: list[Tensor] | None) -> Tensor:
    """The frames in an output of transformers; its other hidden states go into `states`."""
    if states is not None:
        states += output.hidden_states[:-1]
    frames: Tensor = output.last_hidden_state
    return frames


def _chunked(encoder: Any, features: Tensor, keep: Tensor, frames: Tensor, chunks: Tensor | None) -> Tensor:
    """transformers' ParakeetEncoder as it is, but for its lookahead and the mask."""
    x = encoder.subsampling(features, keep) * encoder.input_scale
    valid = mask(frames, x.shape[1])
    x = x if encoder.lookahead is None else encoder.lookahead(x, valid)
    positions = F.dropout(encoder.encode_positions(x), encoder.dropout_positions, encoder.training)
    x = F.dropout(x, encoder.dropout, encoder.training)
    visible = valid[:, None] & valid[:, :, None]
    visible = visible if chunks is None else visible & chunk_mask(chunks, x.shape[1])
    for layer in encoder.layers:
        if encoder.training and encoder.layerdrop > 0 and torch.rand(()) < encoder.layerdrop:
            continue
        x = layer(x, attention_mask=visible[:, None], position_embeddings=positions)
    return x


def _whisper(
    encoder: Any, features: Tensor, lengths: Tensor, frames: Tensor, chunks: Tensor | None, states: list[Tensor] | None
) -> Tensor:
    """Whisper's encoder at any length: transformers' own forward insists on 30 s and has no mask."""
    valid = mask(lengths, features.shape[2])[:, None]
    hidden = F.gelu(encoder.conv1(features * valid)) * valid
    hidden = F.gelu(encoder.conv2(hidden))
    valid = mask(frames, hidden.shape[2])
    if getattr(encoder, "lookahead", None) is not None:
        hidden = encoder.lookahead(hidden.transpose(1, 2), valid).transpose(1, 2)
    attend, first = valid[:, None, None, :], None
    if chunks is not None:
        itself = torch.eye(hidden.shape[2], dtype=torch.bool, device=hidden.device)  # padding sees something, too
        attend, first = attend & chunk_mask(chunks, hidden.shape[2])[:, None] | itself, chunks[:, 2]
    if encoder.config._attn_implementation == "eager":  # adds the mask to the scores
        attend = torch.zeros_like(attend, dtype=hidden.dtype).masked_fill(~attend, torch.finfo(hidden.dtype).min)
    return whisper_layers(encoder, hidden, attend, first, states)


def whisper_layers(
    encoder: Any,
    hidden: Tensor,
    attend: Tensor | None = None,
    first: Tensor | None = None,
    states: list[Tensor] | None = None,
) -> Tensor:
    """The layers of transformers' WhisperEncoder behind its convolutions [B, width, T], at any length up to 1500; its
    own forward refuses all but 30 s. `attend`: the attention mask; `first`: the numbers [B] of the first frames, which
    have position 0 else and again after 1500; `states`: see `encode`."""
    hidden = hidden.transpose(1, 2)
    if first is None:
        hidden = hidden + encoder.embed_positions.weight[: hidden.shape[1]]
    else:
        hidden = hidden + whisper_positions(encoder, first, hidden.shape[1])
    hidden = F.dropout(hidden, encoder.dropout, encoder.training)
    for layer in encoder.layers:
        if states is not None:
            states.append(hidden)
        if encoder.training and encoder.layerdrop > 0 and torch.rand(()) < encoder.layerdrop:
            continue
        hidden = layer(hidden, attend)
    return encoder.layer_norm(hidden)


def whisper_positions(encoder: Any, first: Tensor, frames: int) -> Tensor:
    """Positions [B, frames, width] of frames from the `first` [B] on, which come round every 1500."""
    weight: Tensor = encoder.embed_positions.weight
    return weight[(first[:, None] + torch.arange(frames, device=first.device)) % len(weight)]


def _wave(encoder: Any, audio: Tensor, keep: Tensor, lengths: Tensor, states: bool) -> Any:
    first = encoder.feature_extractor.conv_layers[0]
    norm = getattr(first, "layer_norm", None)  # layers without a norm have no such attribute
    if isinstance(norm, ClipNorm):
        norm.frames = (lengths - first.conv.kernel_size[0]) // first.conv.stride[0] + 1
    return encoder(audio, attention_mask=keep.long(), output_hidden_states=states)


class ClipNorm(nn.GroupNorm):
    """Group norm of [B, C, T] that leaves padding out of the statistics of each clip.

    `frames` [B] must be set before each forward. Parameters are those of the GroupNorm it replaces.
    """

    frames: Tensor

    @classmethod
    def of(cls, norm: nn.GroupNorm) -> ClipNorm:
        clip_norm = cls(norm.num_groups, norm.num_channels, norm.eps)
        clip_norm.load_state_dict(norm.state_dict())
        return clip_norm

    def forward(self, x: Tensor) -> Tensor:
        keep = mask(self.frames, x.shape[2])[:, None, None]
        full = (x.float() * keep[:, 0]).unflatten(1, (self.num_groups, -1))  # [B, groups, channels, T]
        count = (self.frames * full.shape[2])[:, None, None, None].to(torch.float32)
        mean = full.sum((2, 3), keepdim=True) / count
        centred = (full - mean) * keep
        var = (centred**2).sum((2, 3), keepdim=True) / count
        y = (centred * torch.rsqrt(var + self.eps)).flatten(1, 2) * self.weight[:, None] + self.bias[:, None]
        return y.to(x.dtype)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [B, C, T]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def adjust(encoder: Any, pretrained: bool, streaming: Streaming | None = None) -> Any:
    """Make an encoder's output a function of the clip alone, in training too.

    transformers' own SpecAugment is off (ours is per item, from the item's seed). Group norms over time become
    `ClipNorm`. The batch norms of Parakeet (FastConformer) become layer norms when it is built from a config; a
    pretrained one keeps them with frozen statistics, the usual way to fine-tune it. With `streaming` its convolutions
    look back only.
    """
    config = encoder.config
    if hasattr(config, "apply_spec_augment"):
        config.apply_spec_augment = False
    if config.model_type == "whisper":
        encoder.embed_positions.requires_grad_(False)  # fixed sinusoids; loading makes them trainable
        if streaming is not None:
            encoder.conv1 = CausalConv.of(encoder.conv1)  # so it hears 10 ms earlier; the second one looks back anyway
            encoder.lookahead = _lookahead(streaming, config.d_model, 50)
    if config.model_type in WAVE:
        if getattr(encoder, "masked_spec_embed", None) is not None:  # only for masking, so it never gets a gradient
            encoder.masked_spec_embed.requires_grad_(False)
        first = encoder.feature_extractor.conv_layers[0]
        norm = getattr(first, "layer_norm", None)
        if isinstance(norm, nn.GroupNorm):
            first.layer_norm = ClipNorm.of(norm)
    if config.model_type == "parakeet_encoder":
        for layer in encoder.layers:
            if pretrained:
                layer.conv.norm = FrozenBatchNorm.of(layer.conv.norm)
            else:
                layer.conv.norm = ChannelNorm(config.hidden_size)
            if streaming is not None:
                layer.conv.depthwise_conv = CausalConv.of(layer.conv.depthwise_conv)
        if streaming is not None:
            encoder.lookahead = _lookahead(streaming, config.hidden_size, SAMPLE_RATE / HOP / config.subsampling_factor)
    return encoder


def _lookahead(streaming: Streaming, width: int, frame_rate: float) -> Lookahead | None:
    ahead = round(streaming.lookahead * frame_rate)
    return Lookahead(width, ahead) if ahead else None


def check_streaming(streaming: Streaming | None, config: Any, place: str) -> None:
    """Raise ConfigError for encoders that cannot hear chunk by chunk."""
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


class FrozenBatchNorm(nn.BatchNorm1d):
    """Batch norm that always uses its running statistics."""

    @classmethod
    def of(cls, norm: nn.BatchNorm1d) -> FrozenBatchNorm:
        frozen = cls(norm.num_features, norm.eps)
        frozen.load_state_dict(norm.state_dict())
        return frozen.eval()

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """In the precision of the statistics, which stay float32 where weights are bfloat16."""
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        shift = self.bias - self.running_mean * scale
        return (x * scale[:, None] + shift[:, None]).to(x.dtype)
