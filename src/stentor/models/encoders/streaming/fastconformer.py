"""Parakeet's encoder (FastConformer, Rekesh et al. 2023) over recordings that come in pieces."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.collate import SHORTEST
from stentor.models.encoders.features import fixed_mel
from stentor.models.encoders.geometry import mask
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.encoders.streaming.layers import ChunkState, KVWindow, look_ahead


class FastConformerChunks(ChunkEncoder):
    """transformers' ParakeetEncoder with causal convolutions (see `stentor.models.encoders.encode.adjust`).

    Its subsampling sees no more than the features of each frame and those before: with a kernel of 3 and a stride of 2
    the convolution around 2 i ends at 2 i + 1.
    """

    shortest = SHORTEST

    def __init__(self, encoder: Any, processor: Any, seconds: tuple[float, float], features: Any = None):
        config = encoder.config
        super().__init__(encoder, features or fixed_mel(config.num_mel_bins), seconds, config.subsampling_factor)

    @property
    def _stages(self) -> Sequence[Any]:
        """The layers of the subsampling, in order."""
        return self.encoder.subsampling.layers  # type: ignore[no-any-return]

    def _edges(self, conv: Any) -> tuple[int, tuple[int, int]]:
        """Number of frames before its own that a strided convolution sees, and the bins of zeros below and above."""
        return conv.padding[0], (conv.padding[1], conv.padding[1])

    def _norm(self, module: Any, x: Tensor) -> Tensor:
        """The norm [B, C, T] of a convolution module."""
        return module.norm(x)  # type: ignore[no-any-return]

    @cached_property
    @torch.no_grad()
    def _positions(self) -> list[Tensor]:
        frames = self.weight.new_empty(1, self.reach + self.chunk, self.encoder.config.hidden_size)
        positions = self.encoder.encode_positions(frames)[:, : self.reach + 2 * self.chunk - 1]
        return [layer.self_attn.relative_k_proj(positions) for layer in self.encoder.layers]

    def start(self) -> States:
        config, subsampling = self.encoder.config, self.encoder.subsampling
        zeros, mels = subsampling.linear.weight.new_zeros, config.num_mel_bins
        before: list[Tensor] = []
        for conv in filter(_strides, self._stages):
            reach, bins = self._edges(conv)
            before.append(zeros(1, conv.in_channels if before else 1, reach, mels))
            mels = (mels + sum(bins) - conv.kernel_size[1]) // conv.stride[1] + 1
        states: States = [[*before, torch.tensor([self.lead], device=self.device)]]
        for layer in self.encoder.layers:
            attention, conv = layer.self_attn, layer.conv.depthwise_conv
            keys = zeros(1, config.num_attention_heads, self.reach, attention.head_dim)
            window = KVWindow(keys, keys, torch.zeros(1, self.reach, dtype=torch.bool, device=self.device))
            states.append(ChunkState(window, [zeros(1, conv.in_channels, conv.kernel_size[0] - 1)]).tensors)
        return states

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        x, before = self._subsample(features, counts, states[0])
        valid = mask(self.frames(counts), x.shape[1])
        x = look_ahead(self.encoder, x * self.encoder.input_scale, valid)
        x, valid = x[:, : self.chunk], valid[:, : self.chunk]
        after = [before]
        for layer, positions, tensors in zip(self.encoder.layers, self._positions, states[1:], strict=True):
            state = ChunkState.of(tensors)
            x = x + 0.5 * layer.feed_forward1(layer.norm_feed_forward1(x))
            x = x + _attend(layer.self_attn, layer.norm_self_att(x), valid, state.window, positions)
            x = x + self._convolve(layer.conv, layer.norm_conv(x), valid, state.convolution)
            x = layer.norm_out(x + 0.5 * layer.feed_forward2(layer.norm_feed_forward2(x)))
            after.append(state.tensors)
        return x, after

    def _subsample(self, features: Tensor, counts: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Frames [B, chunk + ahead, width] of features, and what of the chunk the convolutions see again, with how many
        of the next features are the lead."""
        x, size, after = features[:, None], self.chunk * self.factor, []
        *befores, lead = states
        first, waiting = lead, iter(befores)
        for layer in self._stages:
            if _strides(layer):
                before, (_, bins) = next(waiting), self._edges(layer)
                x = torch.cat([before, x], 2)
                after.append(x[:, :, size : size + before.shape[2]])
                x = F.conv2d(F.pad(x, bins), layer.weight, layer.bias, layer.stride, groups=layer.groups)
                step = layer.stride[0]
                size, counts, first = size // step, -(-counts // step), first // step
            else:
                x = layer(x)
            frame = torch.arange(x.shape[2], device=x.device)
            x = x * ((frame >= first[:, None]) & (frame < counts[:, None]))[:, None, :, None]
        hidden = self.encoder.subsampling.linear(x.transpose(1, 2).flatten(2))
        return hidden, [*after, torch.zeros_like(lead)]

    def _convolve(self, module: Any, x: Tensor, valid: Tensor, before: list[Tensor]) -> Tensor:
        """The convolution module on a chunk; what the next one sees takes the place of what is before it."""
        x = F.glu(module.pointwise_conv1(x.transpose(1, 2)), dim=1).masked_fill(~valid[:, None], 0)
        size, x = x.shape[2], torch.cat([before[0], x], 2)
        before[0] = x[:, :, size:]
        x = self._norm(module, nn.Conv1d.forward(module.depthwise_conv, x))
        return module.pointwise_conv2(module.activation(x)).transpose(1, 2)  # type: ignore[no-any-return]


def _strides(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.stride[0] > 1


def _attend(attention: Any, x: Tensor, valid: Tensor, window: KVWindow, positions: Tensor) -> Tensor:
    """Attention of a chunk [B, C, width] to itself and its window, with relative positions (Dai et al. 2019), of which
    `positions` [1, reach + 2 C - 1, width] are the keys from the most distant one on."""

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    queries = split(attention.q_proj(x))
    keys, values, visible = window.add(split(attention.k_proj(x)), split(attention.v_proj(x)), valid)
    bias = (queries + attention.bias_v[:, None]) @ split(positions).transpose(2, 3)
    bias = attention._rel_shift(bias)[..., : keys.shape[2]] * attention.scaling
    bias = bias.masked_fill(~visible[:, None, None], torch.finfo(bias.dtype).min)
    queries = queries + attention.bias_u[:, None]
    attended = F.scaled_dot_product_attention(queries, keys, values, bias, scale=attention.scaling)
    return attention.o_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
