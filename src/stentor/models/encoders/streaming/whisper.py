"""Whisper's encoder (Radford et al. 2022) over recordings that come in pieces."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.models.collate import SHORTEST
from stentor.models.encoders.encode import whisper_positions
from stentor.models.encoders.features import fixed_whisper_mel
from stentor.models.encoders.geometry import mask
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.encoders.streaming.layers import KVWindow, look_ahead


class WhisperChunks(ChunkEncoder):
    """transformers' WhisperEncoder with a causal convolution (see `stentor.models.encoders.encode.adjust`).

    Its second convolution, of a kernel of 3 and a stride of 2, ends at 2 i + 1 for frame i. Its positions come round
    every 30 s, which training has shown it (see `Streaming.draw`).
    """

    shortest = SHORTEST

    def __init__(self, encoder: Any, processor: Any, seconds: tuple[float, float]):
        super().__init__(encoder, fixed_whisper_mel(encoder.config.num_mel_bins), seconds, factor=2)

    def start(self) -> States:
        config, conv = self.encoder.config, self.encoder.conv1
        zeros = conv.weight.new_zeros
        keys = zeros(1, config.encoder_attention_heads, self.reach, config.d_model // config.encoder_attention_heads)
        window = [keys, keys, torch.zeros(1, self.reach, dtype=torch.bool, device=self.device)]
        before = [zeros(1, config.num_mel_bins, conv.reach), zeros(1, config.d_model, 1)]
        return [[*before, torch.zeros(1, dtype=torch.long, device=self.device)], *[window for _ in self.encoder.layers]]

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        x, before = self._convolve(features.transpose(1, 2), counts, states[0][:2])
        valid = mask(self.frames(counts), x.shape[1])
        x = look_ahead(self.encoder, x, valid)
        x, valid, first = x[:, : self.chunk], valid[:, : self.chunk], states[0][2]
        x = x + whisper_positions(self.encoder, first, self.chunk)
        after = [[*before, (first + self.chunk) % len(self.encoder.embed_positions.weight)]]
        for layer, tensors in zip(self.encoder.layers, states[1:], strict=True):
            window = KVWindow(*tensors)
            x = x + _attend(layer.self_attn, layer.self_attn_layer_norm(x), valid, window)
            x = x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))
            after.append([window.keys, window.values, window.mask])
        return self.encoder.layer_norm(x), after

    def _convolve(self, x: Tensor, counts: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Frames [B, chunk + ahead, width] of features [B, mels, T], and what of them is seen again."""
        size, (features, hidden), conv = self.chunk * self.factor, states, self.encoder.conv2
        valid = mask(counts, x.shape[2])[:, None]
        y = torch.cat([hidden, F.gelu(self.encoder.conv1(x, features)) * valid], 2)
        x = torch.cat([features, x], 2)
        after = [x[:, :, size : size + features.shape[2]], y[:, :, size : size + 1]]
        return F.gelu(F.conv1d(y, conv.weight, conv.bias, conv.stride)).transpose(1, 2), after


def _attend(attention: Any, x: Tensor, valid: Tensor, window: KVWindow) -> Tensor:
    """Attention of a chunk [B, C, width] to itself and its window."""

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    keys, values, visible = window.add(split(attention.k_proj(x)), split(attention.v_proj(x)), valid)
    queries = split(attention.q_proj(x))
    attended = F.scaled_dot_product_attention(queries, keys, values, visible[:, None, None])
    return attention.out_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
