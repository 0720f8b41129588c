"""Stack: layers of attention, convolution and feed-forward, forward over a sequence, chunk by chunk or step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stentor.models.encoders.streaming.layers import ChunkState, KVWindow
from stentor.models.transformer.attention import Attention, State
from stentor.models.transformer.config import Layers
from stentor.models.transformer.layers import (
    Convolution,
    Dropout,
    FeedForward,
    Positions,
    Residual,
    Rotary,
    initialise,
    norm,
)


@dataclass
class LayerState:
    """State of a layer of a decoder in step-by-step decoding."""

    self_attention: State
    """Grows, or is added to, in place."""
    cross_attention: State | None = None
    """Cache of its attention to the encoder; made at the first step."""

    def select(self, rows: Tensor) -> LayerState:
        """The state of these items of the batch, in this order."""
        cross = self.cross_attention
        return LayerState(self.self_attention.select(rows), cross.select(rows) if cross is not None else None)


class Layer(nn.Module):
    """Self-attention, attention to another sequence (`cross`), convolution and feed-forward, each a residual branch."""

    def __init__(
        self,
        settings: Layers,
        causal: bool,
        cross: int | None,
        rotary: Rotary | None,
        fixed: bool,
        chunked: bool = False,
    ):
        """`cross`: width of the other sequence, None without one; `fixed`: random features are never redrawn;
        `chunked`: its convolution looks back only."""
        super().__init__()
        s = settings

        options: dict[str, Any] = {"features": s.attention_features, "fixed": fixed, "qk_norm": s.qk_norm}

        def branch(inner: nn.Module, scale: float = 1.0) -> Residual:
            return Residual(inner, s.norm, s.d_model, s.dropout, scale)

        def feed_forward() -> FeedForward:
            return FeedForward(s.d_model, s.d_ff, s.activation, s.dropout)

        self.first = branch(feed_forward(), 0.5) if s.macaron else None
        self.attention = branch(
            Attention(s.d_model, s.heads, s.attention, causal, s.attention_dropout, rotary=rotary, **options)
        )
        self.cross = None
        if cross is not None:
            kind = s.cross_attention or ("softmax" if s.attention == "softmax" else "linear")
            dropout = s.attention_dropout if kind == "softmax" else 0.0
            self.cross = branch(Attention(s.d_model, s.heads, kind, False, dropout, context_dim=cross, **options))
        self.convolution = branch(Convolution(s.d_model, s.conv_kernel, causal or chunked)) if s.conv_kernel else None
        self.feed_forward = branch(feed_forward(), 0.5 if s.macaron else 1.0)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        state: LayerState | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """[B, T, width] to the same. `mask` [B, T] is true at what is no padding, `context` [B, S, its width] with its
        mask is what `cross` attends to. `state` is that of earlier positions in step-by-step decoding; a context is
        then needed at the first step only. `visible` [B, T, T]: what each position sees of the others."""
        if self.first is not None:
            x = self.first(x)
        seen = mask if visible is None else visible
        x = self.attention(x, mask=seen, state=state.self_attention if state is not None else None)
        if self.cross is not None:
            if state is not None and state.cross_attention is None:
                state.cross_attention = self.cross.inner.remember(context, context_mask)
            past = state.cross_attention if state is not None else None
            x = self.cross(x, context=context, mask=context_mask, state=past)
        if self.convolution is not None:
            x = self.convolution(x, mask)
        return self.feed_forward(x)

    def start_chunks(self, reach: int) -> ChunkState:
        """The state before the first chunk of a stream, whose frames see `reach` frames before their chunk."""
        attention = self.attention.inner
        weight = attention.k_proj.weight
        keys = weight.new_zeros(1, attention.heads, reach, len(weight) // attention.heads)
        window = KVWindow(keys, keys, weight.new_zeros(1, reach, dtype=torch.bool))
        if self.convolution is None:
            return ChunkState(window, [])
        return ChunkState(window, [weight.new_zeros(1, len(weight), self.convolution.inner.padding[0])])

    def chunk(self, x: Tensor, mask: Tensor, state: ChunkState) -> Tensor:
        """The next chunk [B, C, width] to the same; `mask` [B, C] is true at frames. The state is changed in place."""
        if self.first is not None:
            x = self.first(x)
        x = self.attention(x, mask=mask, window=state.window)
        if self.convolution is not None:
            x = self.convolution(x, mask, state.convolution)
        return self.feed_forward(x)


@dataclass
class StackOptions:
    """Settings of the layers of a model, whatever their sizes."""

    fixed: bool = False
    """Random features are never redrawn."""
    recompute: bool = False
    """Run the layers again in the backward pass, to keep less."""
    lookahead: int | None = None
    """Frames that each frame of an encoder sees beyond its chunk, where it hears chunk by chunk. None: it does not."""


class Stack(nn.Module):
    """Positions, layers and the norm behind the last of them."""

    def __init__(self, settings: Layers, causal: bool, cross: int | None = None, options: StackOptions | None = None):
        """`cross`: see `Layer`."""
        super().__init__()
        s, options = settings, options or StackOptions()
        chunked = options.lookahead is not None
        added = s.positions in ("sinusoidal", "learned")
        self.positions = Positions(s.positions, s.d_model, s.max_positions) if added else None
        rotary = Rotary(s.d_model // s.heads) if s.positions == "rope" else None
        self.dropout = Dropout(s.dropout)
        self.layers: Any = nn.ModuleList(
            Layer(s, causal, cross, rotary, options.fixed, chunked) for _ in range(s.layers)
        )
        self.norm = norm(s.norm, s.d_model)
        self.recompute = options.recompute
        outs = {branch.inner for layer in self.layers for branch in layer.children() if isinstance(branch, Residual)}
        initialise(self, {_last(inner) for inner in outs})
        for inner in outs:
            if isinstance(inner, Attention) and inner.favor is not None:
                # The error of random features grows exponentially with the squares of queries and keys, so these begin
                # small: |q|^2 / sqrt(d), which is sqrt(d) otherwise, is 1.
                for part in (inner.q_proj, inner.k_proj):
                    part.weight.data.mul_(inner.favor.dim**-0.25)

    @property
    def max_length(self) -> int | None:
        """Most positions that there are vectors for. None: any number."""
        if self.positions is None or self.positions.table is None:
            return None
        return self.positions.max_positions

    def forward(self, x: Tensor, *masks: Tensor | None) -> Tensor:
        """[B, T, width] to the same; arguments as for `Layer.forward`, without a state."""
        return self.norm(self.states(x, *masks))

    def states(self, x: Tensor, *masks: Tensor | None) -> Tensor:
        """The same before the last norm: the sum of all branches."""
        x = self.dropout(self._add_positions(x, 0))
        recompute = self.recompute and self.training and torch.is_grad_enabled()
        for layer in self.layers:
            x = checkpoint(layer, x, *masks, use_reentrant=False) if recompute else layer(x, *masks)
        return x

    def chunk(self, x: Tensor, mask: Tensor, states: list[ChunkState]) -> Tensor:
        """The next chunk of an encoder, as `Layer.chunk`, behind the last norm."""
        for layer, state in zip(self.layers, states, strict=True):
            x = layer.chunk(x, mask, state)
        return self.norm(x)

    def start(self) -> list[LayerState]:
        """The states before the first position, one for each layer."""
        return [LayerState(layer.attention.inner.start()) for layer in self.layers]

    def step(
        self, x: Tensor, states: list[LayerState], context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> Tensor:
        """The next positions [B, T, width] to the same; the states are changed in place. The first step needs the
        context, where there is one."""
        x = self._add_positions(x, states[0].self_attention.length)
        for layer, state in zip(self.layers, states):
            x = layer(x, None, context, context_mask, state)
        return self.norm(x)

    def _add_positions(self, x: Tensor, start: int) -> Tensor:
        return x if self.positions is None else self.positions(x, start)


def _last(inner: nn.Module) -> nn.Linear:
    """The last layer of a branch."""
    if isinstance(inner, Attention):
        return inner.out_proj
    assert isinstance(inner, FeedForward | Convolution)
    return inner.down if isinstance(inner, FeedForward) else inner.out
