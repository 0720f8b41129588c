"""Postprocessing of synthetic speech: silence at its ends, fades, pauses between parts, loudness."""

from collections.abc import Sequence

import numpy as np

from stentor.data.activity import loud_spans

MARGIN = 0.1
"""Seconds of silence, faded in and out, that are left or added before and after speech."""
SEAM = 0.005
"""Seconds that are faded where parts meet without a pause."""
LEVEL, PEAK = 0.1, 0.95
"""Root mean square of the loud parts, and the largest sample, that speech is given."""
AFTER_SENTENCE, AFTER_CLAUSE = 0.35, 0.2
"""Seconds between parts after the end of a sentence, and elsewhere; the margins are part of it."""
ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")


def trim_silence(audio: np.ndarray, rate: int) -> np.ndarray:
    """Float32 [samples] with just `MARGIN` seconds of fading silence before and after speech; audio without
    anything loud enough to be speech is only faded."""
    margin = round(MARGIN * rate)
    spans = loud_spans(audio, rate)
    first = round(spans[0][0] * rate) if spans else margin
    last = round(spans[-1][1] * rate) if spans else max(len(audio) - margin, margin)
    speech = audio[max(0, first - margin) : last + margin]
    before, after = min(first, margin), min(max(0, len(audio) - last), margin)
    return np.pad(_faded(speech, before, after), (margin - before, margin - after))


def concatenate(audios: Sequence[np.ndarray], rate: int, texts: Sequence[str], pauses: bool = True) -> np.ndarray:
    """Parts one after the other: with `pauses`, as long as the punctuation at the end of each text asks for, beyond the
    margins that `trim_silence` left; without, for parts of a requested duration."""
    seam = round(SEAM * rate)
    pieces: list[np.ndarray] = []
    for i, (audio, text) in enumerate(zip(audios, texts)):
        pieces.append(audio if pauses else _faded(audio, seam, seam))
        if pauses and i < len(audios) - 1:
            pause = AFTER_SENTENCE if text.rstrip("\"'”’)]」』").endswith(ENDS) else AFTER_CLAUSE
            pieces.append(np.zeros(max(0, round((pause - 2 * MARGIN) * rate)), np.float32))
    return np.concatenate(pieces)


def normalize_loudness(audio: np.ndarray) -> np.ndarray:
    """Float32 [samples] with an RMS of 0.1 over what is loud (within 40 dB of the loudest 20 ms), its peak at most
    0.95; silence stays silence."""
    size = 480
    frames = np.pad(audio, (0, -len(audio) % size)).reshape(-1, size)
    power = np.square(frames, dtype=np.float64).mean(1)
    loudest = power.max(initial=0.0)
    if loudest <= 1e-10:
        return audio
    rms = float(np.sqrt(power[power > 1e-4 * loudest].mean()))
    return audio * np.float32(min(LEVEL / rms, PEAK / float(np.abs(audio).max())))


def _faded(audio: np.ndarray, before: int, after: int) -> np.ndarray:
    """Half a cosine over so many samples at each end."""
    out = audio.astype(np.float32, copy=True)
    before, after = min(before, len(out)), min(after, len(out))
    if before:
        out[:before] *= 0.5 - 0.5 * np.cos(np.pi * (np.arange(before) + 0.5) / before, dtype=np.float32)
    if after:
        out[len(out) - after :] *= 0.5 + 0.5 * np.cos(np.pi * (np.arange(after) + 0.5) / after, dtype=np.float32)
    return out
