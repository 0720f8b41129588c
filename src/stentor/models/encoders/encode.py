"""Audio encoders of transformers, run so that a clip gives the same frames in any batch.

`encode` runs an encoder on a padded batch: every convolution sees zeros beyond the end of a clip, as it would if the
clip came alone, and attention never sees padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.encoders.geometry import HOP, SAMPLE_RATE, WAVE, Geometry, mask
from stentor.models.encoders.streaming.chunks import Streaming, chunk_mask
from stentor.models.encoders.streaming.layers import CausalConv, Lookahead, look_ahead


def encode(
    encoder: Any, shape: Geometry, features: Tensor, lengths: Tensor, chunks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Encoder frames of a padded batch: hidden states [B, frames, width], zero at padding, and their lengths [B].

    `features`: log-mel [B, mels, T] or audio [B, T]; `lengths` [B] in the same steps; `chunks` [B, 3]: what each item's
    frames see of one another (see `Streaming.draw`), for encoders that `adjust` made to read audio chunk by chunk. Wave
    encoders whose first convolution has a group norm (wav2vec2-base) get the statistics of each clip alone, so they too
    are independent of the batch; transformers itself lets padding into these statistics.
    """
    (hidden,), frames = encode_states(encoder, shape, features, lengths, chunks, every=False)
    return hidden, frames


def encode_states(
    encoder: Any, shape: Geometry, features: Tensor, lengths: Tensor, chunks: Tensor | None = None, every: bool = True
) -> tuple[list[Tensor], Tensor]:
    """As `encode`, with hidden states of the layers' input and of each layer, the last behind its norm; without `every`
    of that alone."""
    frames = shape.frames(lengths)
    kind, keep = encoder.config.model_type, mask(lengths, features.shape[-1])
    if kind == "whisper":
        states = _whisper(encoder, shape, features, keep, frames, chunks, every)
    elif kind == "parakeet_encoder" and isinstance(encoder.layers[0].conv.depthwise_conv, CausalConv):
        states = [_chunked(encoder, (features * keep[:, None]).transpose(1, 2), keep, frames, chunks)]
    else:
        if kind == "parakeet_encoder":
            inputs, attend = (features * keep[:, None]).transpose(1, 2), keep
        else:
            inputs, attend = features * keep, keep.long()
            first = encoder.feature_extractor.conv_layers[0]
            if isinstance(norm := _norm(first), ClipNorm):
                norm.frames = (lengths - first.conv.kernel_size[0]) // first.conv.stride[0] + 1
            if kind == "data2vec-audio":
                for layer in encoder.encoder.pos_conv_embed.layers:
                    layer.activation.frames = frames
        output = encoder(inputs, attention_mask=attend, output_hidden_states=every)
        states = [*(output.hidden_states[:-1] if every else ()), output.last_hidden_state]
    valid = mask(frames, states[-1].shape[1])[..., None]
    return [state * valid for state in states], frames


def _norm(layer: nn.Module) -> nn.Module | None:
    """The norm of a convolution of a wave encoder, where it has one."""
    return dict(layer.named_children()).get("layer_norm")


def _chunked(encoder: Any, features: Tensor, keep: Tensor, frames: Tensor, chunks: Tensor | None) -> Tensor:
    """transformers' ParakeetEncoder as it is, but for its lookahead and the mask."""
    x = encoder.subsampling(features, keep) * encoder.input_scale
    valid = mask(frames, x.shape[1])
    x = look_ahead(encoder, x, valid)
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
    encoder: Any, shape: Geometry, features: Tensor, keep: Tensor, frames: Tensor, chunks: Tensor | None, every: bool
) -> list[Tensor]:
    """Whisper's encoder at any length: transformers' own forward insists on 30 s and has no mask."""
    if shape.window is not None:  # as pretrained: silence is part of the input, only its frames are dropped later
        return whisper_layers(encoder, F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))), every=every)
    hidden = F.gelu(encoder.conv1(features * keep[:, None])) * keep[:, None]
    hidden = F.gelu(encoder.conv2(hidden))
    valid = mask(frames, hidden.shape[2])
    hidden = look_ahead(encoder, hidden.transpose(1, 2), valid).transpose(1, 2)
    attend, first = valid[:, None, None, :], None
    if chunks is not None:
        itself = torch.eye(hidden.shape[2], dtype=torch.bool, device=hidden.device)  # padding sees something, too
        attend, first = attend & chunk_mask(chunks, hidden.shape[2])[:, None] | itself, chunks[:, 2]
    if encoder.config._attn_implementation == "eager":  # adds the mask to the scores
        attend = torch.zeros_like(attend, dtype=hidden.dtype).masked_fill(~attend, torch.finfo(hidden.dtype).min)
    return whisper_layers(encoder, hidden, attend, first, every)


def whisper_layers(
    encoder: Any, hidden: Tensor, attend: Tensor | None = None, first: Tensor | None = None, every: bool = False
) -> list[Tensor]:
    """States of the layers of transformers' WhisperEncoder behind its convolutions [B, width, T], at any length up to
    1500; its own forward refuses all but 30 s. `attend`: the attention mask; `first`: the numbers [B] of the first
    frames, which have position 0 else and again after 1500; `every`: see `encode_states`."""
    hidden = hidden.transpose(1, 2)
    if first is None:
        hidden = hidden + encoder.embed_positions.weight[: hidden.shape[1]]
    else:
        hidden = hidden + whisper_positions(encoder, first, hidden.shape[1])
    hidden = F.dropout(hidden, encoder.dropout, encoder.training)
    states = []
    for layer in encoder.layers:
        if every:
            states.append(hidden)
        if encoder.training and encoder.layerdrop > 0 and torch.rand(()) < encoder.layerdrop:
            continue
        hidden = layer(hidden, attend)
    return [*states, encoder.layer_norm(hidden)]


def whisper_positions(encoder: Any, first: Tensor, frames: int) -> Tensor:
    """Positions [B, frames, width] of frames from the `first` [B] on, which come round every 1500."""
    weight: Tensor = encoder.embed_positions.weight
    return weight[(first[:, None] + torch.arange(frames, device=first.device)) % len(weight)]


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


class ClipActivation(nn.Module):
    """An activation of [B, C, T] that leaves zeros at padding, for the next convolution of a stack.

    `frames` [B] must be set before each forward.
    """

    frames: Tensor

    def __init__(self, activation: nn.Module):
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        active: Tensor = self.activation(x)
        return active * mask(self.frames, x.shape[2])[:, None]


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [B, C, T]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def adjust(encoder: Any, pretrained: bool, streaming: Streaming | None = None) -> Any:
    """Make an encoder's output a function of the clip alone, in training too.

    transformers' own SpecAugment is off (ours is per item, from the item's seed). Group norms over time become
    `ClipNorm`, activations between Data2Vec's positional convolutions `ClipActivation`. The batch norms of Parakeet
    (FastConformer) become layer norms when it is built from a config; a pretrained one keeps them with frozen
    statistics, the usual way to fine-tune it. With `streaming` its convolutions look back only.
    """
    config = encoder.config
    if config.model_type == "whisper":
        config.apply_spec_augment = False
        encoder.embed_positions.requires_grad_(False)  # fixed sinusoids; loading makes them trainable
        if streaming is not None:
            encoder.conv1 = CausalConv.of(encoder.conv1)  # it needs 10 ms less; the second one looks back anyway
            _add_lookahead(encoder, streaming, config.d_model, 50)
    if config.model_type in WAVE:
        _adjust_wave(encoder)
    if config.model_type == "parakeet_encoder":
        for layer in encoder.layers:
            if pretrained:
                layer.conv.norm = FrozenBatchNorm.of(layer.conv.norm)
            else:
                layer.conv.norm = ChannelNorm(config.hidden_size)
            if streaming is not None:
                layer.conv.depthwise_conv = CausalConv.of(layer.conv.depthwise_conv)
        if streaming is not None:
            _add_lookahead(encoder, streaming, config.hidden_size, SAMPLE_RATE / HOP / config.subsampling_factor)
    return encoder


def _adjust_wave(encoder: Any) -> None:
    encoder.config.apply_spec_augment = False
    for name, parameter in encoder.named_parameters(recurse=False):
        if name == "masked_spec_embed":  # only for masking, so it never gets a gradient
            parameter.requires_grad_(False)
    first = encoder.feature_extractor.conv_layers[0]
    if isinstance(norm := _norm(first), nn.GroupNorm):
        first.layer_norm = ClipNorm.of(norm)
    if encoder.config.model_type == "data2vec-audio":
        for layer in encoder.encoder.pos_conv_embed.layers:
            layer.activation = ClipActivation(layer.activation)


def _add_lookahead(encoder: Any, streaming: Streaming, width: int, frame_rate: float) -> None:
    if ahead := round(streaming.lookahead * frame_rate):
        encoder.lookahead = Lookahead(width, ahead)


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
