"""Sounds of the studio's tests, and files without a record."""

from pathlib import Path

import numpy as np

RATE = 44100


def tone(seconds=1.0, rate=RATE, level=0.3):
    """A tone in beats, float32 mono [samples]."""
    time = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * 220 * time) * (np.sin(2 * np.pi * 2 * time) > -0.5)).astype(np.float32)


def unlisted(dataset):
    """Names of WAV files that no record names: what was recorded when a process was killed in the middle."""
    named = {Path(r["audio_path"]).name for r in [*dataset.records(), *dataset.removed()]}
    return sorted(p.name for p in (dataset.folder / "audio").glob("*.wav") if p.name not in named)


def spoken(folder, name, texts):
    """A data set of a studio's folder, whose recordings are these texts as espeak says them."""
    from stentor.audio.synth import say
    from stentor.studio.projects import Projects

    dataset = Projects(folder).create(name, "en")
    for text in texts:
        dataset.add(say(text, voice="en-us", speed=170, pitch=50).audio, 16000, text)
    return dataset
