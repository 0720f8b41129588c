"""Features of training from those that sherpa-onnx 2.0.1 computes for transducers of NeMo, as layers of a graph.

It gives log energies in bands of Slaney's mel scale, of frames of 25 ms without mean removal, half a hop (5 ms) behind
NeMo's; for an OfflineRecognizer from 0 to 7600 Hz and with Povey's window, for an OnlineRecognizer to 8000 Hz and with
Hann's. From `BANDS` narrow ones the bands of training follow by least squares, and NeMo's frames as the mean of
neighbours. What is left of the difference is the window, the 5 ms and the mean of a frame.
"""

import math

import torch
from torch import Tensor, nn

from stentor.audio.features import N_FFT
from stentor.models.encoders.features import FIXED, FLOOR, fixed_mel
from stentor.models.encoders.geometry import SAMPLE_RATE, mask

BANDS = 160
"""Bands that sherpa-onnx is asked for; about 190 are the most, as each must hold a value of the spectrum."""
FFT = 512
EPSILON = torch.finfo(torch.float32).eps
"""Least energy of Kaldi and of sherpa-onnx."""
GUARD = 2.0**-24
"""Energy that NeMo adds before the logarithm."""
RIDGE = 1e-3
"""Ridge of the least squares, relative to the bands' heights."""


def slaney_filters(count: int, high: float = SAMPLE_RATE / 2) -> Tensor:
    """Triangles of unit area on Slaney's mel scale from 0 to `high` Hz, float64 [FFT // 2 + 1, count]."""
    step = math.log(6.4) / 27
    mels = torch.linspace(0, 15 + math.log(high / 1000) / step, count + 2, dtype=torch.float64)
    edges = torch.where(mels < 15, mels * 200 / 3, 1000 * (step * (mels - 15)).exp())
    hertz = torch.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1, dtype=torch.float64)[:, None]
    below, middle, above = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((hertz - below) / (middle - below), (above - hertz) / (above - middle))
    return triangles.clamp(min=0) * 2 / (above - below)


class SherpaFeatures(nn.Module):
    """Log energies [B, BANDS, T] with lengths [B] to features [B, mels, T]; T and lengths stay."""

    matrix: Tensor

    def __init__(self, kind: str, mels: int, stream: bool):
        """`kind`: as in `Geometry.log_mel`, or `nemotron`: NeMo's without normalisation. `stream`: for an
        OnlineRecognizer."""
        super().__init__()
        self.kind = kind
        self.before = int(kind in ("parakeet", "nemotron"))
        """Features before each that are needed; before the first one it is repeated."""
        wanted = fixed_mel(mels).extractor.filters.double() if kind == "fixed" else slaney_filters(mels)
        if "whisper" in kind:  # no emphasis, and a spectrum of fewer values
            emphasis = 1.9409 - 1.94 * torch.linspace(0, math.pi, len(wanted), dtype=torch.float64).cos()
            wanted = wanted / emphasis[:, None] * (N_FFT / FFT)
        bands = slaney_filters(BANDS, 8000.0 if stream else 7600.0)
        heights = bands.amax(0)
        system = torch.cat([bands / heights, RIDGE**0.5 * torch.eye(BANDS, dtype=torch.float64)])
        target = torch.cat([wanted, torch.zeros(BANDS, mels, dtype=torch.float64)])
        matrix = torch.linalg.lstsq(system, target).solution / heights[:, None]
        hann = torch.hann_window(400, periodic=False, dtype=torch.float64)
        powers = {True: (hann**2).sum(), False: (hann**1.7).sum()}  # of Hann's window and of Povey's
        self.register_buffer("matrix", (matrix * powers[kind != "fixed"] / powers[stream]).float().T.contiguous())

    def forward(self, energies: Tensor, lengths: Tensor) -> Tensor:
        # Below `EPSILON` nothing is known; as silence it becomes what silence is in training.
        power = (self.matrix @ (energies.exp() - EPSILON).clamp(min=0)).clamp(min=0)
        if self.before:
            logs = (power + GUARD).log()
            logs = (logs + torch.cat([logs[:, :, :1], logs[:, :, :-1]], 2)) / 2
            return logs if self.kind == "nemotron" else _normalized(logs, lengths)
        if self.kind == "fixed":
            return (power.clamp(min=EPSILON).log() - FIXED[0]) / FIXED[1]
        if self.kind == "fixed_whisper":
            return (power.clamp(min=10**FLOOR).log10() + 4) / 4
        logs = power.clamp(min=1e-10).log10()
        most = logs.masked_fill(~mask(lengths, logs.shape[2])[:, None], -10.0).amax((1, 2), keepdim=True)
        return (torch.maximum(logs, most - 8) + 4) / 4


def _normalized(logs: Tensor, lengths: Tensor) -> Tensor:
    """Mean 0 and variance 1 of each band over the frames of each clip."""
    keep, count = mask(lengths, logs.shape[2])[:, None], lengths[:, None, None]
    centred = (logs - (logs * keep).sum(2, keepdim=True) / count) * keep
    variance = (centred**2).sum(2, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + 1e-5)
