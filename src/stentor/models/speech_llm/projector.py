"""Projector: from encoder frames to positions of the language model."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from stentor.errors import ConfigError


def factor(frame_rate: float, rate: float) -> int:
    """Encoder frames per position. Raises ConfigError when the frame rate is no multiple of the rate."""
    ratio = frame_rate / rate
    if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6:
        fits = ", ".join(f"{frame_rate / n:g}" for n in (1, 2, 4, 5, 8))
        raise ConfigError(
            f"model.projector.rate: the encoder has {frame_rate:g} frames a second, which is no multiple of {rate:g}: "
            f"take {fits} or another whole fraction."
        )
    return round(ratio)


class Projector(nn.Module):
    """Joins `factor` frames and maps them to the language model's width.

    [B, T, width] (zero at padding) -> [B, ceil(T / factor), out]. `mlp` stacks the frames (SLAM-ASR, Ma et al. 2024);
    `conv` is a convolution of that stride which also sees half a stride on either side.
    """

    def __init__(self, kind: str, factor: int, width: int, out: int, hidden: int | None = None, dropout: float = 0.0):
        super().__init__()
        self.factor = factor
        hidden = hidden or out
        self.conv = nn.Conv1d(width, hidden, factor + 2 * (factor // 2), factor) if kind == "conv" else None
        self.linear1: Any = nn.Linear(factor * width, hidden) if kind == "mlp" else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(hidden, out)

    def forward(self, frames: Tensor) -> Tensor:
        frames = F.pad(frames, (0, 0, 0, -frames.shape[1] % self.factor))
        if self.conv is not None:
            side = self.factor // 2
            hidden = self.conv(F.pad(frames.transpose(1, 2), (side, side))).transpose(1, 2)
        else:
            hidden = self.linear1(frames.reshape(frames.shape[0], -1, self.factor * frames.shape[2]))
        return self.linear2(self.dropout(F.gelu(hidden)))

    def positions(self, frames: Any) -> Any:
        """Positions of so many frames; takes ints and integer tensors."""
        return -(-frames // self.factor)
