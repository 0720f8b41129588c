"""Multi-head attention: softmax (through torch's SDPA) or linear (FAVOR+), over a sequence itself or over another."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from stentor.models.encoders.streaming.layers import KVWindow
from stentor.models.transformer.favor import Favor, LinearState
from stentor.models.transformer.layers import Rotary

Kind = Literal["softmax", "linear", "causal_linear"]
BLOCK = 64
"""Positions by which the room for keys grows: copying all of them at every step would cost more than attention."""


class KVCache:
    """Keys and values of the positions so far, [B, H, S, d], with a mask of the valid ones.

    `closed` is that of cross-attention: it holds all there is to attend to, and nothing is added.
    """

    def __init__(self) -> None:
        self.length = 0
        """Positions so far: the position of the next step."""
        self.closed = False
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._mask: Tensor | None = None

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, mask: Tensor | None) -> KVCache:
        """A closed cache of keys and values [B, H, S, d] and a mask bool [B, S] or None."""
        cache = cls()
        cache._keys, cache._values, cache._mask = keys, values, mask
        cache.length, cache.closed = keys.shape[2], True
        return cache

    def add(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> None:
        """Append the next positions: [B, H, T, d] each, and which are valid, bool [B, T] (None: all)."""
        end = self.length + keys.shape[2]
        if mask is None:
            mask = keys.new_ones(keys.shape[0], keys.shape[2], dtype=torch.bool)
        if self._keys is None or self._values is None or self._mask is None:
            self._keys, self._values, self._mask = keys[:, :, :0], values[:, :, :0], mask[:, :0]
        if (more := end - self._keys.shape[2]) > 0:
            more = -(-more // BLOCK) * BLOCK
            self._keys, self._values = (nn.functional.pad(x, (0, 0, 0, more)) for x in (self._keys, self._values))
            self._mask = nn.functional.pad(self._mask, (0, more))
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self._mask[:, self.length : end] = mask
        self.length = end

    def read(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values [B, H, S, d] and mask bool [B, S] (None: all are valid) so far; at least one position."""
        assert self._keys is not None and self._values is not None
        mask = self._mask[:, : self.length] if self._mask is not None else None
        return self._keys[:, :, : self.length], self._values[:, :, : self.length], mask

    def select(self, rows: Tensor) -> KVCache:
        """The cache of these items of the batch (int64 [N]), in this order: for beam search."""
        selected = KVCache()
        selected.length, selected.closed = self.length, self.closed
        tensors = (None if x is None else x[rows] for x in (self._keys, self._values, self._mask))
        selected._keys, selected._values, selected._mask = tensors
        return selected


State = KVCache | LinearState


class Attention(nn.Module):
    """Multi-head attention with its four projections.

    Args:
        dim: size of queries and outputs, D.
        heads: number of heads; `dim` must be a multiple of it.
        kind: `softmax`, `linear` (FAVOR+) or `causal_linear` (`linear` with `causal`).
        causal: a position sees only itself and what came before. Cross-attention (a `context`) never is.
        dropout: of attention weights in training. Softmax only: linear attention makes no weights to drop.
        context_dim: size of what cross-attention attends to. None: `dim`.
        rotary: rotary positions for queries and keys, shared by the layers. None: none. Not with a context.
        qk_norm: the queries and keys of each head are brought to a learnt size (RMS norm, Henry et al. 2020).
        favor: `features` and `fixed` of `Favor`, for linear attention, whose buffer is `favor.projection`
            [features, dim / heads].

    Decoding step by step (causal attention only): `state = attention.start()`, then `forward(x, state=state)` for the
    next position or positions, which join the state. For cross-attention `state = attention.remember(context, mask)`
    once, then `forward(x, state=state)`. `state.length` counts the positions so far; `state.select(rows)` is the state
    of other items of the batch.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kind: Kind = "softmax",
        causal: bool = False,
        dropout: float = 0.0,
        *,
        context_dim: int | None = None,
        rotary: Rotary | None = None,
        qk_norm: bool = False,
        **favor: Any,
    ):
        super().__init__()
        if dim % heads:
            raise ValueError(f"{dim} numbers cannot be divided among {heads} heads")
        self.heads, self.dropout = heads, dropout
        self.causal = causal or kind == "causal_linear"
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(context_dim or dim, dim)
        self.v_proj = nn.Linear(context_dim or dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.q_norm, self.k_norm = (HeadNorm(dim // heads, kind) if qk_norm else nn.Identity() for _ in range(2))
        self.rotary = rotary
        self.favor = None if kind == "softmax" else Favor(dim // heads, **favor)

    def forward(
        self,
        query: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        state: State | None = None,
        window: KVWindow | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: [B, T, D].
            context: [B, S, context_dim] for cross-attention. None: the queries' own sequence (or a closed state).
            mask: bool, True where a key is valid: [B, S] of the context, or [B, T] of the queries' own positions, or
                [B, T, T] of what each of them sees (softmax only). None: all are.
            positions: of the queries, int64 [T] or [B, T], for rotary positions. None: from `state.length` (or 0) on.
            state: of earlier steps, or `remember` of a context.
            window: what a chunk sees of the frames before it (softmax only, with a mask [B, T]); it moves on.
        Returns:
            [B, T, D]. The attention of a query without any valid key is 0 (then projected: the output bias).
        """
        q = self.q_norm(self._split(self.q_proj(query)))
        if window is not None:
            attended = self._in_window(q, query, mask, window)
        elif context is not None or (state is not None and state.closed):
            if state is None or not state.closed:
                assert context is not None
                state = self.remember(context, mask)
            attended = self._attend(q, state, causal=False)
        else:
            k, v = self._keys(query)
            if self.rotary is not None:
                if positions is None:
                    start = 0 if state is None else state.length
                    positions = torch.arange(start, start + query.shape[1], device=query.device)
                q, k = self.rotary(q, positions), self.rotary(k, positions)
            attended = self._self_attention(q, k, v, mask, state)
        return self.out_proj(attended.to(q.dtype).transpose(1, 2).flatten(2))

    def start(self) -> State:
        """The state before the first position, for causal self-attention."""
        if not self.causal:
            raise ValueError("only causal attention can go step by step")
        return KVCache() if self.favor is None else LinearState()

    def remember(self, context: Tensor, mask: Tensor | None = None) -> State:
        """The closed state that cross-attention needs of a context [B, S, context_dim] and its mask bool [B, S]."""
        k, v = self._keys(context)
        return KVCache.of(k, v, mask) if self.favor is None else self.favor.gather(k, v, mask)

    def _self_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: State | None) -> Tensor:
        """Self-attention; new keys and values join the state."""
        if self.favor is not None:
            if not self.causal:
                return self.favor(q, k, v, mask)
            assert state is None or isinstance(state, LinearState)
            return self.favor.causal(q, k, v, mask, state)
        if state is None:
            return self._attend(q, KVCache.of(k, v, mask), self.causal)
        assert isinstance(state, KVCache)
        state.add(k, v, mask)
        return self._attend(q, state, causal=True)

    def _in_window(self, q: Tensor, query: Tensor, mask: Tensor | None, window: KVWindow) -> Tensor:
        """Attention of a chunk. Positions count from the start of the window: their angles stay exact for hours."""
        assert mask is not None
        k, v, visible = window.add(*self._keys(query), mask)
        if self.rotary is not None:
            positions = torch.arange(k.shape[2], device=k.device)
            q, k = self.rotary(q, positions[-q.shape[2] :]), self.rotary(k, positions)
        return softmax(q, k, v, visible)

    def _attend(self, q: Tensor, state: State, causal: bool) -> Tensor:
        if isinstance(state, LinearState):
            assert self.favor is not None
            return self.favor.attend(q, state)
        return softmax(q, *state.read(), causal, self.dropout if self.training else 0.0)

    def _keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of positions [B, S, D], each [B, H, S, D / H]."""
        return self.k_norm(self._split(self.k_proj(x))), self._split(self.v_proj(x))

    def _split(self, x: Tensor) -> Tensor:
        """[B, T, D] as [B, H, T, D / H]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class HeadNorm(nn.RMSNorm):
    """RMS norm of a head's queries or keys. For linear attention |q|^2 / sqrt(dim) is 1 at first, and grows only as the
    scale learns to: beyond that random features say little about the softmax kernel."""

    def __init__(self, dim: int, kind: Kind):
        super().__init__(dim, eps=1e-6)
        if kind != "softmax":
            nn.init.constant_(self.weight, dim**-0.25)

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] in the type of `x`, computed in float32; torch's kernel wants a scale of that type, too."""
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def softmax(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention by torch's fused kernels.

    Args:
        query: [B, H, T, d]; with `causal` its last position is that of the last key.
        key, value: [B, H, S, d].
        mask: bool [B, S], True where a key is valid, or [B, T, S]. None: all are.
        causal: a query sees the keys up to its own position.
        dropout: share of weights that are dropped.
    Returns:
        [B, H, T, d]; 0 for a query that has no valid key, where a softmax would give NaN.
    """
    attention = nn.functional.scaled_dot_product_attention
    queries, keys = query.shape[2], key.shape[2]
    if mask is None:
        if not causal or queries == 1:
            return attention(query, key, value, dropout_p=dropout)
        if queries == keys:
            return attention(query, key, value, dropout_p=dropout, is_causal=True)
    if mask is None:
        mask = query.new_ones(1, keys, dtype=torch.bool)
    visible = mask[:, None, None] if mask.dim() == 2 else mask[:, None]
    if causal and queries > 1:
        visible = visible & visible.new_ones(queries, keys).tril(keys - queries)
    empty = ~visible.any(-1, keepdim=True)
    return attention(query, key, value, attn_mask=visible | empty, dropout_p=dropout).masked_fill(empty, 0.0)
