"""Attention in packed batches: by flex_attention with a block mask, or through SDPA item by item.

The block mask comes from document boundaries, not from evaluating a mask function on all pairs of positions: for 8192
positions that takes 1.6 s, the boundaries 1 ms, and the tables are the same to the bit. The attention function is
transformers' with two changes: under autocast, query, key and value get the autocast type first (layers with float32
norms on query and key, such as Qwen3's, would otherwise run flex in float32, twelve times slower), and masks that are
no block mask go to SDPA.

Where there is no flex_attention, the attention gets a table of the items' positions instead of a mask of all pairs of
positions, which would cost the square of the pack's length in every layer. Each item's queries, keys and values are
taken out of the pack for the attention alone; the other layers stay packed. On the CPU one item after the other,
without a mask, so that nothing is computed for padding; elsewhere, where calls cost more than padding, side by side and
padded to the longest item.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stentor.errors import ConfigError

NAME = "stentor_flex"
BLOCK = 128
"""Positions in a block of the mask; packed sequences are padded to whole blocks."""


def tables(lengths: Sequence[int], causal: bool = True) -> dict[str, Tensor]:
    """Block tables of a mask that ends at document boundaries; `lengths` must sum to whole blocks. With `causal` a
    position sees its document up to itself, otherwise all of its document.

    `documents` int32 [L]; counts int32 [Q] and indices int32 [Q, Q] of key blocks that each of the Q query blocks sees
    in part or in full, in the layout of `BlockMask.from_kv_blocks`.
    """
    documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    first, last = documents[::BLOCK], documents[BLOCK - 1 :: BLOCK]  # of each block
    # Documents are in order: two blocks have one in common when neither ends before the other begins.
    seen = (first[:, None] <= last) & (first <= last[:, None])
    full = (first[:, None] == last) & (first == last[:, None])
    if causal:
        query, key = np.arange(len(first))[:, None], np.arange(len(first))[None]
        # All of a key block before the query block, where one document reaches from the one to the other's end.
        seen, full = seen & (key <= query), (key < query) & (first == last[:, None])
    out = {"documents": torch.from_numpy(documents)}
    for name, table in (("partial", seen & ~full), ("full", full)):
        out[f"{name}_count"] = torch.from_numpy(table.sum(1).astype(np.int32))
        out[f"{name}_index"] = torch.from_numpy(np.argsort(~table, axis=1, kind="stable").astype(np.int32))
    return out


def block_mask(
    documents: Tensor,
    partial_count: Tensor,
    partial_index: Tensor,
    full_count: Tensor,
    full_index: Tensor,
    causal: bool = True,
) -> BlockMask:
    """The BlockMask of `tables`, on their device."""

    def same_document(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return documents[query] == documents[key]

    def same_document_before(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[query] == documents[key])

    return BlockMask.from_kv_blocks(
        partial_count[None, None],
        partial_index[None, None],
        full_count[None, None],
        full_index[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=same_document_before if causal else same_document,
        seq_lengths=(len(documents), len(documents)),
    )


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
    """transformers' flex_attention with inputs of one type; SDPA where the mask is no BlockMask."""
    if is_table(mask):
        return within_items(module, query, key, value, mask, **kwargs)
    if not isinstance(mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    if query.device.type == "cpu" and query.requires_grad:
        raise ConfigError("model.llm.attention: flex has no backward pass on the CPU; use `sdpa`.")
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return flex_attention_forward(module, query, key, value, mask, **kwargs)


def check(config: Any, key: str) -> None:
    """ConfigError for language models whose attention these masks do not describe; `key` is the config key that chose
    flex attention."""
    if partial(config):
        raise ConfigError(f"{key}: {config.model_type} has sliding-window layers; use `sdpa`.")
    if config.to_dict().get("attention_dropout", 0.0) > 0:
        raise ConfigError(f"{key}: flex has no attention dropout; set it to 0 or use `sdpa`.")


def partial(config: Any) -> str | None:
    """The kind of those layers of a language model that do not attend to the whole sequence; None where all do."""
    layers = getattr(config, "layer_types", None)
    if layers is None:
        return "sliding_attention" if config.to_dict().get("sliding_window") else None
    return next((kind for kind in layers if kind != "full_attention"), None)


def item_table(documents: Tensor) -> Tensor:
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


def within_items(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
    """Bidirectional attention within each item of an `item_table`, as transformers' attention functions: [1, heads, L,
    size] to [1, L, heads, size]."""
    way = one_by_one if query.device.type == "cpu" else side_by_side
    return way(module, query, key, value, mask, **kwargs)


def side_by_side(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **kwargs: Any) -> Any:
    """As `within_items`, in one call."""
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
    """As `within_items`, with a call for each item."""
    lengths = (mask[0, 0] >= 0).sum(1).tolist()
    kwargs["is_causal"] = False
    outs = [
        sdpa_attention_forward(module, q, k, v, None, **kwargs)[0]
        for q, k, v in zip(*(x.split(lengths, 2) for x in (query, key, value)))
    ]
    return torch.cat(outs, 1), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # of batches that are not packed
