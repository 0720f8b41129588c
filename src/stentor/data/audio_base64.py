"""Sound as plain data: how predictions that are speech travel between processes and lie in JSON files."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def packed_sound(samples: np.ndarray, rate: int) -> dict[str, Any]:
    """`{"flac": base64, "rate": rate}` of mono float32 [samples] at `rate` Hz; what is beyond full scale is clipped."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    return {"flac": base64.b64encode(file.getvalue()).decode("ascii"), "rate": rate}


def is_sound(value: Any) -> bool:
    """Whether a value is what `packed_sound` makes."""
    return isinstance(value, Mapping) and value.keys() == {"flac", "rate"}


def unpacked_sound(packed: Mapping[str, Any]) -> np.ndarray:
    """The samples of `packed_sound`: float32 [samples]."""
    import soundfile

    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(packed["flac"])), dtype="float32")
    return samples
