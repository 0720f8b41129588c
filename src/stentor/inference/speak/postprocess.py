"""Postprocessing of synthetic speech: silence at its ends and within, fades, pauses between pieces, loudness."""

import itertools

import numpy as np

from stentor.data.activity import join_spans, loud_spans

MARGIN = 0.1
"""Seconds of silence, faded in and out, that are left or added before and after speech."""
SEAM = 0.005
"""Seconds that are faded where pieces meet without a pause."""
LEVEL, PEAK = 0.1, 0.95
"""Root mean square of the loud parts, and the largest sample, that speech is given."""
MOST_GAIN = 4.0
"""Gain of a piece relative to the first one."""
KNEE = 0.8
"""Where the limiter begins."""
LIMITED = 4
"""Number of times that the gain of a piece is corrected, as the limiter reduces it again."""
LONGEST_SILENCE = 1.0
"""Seconds of silence within speech; OmniVoice keeps half a second at either side."""
AFTER_PARAGRAPH, AFTER_SENTENCE, AFTER_CLAUSE, AFTER_WORD = 0.6, 0.35, 0.2, 0.1
"""Seconds between pieces, by what ends there; the margins are part of it."""
ENDS = tuple(".!?…。！？｡।॥؟۔።။។")
COMMAS = tuple(",;:—–،؛，；：、､")


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


def shorten_silence(audio: np.ndarray, rate: int) -> np.ndarray:
    """Float32 [samples] with silences within speech of no more than `LONGEST_SILENCE` seconds: their middle goes."""
    spans = join_spans(loud_spans(audio, rate), LONGEST_SILENCE)
    out, seam, half = audio, round(SEAM * rate), LONGEST_SILENCE / 2
    for (_, before), (after, _) in reversed(list(itertools.pairwise(spans))):
        out = _crossfade(out[: round((before + half) * rate) + seam], out[round((after - half) * rate) :], seam)
    return out


class Joiner:
    """Joins the pieces of one utterance, which come one by one.

    With `pauses` (not where a duration was asked for) each is trimmed, and after it there is as much silence as its
    punctuation asks for; where a sentence continues, the silence around the cut is cross-faded. All pieces have the
    level of the first one, which is `level`, an RMS, as far as its peak allows."""

    def __init__(self, rate: int, pauses: bool = True, level: float = LEVEL):
        self.rate, self.pauses, self.level = rate, pauses, level
        self.gain: float | None = None
        self.rest = np.zeros(0, np.float32)

    def add(self, audio: np.ndarray, text: str, last: bool) -> np.ndarray:
        """Float32 [samples] that are complete with the next piece, float32 [samples], of which the end of its text is
        given."""
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
    """Seconds of silence that the end of a text asks for."""
    ended = text.rstrip().rstrip("\"'”’»)]」』")
    if text.endswith("\n"):
        return AFTER_PARAGRAPH
    return AFTER_SENTENCE if ended.endswith(ENDS) else AFTER_CLAUSE if ended.endswith(COMMAS) else AFTER_WORD


def loudness(audio: np.ndarray) -> float:
    """RMS of [samples] over what is loud: within 40 dB of the loudest 20 ms (at 24 kHz). 0 of silence."""
    size = 480
    frames = np.pad(audio, (0, -len(audio) % size)).reshape(-1, size)
    power = np.square(frames, dtype=np.float64).mean(1)
    loudest = power.max(initial=0.0)
    return 0.0 if loudest <= 1e-10 else float(np.sqrt(power[power > 1e-4 * loudest].mean()))


def _limited(audio: np.ndarray) -> np.ndarray:
    """Peaks beyond `PEAK` bent below it, and what is under `KNEE` left as it is."""
    size = np.abs(audio)
    if size.max(initial=0.0) <= PEAK + 1e-6:
        return audio
    room = PEAK - KNEE
    return np.where(size <= KNEE, audio, np.sign(audio) * (KNEE + room * np.tanh((size - KNEE) / room)))


def _overlapped(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The sum of the end of a piece and the beginning of the next, both faded already."""
    out = after.copy()
    out[: len(before)] += before[: len(out)]
    return out


def _crossfade(before: np.ndarray, after: np.ndarray, size: int) -> np.ndarray:
    """One after the other, overlapping by so many samples."""
    seam = _faded(before[-size:], 0, size) + _faded(after[:size], size, 0)
    return np.concatenate([before[:-size], seam, after[size:]])


def _faded(audio: np.ndarray, before: int, after: int) -> np.ndarray:
    """Half a cosine over so many samples at each end."""
    out = audio.astype(np.float32, copy=True)
    before, after = min(before, len(out)), min(after, len(out))
    if before:
        out[:before] *= 0.5 - 0.5 * np.cos(np.pi * (np.arange(before) + 0.5) / before, dtype=np.float32)
    if after:
        out[len(out) - after :] *= 0.5 + 0.5 * np.cos(np.pi * (np.arange(after) + 0.5) / after, dtype=np.float32)
    return out
