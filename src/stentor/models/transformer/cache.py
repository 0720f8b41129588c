"""Keys and values of softmax attention in step-by-step decoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
