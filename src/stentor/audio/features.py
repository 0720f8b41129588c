"""Log-mel features of Whisper, for audio of any length. Kaldi's features are in `kaldi`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

RATE, N_FFT = 16000, 400
HOP = 160
"""Samples between two frames: 10 ms."""
WINDOW = 30 * RATE
"""Samples in the 30 s window that Whisper was trained on."""

_EDGE = N_FFT // 2  # samples on either side of a frame's centre
_BLOCK = {"cpu": 512}  # frames at a time; so many spectra stay in a processor's cache
_BANDS = 4  # groups of mel filters, each multiplied with the part of the spectrum that it covers


class WhisperMel:
    """Whisper's log-mel features (Radford et al. 2022), batched, without the padding to 30 s.

    `mel(audios)` with float [samples] arrays or tensors at 16 kHz gives `(features, lengths)`: float32
    [B, n_mels, T] and int64 [B] with `lengths[i] = samples // 160`. Frames beyond a clip's length are exactly 0.

    A clip's frames are the first ones of what transformers' WhisperFeatureExtractor computes for its 30 s window, to
    1e-4, and do not depend on the batch: the clip is followed by zeros, and the floor (8 decades below the maximum) is
    taken over all frames that reach into it. With `pad_to_30s` the whole window is returned ([B, n_mels, 3000], with
    the extractor's values instead of zeros behind the clip); longer clips then raise `DataError`. With `windows` every
    clip is followed by silence up to a whole number of such windows (`[B, n_mels, 3000 * most windows]`), as Voxtral's
    processor has it: the floor is that of all the clip's windows together. With `bare` nothing follows a clip: its end
    is mirrored like its beginning, wherever it is, as the extractor has it without padding; a clip needs 201 samples.
    """

    def __init__(self, n_mels: int = 80, pad_to_30s: bool = False, windows: bool = False, bare: bool = False):
        import torch

        self.n_mels, self.pad_to_30s, self.windows, self.bare = n_mels, pad_to_30s, windows, bare
        self.window = torch.hann_window(N_FFT, device="cpu")
        # Each bin twice: a complex spectrum is read as real and imaginary parts side by side.
        filters = torch.from_numpy(mel_filters(n_mels)).T.repeat_interleave(2, dim=1)
        self.bands = []
        """(mel filters, values of the power spectrum that they cover, weights), which together are all filters."""
        for mels in torch.arange(n_mels, device="cpu").tensor_split(_BANDS):
            nonzero = filters[mels].any(0).nonzero()[:, 0]
            rows, columns = slice(int(mels[0]), int(mels[-1]) + 1), slice(int(nonzero[0]), int(nonzero[-1]) + 1)
            self.bands.append((rows, columns, filters[rows, columns].contiguous()))

    def __call__(self, audios: Sequence[np.ndarray | Tensor], device: Any = None) -> tuple[Tensor, Tensor]:
        """Features and lengths on `device` (default: that of the first clip)."""
        import torch

        clips = [torch.as_tensor(audio) for audio in audios]
        device = torch.device(device) if device is not None else clips[0].device
        longest = max(len(clip) for clip in clips)
        if self.pad_to_30s and longest > WINDOW:
            raise DataError(
                f"A clip of {longest / RATE:.2f} s does not fit into Whisper's window of 30 s; cut it first."
            )
        lengths = [len(clip) // HOP for clip in clips]
        padded = self.pad_to_30s or self.windows
        frames = [self._padded(len(clip)) // HOP for clip in clips] if padded else lengths
        features = torch.zeros(len(clips), self.n_mels, max(frames), device=device)
        self.window = self.window.to(device)
        self.bands = [(rows, columns, weights.to(device)) for rows, columns, weights in self.bands]
        jobs = [(clip.to(device), row[:, :t]) for clip, row, t in zip(clips, features, frames)]
        if device.type == "cpu" and len(jobs) > 1 and torch.get_num_threads() > 1:
            list(_single_threads().map(self._fill, jobs))
        else:
            for job in jobs:
                self._fill(job)
        return features, torch.tensor(lengths, device=device)

    def _fill(self, job: tuple[Tensor, Tensor]) -> None:
        """Compute one clip [samples] into its features [n_mels, frames]."""
        import torch

        clip, out = job
        samples = len(clip)
        padded = self._padded(samples)
        rows = padded // HOP if self.pad_to_30s or self.windows else self._rows(samples)
        if self.bare:
            rows = samples // HOP
        with torch.no_grad(), torch.autocast(clip.device.type, enabled=False):
            signal = torch.zeros(rows * HOP + 2 * _EDGE, device=clip.device)
            signal[_EDGE : _EDGE + samples] = clip
            signal[:_EDGE] = signal[_EDGE + 1 : 2 * _EDGE + 1].flip(0)
            end = _EDGE + (samples if self.bare else rows * HOP)
            if self.bare or rows * HOP == (padded if self.windows else WINDOW):  # mirrored like the beginning
                signal[end:] = signal[2 * end - len(signal) - 1 : end - 1].flip(0)
            audible = min(rows, math.ceil((samples + _EDGE) / HOP))  # the frames behind are silence alone
            frames = signal.unfold(0, N_FFT, HOP)[:audible]
            # Filters times spectra, not the other way round: transposing afterwards takes as long as the transform.
            target = out[:, :audible]
            mel = target if target.shape[1] == audible else torch.empty(self.n_mels, audible, device=clip.device)
            block = _BLOCK.get(clip.device.type, audible)
            for i in range(0, audible, block):
                spectrum = torch.fft.rfft(frames[i : i + block] * self.window)
                power = torch.view_as_real(spectrum).flatten(1).square_().T
                for mels, columns, weights in self.bands:
                    torch.matmul(weights, power[columns], out=mel[mels, i : i + block])
            mel.clamp_(min=1e-10).log10_()
            floor = (mel.max() - 8).clamp(min=-10)
            torch.maximum(mel, floor, out=mel)
            torch.add(mel[:, : target.shape[1]], 4, out=target).div_(4)
            out[:, audible:] = (floor + 4) / 4

    @staticmethod
    def _padded(samples: int) -> int:
        """Samples of the 30 s windows, one at least, that so many samples reach into."""
        return max(1, math.ceil(samples / WINDOW)) * WINDOW

    @staticmethod
    def _rows(samples: int) -> int:
        """Frames that reach into the clip (those of the 30 s window at most, unless the clip is longer)."""
        return min(math.ceil((samples + _EDGE) / HOP), max(samples, WINDOW) // HOP)


@cache
def _single_threads() -> ThreadPoolExecutor:
    """As many threads as torch uses, each computing alone: clips in parallel instead of operations in parallel.

    The operations are so short that torch's own threads mostly wait for one another: for 15 s clips on two cores they
    save a tenth, and with another busy process they take 50 times as long.
    """
    import torch

    threads = torch.get_num_threads()
    barrier = threading.Barrier(threads)

    def start() -> None:
        torch.set_num_threads(1)  # for this thread, and for threads that start later: hence the line below
        barrier.wait()

    pool = ThreadPoolExecutor(threads, "mel", initializer=start)
    for _ in range(threads):
        pool.submit(int)
    pool.submit(int).result()
    torch.set_num_threads(threads)
    return pool


if os.name == "posix":  # threads do not live on in a forked process
    os.register_at_fork(after_in_child=_single_threads.cache_clear)


def mel_filters(n_mels: int, n_fft: int = N_FFT, rate: int = RATE) -> np.ndarray:
    """Triangular filters on Slaney's mel scale (linear to 1 kHz, logarithmic above), each with unit area per Hz.

    float32 [n_fft // 2 + 1, n_mels], from 0 Hz to the Nyquist frequency (Slaney, Auditory Toolbox, 1998).
    """
    step = math.log(6.4) / 27

    def to_hz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(step * (mel - 15)))

    nyquist = rate / 2
    top = nyquist * 3 / 200 if nyquist < 1000 else 15 + math.log(nyquist / 1000) / step
    edges = to_hz(np.linspace(0, top, n_mels + 2))
    bins = np.linspace(0, nyquist, n_fft // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    triangles = np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
    return (triangles * 2 / (high - low)).astype(np.float32)
