"""Rotary positions, which act inside attention (those that are added to the input are in layers.py)."""

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """Rotary embedding (Su et al. 2021, RoFormer): turns the pairs (x_i, x_(i + d/2)) of queries and keys by an angle
    proportional to the position, so that their product depends on the distance alone.

    Args:
        dim: size of a head; must be even.
        base: the slowest pair turns once in about 2 pi `base` positions.
    """

    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        if dim % 2:
            raise ValueError(f"rotary positions turn pairs of numbers: a head of size {dim} is odd")
        self.dim, self.base = dim, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B, H, T, d] turned by int64 positions [T], the same for all items, or [B, T]; same shape and type."""
        # float32 whatever the model is kept in: half precision cannot tell late positions apart.
        steps = torch.arange(0, self.dim, 2, device=x.device, dtype=torch.float32)
        angles = positions[..., None] * self.base ** -(steps / self.dim)
        if angles.dim() == 3:
            angles = angles[:, None]
        cos, sin = angles.cos(), angles.sin()
        a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
