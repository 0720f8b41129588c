"""Parts of layers that hear a recording chunk by chunk, and what they keep of the chunks before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Lookahead(nn.Module):
    """Each frame with the next ones, weighted by channel (row convolution, Amodei et al. 2016)."""

    def __init__(self, width: int, frames: int):
        super().__init__()
        self.frames = frames
        self.weight = nn.Parameter(torch.zeros(width, 1, frames))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, width] to the same; `mask` [B, T] is true at frames."""
        ahead = F.pad(x.masked_fill(~mask[..., None], 0)[:, 1:].transpose(1, 2), (0, self.frames))
        return x + F.conv1d(ahead, self.weight, groups=len(self.weight)).transpose(1, 2)


def lookahead_of(encoder: nn.Module) -> Lookahead | None:
    """The lookahead of an encoder that has one."""
    return next((part for part in encoder.children() if isinstance(part, Lookahead)), None)


def look_ahead(encoder: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Frames [B, T, width] after the encoder's lookahead, where it has one; `mask` [B, T] is true at frames."""
    lookahead = lookahead_of(encoder)
    return x if lookahead is None else lookahead(x, mask)  # type: ignore[no-any-return]


class CausalConv(nn.Conv1d):
    """A convolution over time [B, C, T] to as many frames, that looks back only."""

    @classmethod
    def of(cls, conv: nn.Conv1d) -> CausalConv:
        """With the weights of a convolution, from whose middle it is moved back."""
        sizes = conv.in_channels, conv.out_channels, conv.kernel_size[0]
        causal = cls(*sizes, groups=conv.groups, bias=conv.bias is not None)
        causal.load_state_dict(conv.state_dict())
        return causal

    @property
    def reach(self) -> int:
        """Frames before each one that it sees."""
        return self.kernel_size[0] - 1

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """`before`: the [B, C, reach] before it; None: silence."""
        return super().forward(F.pad(x, (self.reach, 0)) if before is None else torch.cat([before, x], 2))


class KVWindow:
    """Keys and values [B, H, reach, d] of the last frames that a chunk sees, before their positions are applied, and
    which of them there are, bool [B, reach]: none in the beginning. Its size does not grow."""

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor):
        self.keys, self.values, self.mask = keys, values, mask

    def add(self, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of the window and of the next frames [B, H, reach + C, d] with their mask; the window moves
        on."""
        reach = self.mask.shape[1]
        joined = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2), torch.cat([self.mask, mask], 1)
        self.keys, self.values = (x[:, :, x.shape[2] - reach :] for x in joined[:2])
        self.mask = joined[2][:, joined[2].shape[1] - reach :]
        return joined


@dataclass
class ChunkState:
    """State of an encoder layer after the chunks before, for as many streams as a batch has items."""

    window: KVWindow
    convolution: list[Tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """Its tensors; the first dimension is that of the streams."""
        return [self.window.keys, self.window.values, self.window.mask, *self.convolution]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> ChunkState:
        return cls(KVWindow(*tensors[:3]), list(tensors[3:]))
