"""Sounds of the studio's tests."""

import numpy as np

RATE = 44100


def tone(seconds=1.0, rate=RATE, level=0.3):
    """A tone in beats, float32 mono [samples]."""
    time = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * 220 * time) * (np.sin(2 * np.pi * 2 * time) > -0.5)).astype(np.float32)
