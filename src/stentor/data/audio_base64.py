"""Audio as plain data: FLAC in base64, for predictions that are speech, between processes and in JSON files."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def encode_audio(samples: np.ndarray, rate: int) -> dict[str, Any]:
    """`{"flac": base64, "rate": rate}` of mono float32 [samples] at `rate` Hz; what is beyond full scale is clipped."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    return {"flac": base64.b64encode(file.getvalue()).decode("ascii"), "rate": rate}


def is_encoded_audio(value: Any) -> bool:
    """Whether a value is the result of `encode_audio`."""
    return isinstance(value, Mapping) and value.keys() == {"flac", "rate"}


def decode_audio(encoded: Mapping[str, Any]) -> np.ndarray:
    """The samples of `encode_audio`: float32 [samples]."""
    import soundfile

    samples, _ = soundfile.read(io.BytesIO(base64.b64decode(encoded["flac"])), dtype="float32")
    return samples
