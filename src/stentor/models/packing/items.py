"""Packed batches through SDPA, item by item: what flex_attention does with a block mask, where there is none.

A mask of all pairs of positions would cost the square of the pack's length in every layer. Instead each item's queries,
keys and values are taken out of the pack for the attention alone; the other layers stay packed. On the CPU one item
after the other, without a mask, so that nothing is computed for padding; elsewhere, where calls cost more than
padding, side by side and padded to the longest item. In place of a mask the attention gets a table of the items'
positions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def table(documents: Tensor) -> Tensor:
    """Positions of each item in the pack, int64 [1, 1, items, longest], -1 beyond an item's end; from the number of
    each position's item, int32 [L], 0 first. Four axes, so that transformers hands it on as a mask that is ready."""
    numbers = documents.long()
    lengths = numbers.bincount()
    starts = lengths.cumsum(0) - lengths
    positions = torch.arange(len(numbers), device=numbers.device)
    rows = positions.new_full((len(lengths), int(lengths.max())), -1)
    rows[numbers, positions - starts[numbers]] = positions
    return rows[None, None]


def is_table(mask: Any) -> bool:
    """Whether this is a table and not a mask."""
    return isinstance(mask, Tensor) and mask.dtype == torch.int64


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
    """Bidirectional attention within each item of a `table`, as transformers' attention functions: [1, heads, L, size]
    to [1, L, heads, size]."""
    way = one_by_one if query.device.type == "cpu" else side_by_side
    return way(module, query, key, value, mask, **kwargs)


def side_by_side(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
    """As `attention`, in one call."""
    items, longest = mask.shape[2:]
    length = query.shape[2]
    positions = mask.flatten()
    valid = positions >= 0
    query, key, value = (
        x[0].index_select(1, positions.clamp(min=0)).unflatten(1, (items, longest)).transpose(0, 1)
        for x in (query, key, value)
    )
    attended = valid.view(items, 1, 1, longest).expand(-1, 1, longest, longest)
    out, _ = sdpa_attention_forward(module, query, key, value, attended, **kwargs)
    # The slot of each position of the pack in the table; empty slots go to one position more, which is cut off.
    slots = torch.arange(len(positions)).to(positions)
    slot_of = positions.new_empty(length + 1).scatter_(0, positions.where(valid, length), slots)
    return out.flatten(0, 1).index_select(0, slot_of[:length])[None], None


def one_by_one(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
    """As `attention`, with a call for each item."""
    lengths = (mask[0, 0] >= 0).sum(1).tolist()
    kwargs["is_causal"] = False
    outs = [
        sdpa_attention_forward(module, q, k, v, None, **kwargs)[0]
        for q, k, v in zip(*(x.split(lengths, 2) for x in (query, key, value)))
    ]
    return torch.cat(outs, 1), None
