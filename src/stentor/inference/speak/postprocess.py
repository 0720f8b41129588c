"""Postprocessing of synthetic speech: silence, fades, pauses between pieces, and loudness."""

import itertools

import numpy as np

from stentor.data.activity import join_spans, loud_spans

MARGIN = 0.1
"""Seconds of faded silence kept or added before and after speech."""
SEAM = 0.005
"""Seconds of the cross-fade between pieces without a pause."""
LEVEL, PEAK = 0.1, 0.95
"""Root mean square of the loud parts and largest sample of the result."""
MOST_GAIN = 4.0
"""Maximum ratio of the gain of a piece to the gain of the first piece, in both directions."""
KNEE = 0.8
"""Level at which the limiter begins."""
LIMITED = 4
"""Number of times the gain of a piece is adjusted, because the limiter reduces the level again."""
LONGEST_SILENCE = 1.0
"""Maximum seconds of silence within speech; OmniVoice keeps half a second on either side."""
AFTER_PARAGRAPH, AFTER_SENTENCE, AFTER_CLAUSE, AFTER_WORD = 0.6, 0.35, 0.2, 0.1
"""Seconds between pieces, including the margins, by the kind of end."""
ENDS = tuple(".!?…。！？｡।॥؟۔።။។")
COMMAS = tuple(",;:—–،؛，；：、､")


def trim_silence(audio: np.ndarray, rate: int) -> np.ndarray:
    """Return float32 [samples] with exactly `MARGIN` seconds of faded silence before and after speech; audio without
    speech is only faded."""
    margin = round(MARGIN * rate)
    spans = loud_spans(audio, rate)
    first = round(spans[0][0] * rate) if spans else margin
    last = round(spans[-1][1] * rate) if spans else max(len(audio) - margin, margin)
    speech = audio[max(0, first - margin) : last + margin]
    before, after = min(first, margin), min(max(0, len(audio) - last), margin)
    return np.pad(_faded(speech, before, after), (margin - before, margin - after))


def shorten_silence(audio: np.ndarray, rate: int) -> np.ndarray:
    """Return float32 [samples] with silences within speech cut to at most `LONGEST_SILENCE` seconds."""
    spans = join_spans(loud_spans(audio, rate), LONGEST_SILENCE)
    out, seam, half = audio, round(SEAM * rate), LONGEST_SILENCE / 2
    for (_, before), (after, _) in reversed(list(itertools.pairwise(spans))):
        out = _crossfade(out[: round((before + half) * rate) + seam], out[round((after - half) * rate) :], seam)
    return out


class Joiner:
    """Joins the pieces of one utterance, which arrive one by one.

    With `pauses` (off if a duration was given), each piece is trimmed and followed by silence that depends on its
    punctuation; within a sentence, the silence around the cut is cross-faded. All pieces get the level of the first
    one, which is the RMS `level` as far as its peak allows.
    """

    def __init__(self, rate: int, pauses: bool = True, level: float = LEVEL):
        self.rate, self.pauses, self.level = rate, pauses, level
        self.gain: float | None = None
        self.rest = np.zeros(0, np.float32)

    def add(self, audio: np.ndarray, text: str, last: bool) -> np.ndarray:
        """Add the next piece, float32 [samples], with the end of its text, and return the float32 [samples] that are
        now complete."""
        if not self.pauses:
            return _faded(self._levelled(audio), round(SEAM * self.rate), round(SEAM * self.rate))
        piece = self._levelled(trim_silence(shorten_silence(audio, self.rate), self.rate))
        piece = _overlapped(self.rest, piece)
        between = 0 if last else round((pause_after(text) - 2 * MARGIN) * self.rate)
        complete = len(piece) + min(between, 0)
        self.rest = piece[complete:]
        return np.pad(piece[:complete], (0, max(between, 0)))

    def _levelled(self, audio: np.ndarray) -> np.ndarray:
        rms, peak = loudness(audio), float(np.abs(audio).max(initial=0.0))
        if not rms:
            return audio
        if self.gain is None:
            self.gain = min(self.level / rms, PEAK / peak)
            self.level = self.gain * rms
        gain, least, most = self.level / rms, self.gain / MOST_GAIN, self.gain * MOST_GAIN
        for _ in range(LIMITED):
            out = _limited(audio * np.float32(min(max(gain, least), most)))
            gain *= self.level / loudness(out)
        return out


def pause_after(text: str) -> float:
    """Return the seconds of silence after the end of a text."""
    ended = text.rstrip().rstrip("\"'”’»)]」』")
    if text.endswith("\n"):
        return AFTER_PARAGRAPH
    return AFTER_SENTENCE if ended.endswith(ENDS) else AFTER_CLAUSE if ended.endswith(COMMAS) else AFTER_WORD


def loudness(audio: np.ndarray) -> float:
    """Return the RMS of [samples] over the loud parts, within 40 dB of the loudest 20 ms (at 24 kHz); 0 for silence."""
    size = 480
    frames = np.pad(audio, (0, -len(audio) % size)).reshape(-1, size)
    power = np.square(frames, dtype=np.float64).mean(1)
    loudest = power.max(initial=0.0)
    return 0.0 if loudest <= 1e-10 else float(np.sqrt(power[power > 1e-4 * loudest].mean()))


def _limited(audio: np.ndarray) -> np.ndarray:
    """Compress peaks to below `PEAK`; samples under `KNEE` are unchanged."""
    size = np.abs(audio)
    if size.max(initial=0.0) <= PEAK + 1e-6:
        return audio
    room = PEAK - KNEE
    return np.where(size <= KNEE, audio, np.sign(audio) * (KNEE + room * np.tanh((size - KNEE) / room)))


def _overlapped(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the sum of the end of a piece and the beginning of the next, both already faded."""
    out = after.copy()
    out[: len(before)] += before[: len(out)]
    return out


def _crossfade(before: np.ndarray, after: np.ndarray, size: int) -> np.ndarray:
    """Concatenate two arrays with a cross-fade of `size` samples."""
    seam = _faded(before[-size:], 0, size) + _faded(after[:size], size, 0)
    return np.concatenate([before[:-size], seam, after[size:]])


def _faded(audio: np.ndarray, before: int, after: int) -> np.ndarray:
    """Fade `before` and `after` samples at the ends with half a cosine."""
    out = audio.astype(np.float32, copy=True)
    before, after = min(before, len(out)), min(after, len(out))
    if before:
        out[:before] *= 0.5 - 0.5 * np.cos(np.pi * (np.arange(before) + 0.5) / before, dtype=np.float32)
    if after:
        out[len(out) - after :] *= 0.5 + 0.5 * np.cos(np.pi * (np.arange(after) + 0.5) / after, dtype=np.float32)
    return out
