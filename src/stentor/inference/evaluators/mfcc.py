"""Cepstral voice embedding: built in, without a model."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

RATE, SIZE, HOP = 16000, 512, 160
BANDS, CEPSTRA = 64, 40
QUIET = 40.0
"""Threshold of silence in dB below the loudest frame."""


class Cepstra(SpeechEvaluator):
    """Voice embedding without a model: mean and deviation over time of mel cepstra.

    It is not a trained speaker model: it distinguishes the voices of one set (`voice_accuracy_real` shows how well),
    but its similarities cannot be compared between sets or with other embeddings. The long-term statistics of Furui
    1981, "Comparison of speaker recognition methods using statistical features and dynamic features".
    """

    type: Literal["cepstra"] = "cepstra"

    gives: ClassVar = "voice"
    relative: ClassVar[bool] = True

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        return LoadedEvaluator(RATE, lambda audios, languages: [mfcc(audio) for audio in audios])


def mfcc(audio: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation over time of mel cepstra 1 to 39, float32 [78], of float32 [samples] at 16
    kHz.

    The level does not matter: audio is scaled to one level, cepstrum 0 and silence are left out.
    """
    import numpy as np

    audio = np.pad(audio, (0, max(0, SIZE - len(audio)))).astype(np.float32)
    audio = audio * np.float32(0.1 / max(float(np.sqrt(np.square(audio).mean())), 1e-6))
    frames = np.lib.stride_tricks.sliding_window_view(audio, SIZE)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(SIZE).astype(np.float32), axis=1)) ** 2
    loud = power.sum(1)
    power = power[loud >= loud.max() * 10 ** (-QUIET / 10)]
    mels, cosines = _tables()
    coefficients = np.log(power.astype(np.float32) @ mels + 1e-8) @ cosines
    return np.concatenate([coefficients.mean(0), coefficients.std(0)]).astype(np.float32)


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Mel filters [257, 64] and the cosine transform of their logarithms [64, 39]."""
    import numpy as np

    from stentor.audio.features import mel_filters

    mels = mel_filters(BANDS, SIZE, RATE)
    angles = (np.arange(BANDS)[:, None] + 0.5) * np.arange(1, CEPSTRA) * np.pi / BANDS
    return mels, (np.cos(angles) * np.sqrt(2 / BANDS)).astype(np.float32)
