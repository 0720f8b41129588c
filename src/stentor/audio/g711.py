"""G.711: telephone audio of 8 bits a sample at 8 kHz, by the tables of ITU-T G.711."""

from __future__ import annotations

import numpy as np

RATE = 8000


def decode_mu_law(data: bytes) -> np.ndarray:
    """Float32 [samples] in the range -1 to 1."""
    return _MU_LAW[np.frombuffer(data, np.uint8)]


def decode_a_law(data: bytes) -> np.ndarray:
    """Float32 [samples] in the range -1 to 1."""
    return _A_LAW[np.frombuffer(data, np.uint8)]


def _mu_law(code: int) -> int:
    code ^= 0xFF
    level = (((code & 0x0F) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return -level if code & 0x80 else level


def _a_law(code: int) -> int:
    code ^= 0x55
    level, segment = (code & 0x0F) << 4, code >> 4 & 7
    level = level + 0x108 << segment - 1 if segment else level + 8
    return level if code & 0x80 else -level


_MU_LAW = np.array([_mu_law(code) for code in range(256)], np.float32) / 2**15
_A_LAW = np.array([_a_law(code) for code in range(256)], np.float32) / 2**15
