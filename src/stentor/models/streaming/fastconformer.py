"""Parakeet's encoder (FastConformer, Rekesh et al. 2023) over recordings that come in pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.collate import SHORTEST
from stentor.models.features import fixed_mel
from stentor.models.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.streaming.layers import ChunkState, KVWindow


class FastConformerChunks(ChunkEncoder):
    """transformers' ParakeetEncoder with causal convolutions (see `stentor.models.speech_llm.encoders.adjust`).

    Its subsampling sees no more than the features of each frame and those before: with a kernel of 3 and a stride of 2
    the convolution around 2 i ends at 2 i + 1.
    """

    shortest = SHORTEST

    def __init__(self, encoder: Any, seconds: tuple[float, float]):
        super().__init__(fixed_mel(encoder.config.num_mel_bins), seconds, encoder.config.subsampling_factor)
        self.encoder = encoder
        self.ahead = 0 if encoder.lookahead is None else encoder.lookahead.frames
        reach, chunk = self.reach, self.chunk
        frames = torch.empty(1, reach + chunk, encoder.config.hidden_size, device=self.device)
        positions = encoder.encode_positions(frames)[:, : reach + 2 * chunk - 1]
        with torch.no_grad():
            self._positions = [layer.self_attn.relative_k_proj(positions) for layer in encoder.layers]

    @property
    def device(self) -> torch.device:
        device: torch.device = self.encoder.subsampling.linear.weight.device
        return device

    def start(self) -> States:
        config, subsampling = self.encoder.config, self.encoder.subsampling
        zeros, mels = subsampling.linear.weight.new_zeros, config.num_mel_bins
        before: list[Tensor] = []
        states: States = [before]
        for conv in filter(_strides, subsampling.layers):
            before.append(zeros(1, 1 if not before else conv.in_channels, conv.padding[0], mels))
            mels = (mels + 2 * conv.padding[1] - conv.kernel_size[1]) // conv.stride[1] + 1
        for layer in self.encoder.layers:
            attention, conv = layer.self_attn, layer.conv.depthwise_conv
            keys = zeros(1, config.num_attention_heads, self.reach, attention.head_dim)
            window = KVWindow(keys, keys, torch.zeros(1, self.reach, dtype=torch.bool, device=self.device))
            states.append(ChunkState(window, [zeros(1, conv.in_channels, conv.reach)]).tensors)
        return states

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        x, before = self._subsample(features, counts, states[0])
        mask = torch.arange(x.shape[1], device=x.device) < self.frames(counts)[:, None]
        x = x * self.encoder.input_scale
        x = x if self.encoder.lookahead is None else self.encoder.lookahead(x, mask)
        x, mask = x[:, : self.chunk], mask[:, : self.chunk]
        after = [before]
        for layer, positions, tensors in zip(self.encoder.layers, self._positions, states[1:], strict=True):
            state = ChunkState.of(tensors)
            x = x + 0.5 * layer.feed_forward1(layer.norm_feed_forward1(x))
            x = x + _attend(layer.self_attn, layer.norm_self_att(x), mask, state.window, positions)
            x = x + _convolve(layer.conv, layer.norm_conv(x), mask, state.convolution)
            x = layer.norm_out(x + 0.5 * layer.feed_forward2(layer.norm_feed_forward2(x)))
            after.append(state.tensors)
        return x, after

    def _subsample(self, features: Tensor, counts: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Frames [B, chunk + ahead, width] of features, and what of the chunk the convolutions see again."""
        x, size, waiting, after = features[:, None], self.chunk * self.factor, iter(states), []
        for layer in self.encoder.subsampling.layers:
            if _strides(layer):
                before = next(waiting)
                x = torch.cat([before, x], 2)
                after.append(x[:, :, size : size + before.shape[2]])
                x = F.conv2d(x, layer.weight, layer.bias, layer.stride, (0, layer.padding[1]), groups=layer.groups)
                size, counts = size // layer.stride[0], -(-counts // layer.stride[0])
            else:
                x = layer(x)
            x = x * (torch.arange(x.shape[2], device=x.device) < counts[:, None])[:, None, :, None]
        return self.encoder.subsampling.linear(x.transpose(1, 2).flatten(2)), after


def _strides(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.stride[0] > 1


def _attend(attention: Any, x: Tensor, mask: Tensor, window: KVWindow, positions: Tensor) -> Tensor:
    """Attention of a chunk [B, C, width] to itself and its window, with relative positions (Dai et al. 2019), of which
    `positions` [1, reach + 2 C - 1, width] are the keys from the most distant one on."""

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    queries = split(attention.q_proj(x))
    keys, values, visible = window.add(split(attention.k_proj(x)), split(attention.v_proj(x)), mask)
    bias = (queries + attention.bias_v[:, None]) @ split(positions).transpose(2, 3)
    bias = attention._rel_shift(bias)[..., : keys.shape[2]] * attention.scaling
    bias = bias.masked_fill(~visible[:, None, None], torch.finfo(bias.dtype).min)
    queries = queries + attention.bias_u[:, None]
    attended = F.scaled_dot_product_attention(queries, keys, values, bias, scale=attention.scaling)
    return attention.o_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _convolve(module: Any, x: Tensor, mask: Tensor, before: list[Tensor]) -> Tensor:
    """The convolution module on a chunk; what the next one sees takes the place of what is before it."""
    x = F.glu(module.pointwise_conv1(x.transpose(1, 2)), dim=1).masked_fill(~mask[:, None], 0)
    first, before[0] = before[0], torch.cat([before[0], x], 2)[:, :, x.shape[2] :]
    x = module.activation(module.norm(module.depthwise_conv(x, first)))
    return module.pointwise_conv2(x).transpose(1, 2)  # type: ignore[no-any-return]
