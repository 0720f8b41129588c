"""Building blocks of the layers other than attention: norms, activations, feed-forward, convolution, positions."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.errors import DataError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}
GATED = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}


class ScaleNorm(nn.Module):
    """g * x / ||x|| with one learnt g, sqrt(width) at first (Nguyen & Salazar 2019)."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), math.sqrt(width)))  # not a scalar: FSDP2 divides none

    def forward(self, x: Tensor) -> Tensor:
        """[..., width], computed in float32 and returned in the type of `x`."""
        return (F.normalize(x.float(), dim=-1, eps=1e-5) * self.scale).to(x.dtype)


def norm(kind: str, width: int) -> nn.Module:
    """The norm at the beginning of a branch; none with ReZero."""
    if kind == "layernorm":
        return nn.LayerNorm(width)
    if kind == "rmsnorm":
        return nn.RMSNorm(width, eps=1e-6)
    return ScaleNorm(width) if kind == "scalenorm" else nn.Identity()


class Dropout(nn.Dropout):
    """Dropout whose random numbers cost half the time on a CPU, where torch draws one 64-bit number for each element:
    here one is enough for four. The share is met to 1/65536."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0 or x.device.type != "cpu":
            return super().forward(x)
        count = x.numel()
        noise = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        keep = noise[:count].view(x.shape) >= round(self.p * 65536) - 32768
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))


class Residual(nn.Module):
    """One residual branch: norm first (pre-norm, Xiong et al. 2020), then `inner`, dropout, and the sum.

    With ReZero (Bachlechner et al. 2020) there is no norm; the branch is scaled by a learnt number that starts at 0.
    """

    inner: Any

    def __init__(self, inner: nn.Module, kind: str, width: int, dropout: float, scale: float = 1.0):
        """`scale`: factor of the branch, such as a half for Macaron's feed-forward layers."""
        super().__init__()
        self.norm = norm(kind, width)
        self.inner = inner
        self.dropout = Dropout(dropout)
        self.scale = scale
        self.alpha = nn.Parameter(torch.zeros(1)) if kind == "rezero" else None

    def forward(self, x: Tensor, *args: Tensor | None, **options: object) -> Tensor:
        """[..., width]; the rest goes to `inner`."""
        branch = self.dropout(self.inner(self.norm(x), *args, **options))
        scale = self.scale if self.alpha is None else self.scale * self.alpha
        return x + (branch if isinstance(scale, float) and scale == 1.0 else scale * branch)


class FeedForward(nn.Module):
    """Two linear layers with an activation between, or a gated linear unit (Shazeer 2020).

    The layer between has `factor` * width values. A gated unit projects to it twice, so it gets two thirds of them
    (rounded up to a multiple of 8) and has as many parameters as the others.
    """

    def __init__(self, width: int, factor: float, activation: str, dropout: float):
        super().__init__()
        self.gated = activation in GATED
        self.activation = ACTIVATIONS[GATED.get(activation, activation)]
        hidden = max(1, round(factor * width))
        if self.gated:
            hidden = max(8, math.ceil(hidden * 2 / 3 / 8) * 8)
        self.up = nn.Linear(width, 2 * hidden if self.gated else hidden)
        self.dropout = Dropout(dropout)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        hidden = self.up(x)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = hidden * self.activation(gate)
        else:
            hidden = self.activation(hidden)
        return self.down(self.dropout(hidden))


class Convolution(nn.Module):
    """The convolution module of the Conformer (Gulati et al. 2020): gate, depthwise convolution, norm, SiLU, out.

    Its norm is a LayerNorm over the channels of each frame instead of the BatchNorm, whose result would depend on the
    other items of the batch and on their padding. With `causal` a frame sees only those before it.
    """

    def __init__(self, width: int, kernel: int, causal: bool = False):
        super().__init__()
        self.gate = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)
        self.padding = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, before: list[Tensor] | None = None) -> Tensor:
        """[B, T, width] to the same; `mask` [B, T] is true at frames, false at padding, which reads as silence does
        beyond the ends. `before`: of a causal convolution chunk by chunk, the [B, width, kernel - 1] before the chunk,
        in a list in which those before the next take their place."""
        x = F.glu(self.gate(x), dim=-1)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        x = x.transpose(1, 2)
        x = F.pad(x, self.padding) if before is None else torch.cat([before[0], x], 2)
        if before is not None:
            before[0] = x[:, :, x.shape[2] - self.padding[0] :]
        return self.out(F.silu(self.norm(self.depthwise(x).transpose(1, 2))))


class Positions(nn.Module):
    """Position vectors that are added to the input: `sinusoidal` (Vaswani et al. 2017) or `learned`."""

    def __init__(self, kind: str, width: int, max_positions: int):
        """`max_positions`: number of learnt positions; sinusoids have no limit."""
        super().__init__()
        self.width, self.max_positions = width, max_positions
        self.table = nn.Embedding(max_positions, width) if kind == "learned" else None
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.5)  # about the size of sinusoids

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """[B, T, width] with the vectors of the positions from `start` on added. Raises DataError for positions that
        were not learnt."""
        end = start + x.shape[1]
        if self.table is not None and end > self.max_positions:
            raise DataError(
                f"A sequence of {end} positions is longer than the {self.max_positions} of this model: cut it into "
                "shorter pieces, or train one with more `max_positions` or with rope or sinusoidal positions."
            )
        positions = torch.arange(start, end, device=x.device)
        if self.table is not None:
            return x + self.table(positions).to(x.dtype)
        half = (self.width + 1) // 2
        angles = positions[:, None] * 10_000 ** -(torch.arange(half, device=x.device) / half)
        return x + torch.cat([angles.sin(), angles.cos()], -1)[:, : self.width].to(x.dtype)


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


def initialise(module: nn.Module, outs: set[nn.Linear]) -> None:
    """Linear layers get normal weights of variance 1 / inputs and no bias, so that a branch keeps the size of its input
    at any width. The last layers of the branches, `outs`, are made smaller by the root of their number: the sum over
    all branches keeps its size too (Radford et al. 2019), and training needs no long warm-up."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            std = 1 / math.sqrt(layer.in_features)
            nn.init.normal_(layer.weight, std=std / math.sqrt(max(len(outs), 1)) if layer in outs else std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
