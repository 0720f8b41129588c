"""Resampler: torchaudio's `resample` without torchaudio, for the Higgs codec."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ZEROS, ROLLOFF = 6, 0.99
"""torchaudio's defaults: zero crossings of the sinc on either side, and where the filter ends, of the lower Nyquist."""


def resample(wave: Tensor, rate: int, to: int) -> Tensor:
    """[..., samples] at `rate` Hz to [..., ceil(samples * to / rate)] at `to` Hz: a sinc under a Hann window (Smith
    2002), with the window and length that torchaudio has."""
    from torch.nn import functional as F

    shared = math.gcd(rate, to)
    old, new = rate // shared, to // shared
    filters, width = _filters(old, new)
    flat = wave.reshape(-1, 1, wave.shape[-1])
    # One filter for each of the `new` phases of the output; they come round every `old` samples of the input.
    phases = F.conv1d(F.pad(flat, (width, width + old)), filters.to(wave), stride=old)
    out = phases.transpose(1, 2).flatten(1)[:, : -(-new * wave.shape[-1] // old)]
    return out.reshape(*wave.shape[:-1], -1)


@cache
def _filters(old: int, new: int) -> tuple[Tensor, int]:
    """Filters [new, 1, taps], and how far they reach to either side."""
    import torch

    cutoff = min(old, new) * ROLLOFF
    width = math.ceil(ZEROS * old / cutoff)
    taps = torch.arange(-width, width + old, dtype=torch.float64) / old
    phases = torch.arange(new, dtype=torch.float64)[:, None] / new
    time = ((taps - phases) * cutoff).clamp(-ZEROS, ZEROS)
    window = (time * math.pi / ZEROS / 2).cos().square()
    return (torch.sinc(time) * window * cutoff / old).float()[:, None], width


@contextmanager
def with_resample() -> Iterator[None]:
    """Where torchaudio is not installed, what is imported in this block finds a torchaudio with `resample` alone."""
    if find_spec("torchaudio") is not None:
        yield
        return
    stand_in = ModuleType("torchaudio")
    stand_in.functional = ModuleType("torchaudio.functional")  # type: ignore[attr-defined]
    stand_in.functional.resample = resample
    sys.modules["torchaudio"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torchaudio"]
