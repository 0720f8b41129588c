"""Features of recognisers as a graph: audio in, what the processor gives the encoder for one clip out.

Spectra are products with cosines and sines, so that every runtime has the operations, onnxruntime-web too. Values
are those of training within 1e-4. Dither is left out: Kaldi's and that of Cohere ASR, which is far below its floor.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.audio.features import HOP, N_FFT, WINDOW, mel_filters
from stentor.errors import ConfigError
from stentor.export.onnx.trace import trace
from stentor.models.collate import SHORTEST
from stentor.models.ctc.processor import CTCProcessor
from stentor.models.encoders.features import FIXED, FLOOR, Features, FixedWhisperMel
from stentor.models.encoders.geometry import SAMPLE_RATE
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.seq2seq import moonshine_streaming
from stentor.models.seq2seq.processor import Seq2SeqProcessor
from stentor.models.seq2seq.whisper import Processor as WhisperProcessor
from stentor.models.transducer.pretrained.processor import PretrainedProcessor
from stentor.models.transformer.processor import TransformerProcessor

FILE = "features.onnx"
OUTPUTS = ["features", "lengths"]


def frontend(processor: Any) -> Frontend:
    """The module that makes a processor's features. Raises ConfigError for processors of other models."""
    if isinstance(processor, TransformerProcessor):
        if processor.pretrained is not None:
            return frontend(processor.pretrained)
        if processor.features is not None:
            if processor.sample_rate != SAMPLE_RATE:
                raise ConfigError(
                    f"The model reads audio at {processor.sample_rate} Hz; exports take {SAMPLE_RATE} Hz."
                )
            return KaldiFrontend(processor.features, processor.features.length)
    if isinstance(processor, WhisperProcessor):
        return WhisperFrontend(processor.mels, WINDOW, False)
    if not isinstance(processor, EncoderInputs | Seq2SeqProcessor):
        raise ConfigError(f"The features of {type(processor).__name__} have no graph.")
    shape = processor.shape
    if shape.kind == "wave":
        grain = processor.grain if isinstance(processor, moonshine_streaming.Processor) else 1
        return WaveFrontend(shape.normalize, grain)
    if shape.fixed_features is not None:
        return KaldiFrontend(shape.fixed_features, SHORTEST, True)
    if isinstance(processor, PretrainedProcessor):
        return ParakeetFrontend(processor.hf.feature_extractor)
    if isinstance(processor, CTCProcessor | Seq2SeqProcessor):
        return ParakeetFrontend(processor.extractor)
    if shape.log_mel == "whisper":
        return WhisperFrontend(shape.mels, shape.window, shape.whole_window)
    from transformers import ParakeetFeatureExtractor

    return ParakeetFrontend(ParakeetFeatureExtractor(feature_size=shape.mels))


def write_frontend(processor: Any, folder: Path) -> dict[str, Any]:
    """Write `features.onnx` (see `Frontend`) into a folder; returns its entry of the graphs of onnx_config.json."""
    audio = {"audio": torch.zeros(1, 21_000)}
    trace(frontend(processor), audio, {"audio": (1,)}, OUTPUTS, folder / FILE, "computation of features")
    return {"file": FILE, "outputs": OUTPUTS}


class Frontend(nn.Module):
    """audio [1, samples], float32 at 16 kHz and of any length, to features as `collate` gives the encoder for the clip
    alone and lengths [1], int64, in their steps. Shorter clips get the silence that training gives them."""

    def __init__(self, shortest: int = SHORTEST):
        super().__init__()
        self.shortest = shortest
        """Samples that clips are filled up to."""

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def samples(self, audio: Tensor) -> Any:
        """Samples of the clip with its silence."""
        return torch.sym_max(audio.shape[1], self.shortest)


def samples_at(audio: Tensor, places: Tensor) -> Tensor:
    """Samples at places [N], zero beyond the end: [1, N]."""
    return audio[:, places.clamp(max=audio.shape[1] - 1)] * (places < audio.shape[1])


class WaveFrontend(Frontend):
    """The audio itself [1, T], in whole steps of `grain` samples."""

    def __init__(self, normalize: bool, grain: int):
        super().__init__()
        self.normalize, self.grain = normalize, grain

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        samples = self.samples(audio) // self.grain * self.grain
        clip = samples_at(audio, torch.arange(samples))
        if self.normalize:
            clip = clip - clip.mean()
            clip = clip / (clip.square().mean() + 1e-7).sqrt()
        return clip, torch.full((1,), samples)


def _framed(signal: Tensor, length: int, shift: int) -> Tensor:
    """Frames [T, length] of a signal [1, samples]."""
    starts = torch.arange((signal.shape[1] - length) // shift + 1) * shift
    return signal[0, starts[:, None] + torch.arange(length)]


class Spectra(nn.Module):
    """Energies [1, mels, T] of windowed frames [T, length] under `filters` [bins, mels].

    Even and odd bins are sums over half a period each, which takes half the operations and rounds less.
    """

    even: Tensor
    odd: Tensor
    filters: Tensor

    def __init__(self, fft: int, filters: Tensor):
        super().__init__()
        self.middle = fft // 2
        n, bins = torch.arange(self.middle, dtype=torch.float64), torch.arange(self.middle + 1, dtype=torch.float64)
        for name, first in (("even", 0), ("odd", 1)):
            angles = 2 * math.pi / fft * n[:, None] * bins[first::2]
            self.register_buffer(name, torch.cat([angles.cos(), angles.sin()], 1).float())
        self.register_buffer("filters", torch.cat([filters[::2], filters[::2], filters[1::2], filters[1::2]]).float())

    def forward(self, frames: Tensor) -> Tensor:
        frames = F.pad(frames, (0, 2 * self.middle - frames.shape[1]))
        first, second = frames[:, : self.middle], frames[:, self.middle :]
        spectra = torch.cat([(first + second) @ self.even, (first - second) @ self.odd], 1)
        return (spectra.square() @ self.filters).T[None]


class WhisperFrontend(Frontend):
    """Whisper's log-mel [1, mels, T], as `WhisperMel` has it; of clips filled up to `window` samples, where given, with
    lengths of the clip alone or, with `whole`, of the window."""

    hann: Tensor

    def __init__(self, mels: int, window: int | None, whole: bool):
        super().__init__()
        self.window, self.whole = window, whole
        self.spectra = Spectra(N_FFT, torch.from_numpy(mel_filters(mels)))
        self.register_buffer("hann", torch.hann_window(N_FFT))

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        clip = self.samples(audio)
        samples = self.window or clip
        last = WINDOW // HOP
        # As many frames as reach into the clip, but no more than a window of 30 s has, unless the clip is longer.
        rows = torch.full((), samples)
        rows = torch.minimum((rows + N_FFT // 2 + HOP - 1) // HOP, rows.clamp(min=WINDOW) // HOP)
        places = torch.arange(-(N_FFT // 2), samples + N_FFT - 1)
        mirrored = (rows == last) & (places >= WINDOW)  # a whole window ends as it begins
        places = places.where(~mirrored, 2 * (WINDOW - 1) - places).abs()
        frames = _framed(samples_at(audio, places), N_FFT, HOP) * self.hann
        mel = self.spectra(frames).clamp(min=1e-10).log10()
        loudest = mel.where(torch.arange(mel.shape[2]) < rows, -10.0).max()
        mel = (torch.maximum(mel, loudest - 8)[:, :, : samples // HOP] + 4) / 4
        return mel, torch.full((1,), (samples if self.whole else clip) // HOP)


class ParakeetFrontend(Frontend):
    """Log-mel [1, mels, T] of transformers' extractors for Parakeet and Cohere ASR (mean 0 and variance 1 in each band)
    and Nemotron (unchanged)."""

    hann: Tensor

    def __init__(self, extractor: Any):
        from transformers import (
            CohereAsrFeatureExtractor,
            NemotronAsrStreamingFeatureExtractor,
            ParakeetFeatureExtractor,
        )

        super().__init__()
        self.normalize = isinstance(extractor, ParakeetFeatureExtractor | CohereAsrFeatureExtractor)
        if not self.normalize and not isinstance(extractor, NemotronAsrStreamingFeatureExtractor):
            raise ConfigError(f"The features of {type(extractor).__name__} have no graph.")
        settings = extractor.to_dict()
        kind = vars(torch)[settings.get("mel_filters_dtype", "float32")]
        self.register_buffer("hann", torch.hann_window(extractor.win_length, periodic=False).to(kind).float())
        self.emphasis, self.hop, self.length = extractor.preemphasis, extractor.hop_length, extractor.win_length
        self.spectra = Spectra(extractor.n_fft, extractor.mel_filters.T.to(kind))

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        samples = self.samples(audio)
        clip = samples_at(audio, torch.arange(samples))
        clip = clip - self.emphasis * F.pad(clip, (1, 0))[:, :samples]
        frames = samples // self.hop
        signal = F.pad(clip, (self.length // 2, self.length // 2))
        mel = (self.spectra(_framed(signal, self.length, self.hop) * self.hann) + 2**-24).log()[:, :, :frames]
        if self.normalize:
            mel = mel - mel.mean(2, keepdim=True)
            deviation = (mel.square().sum(2, keepdim=True) / (frames - 1)).sqrt()
            mel = mel / (deviation + 1e-5)
        return mel, torch.full((1,), frames)


class KaldiFrontend(Frontend):
    """Kaldi's features [1, T, size], normalised, joined and thinned out; with `bands_first` [1, size, T]."""

    window: Tensor
    cosines: Tensor

    def __init__(self, settings: Features, shortest: int, bands_first: bool = False):
        super().__init__(shortest)
        self.settings, self.bands_first = settings, bands_first
        self.log_mel = isinstance(settings, FixedWhisperMel)
        mels, extractor = settings.num_mel_bins, settings.extractor
        self.register_buffer("window", torch.hann_window(N_FFT) if self.log_mel else extractor.window)
        self.register_buffer("cosines", extractor.cosines.T if settings.type == "mfcc" else torch.eye(1))
        if self.log_mel:
            self.spectra = Spectra(N_FFT, torch.from_numpy(mel_filters(mels)))
        else:
            spectrum = settings.type == "spectrogram"
            filters = torch.eye(settings.fft_length // 2 + 1) if spectrum else extractor.filters
            self.spectra = Spectra(settings.fft_length, filters)

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        s, samples = self.settings, self.samples(audio)
        signal = samples_at(audio, self._places(samples))
        if self.log_mel:
            frames = _framed(signal, s.length, s.shift) * self.window
            out = (self.spectra(frames).clamp(min=10**FLOOR).log10() + 4) / 4
        else:
            out = self._kaldi(signal)
        return self.joined(out)

    def joined(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Features and lengths of energies [1, bins, T] without normalisation."""
        s, out = self.settings, self._normalized(out)
        count = out.shape[2]
        if s.stack > 1 or s.subsample > 1:
            last, count = count - 1, (count + s.subsample - 1) // s.subsample
            first = torch.arange(count) * s.subsample + (s.subsample - s.stack) // 2
            rows = (first[:, None] + torch.arange(s.stack)).clamp(0, last)
            out = out[:, :, rows].permute(0, 3, 1, 2).flatten(1, 2)
        return (out if self.bands_first else out.transpose(1, 2)), torch.full((1,), count)

    def _kaldi(self, signal: Tensor) -> Tensor:
        """Features [1, bins, T] of the samples that the frames take, in the order of training: the emphasis comes
        first."""
        s = self.settings
        emphasised = signal - s.preemph_coeff * F.pad(signal, (1, 0))[:, : signal.shape[1]]
        frames, shaped = (_framed(x, s.length, s.shift) for x in (signal, emphasised))
        gain_at_dc = 1 - s.preemph_coeff
        # Kaldi takes a frame's first sample for the one before it.
        shaped = torch.cat([gain_at_dc * frames[:, :1], shaped[:, 1:]], 1) * self.window
        if s.remove_dc_offset:
            means = frames.mean(1, keepdim=True)
            frames, shaped = frames - means, shaped - gain_at_dc * means * self.window
        out = self.spectra(shaped)
        if s.type != "spectrogram":
            out = out.clamp(min=torch.finfo(torch.float32).eps).log()
        if s.type == "mfcc":
            out = self.cosines @ out
        if s.use_energy:
            energy = (frames.square().sum(1) + 1e-15).log().clamp(min=math.log(1e-10))[None, None]
            out = torch.cat([energy, out if s.type == "fbank" else out[:, 1:]], 1)
        return out

    def _places(self, samples: Any) -> Tensor:
        """Samples that the frames take, mirrored at the ends."""
        s = self.settings
        if s.snip_edges:
            return torch.arange(samples)
        before = (s.length - s.shift) // 2
        count = (samples + s.shift // 2) // s.shift
        places = torch.arange(-before, (count - 1) * s.shift + s.length - before)
        places = places.where(places >= 0, -1 - places)
        return places.where(places < samples, 2 * samples - 1 - places)

    def _normalized(self, out: Tensor) -> Tensor:
        kind = self.settings.normalize
        if kind == "none":
            return out
        if kind == "fixed":
            return (out - FIXED[0]) / FIXED[1]
        axes = (1, 2) if kind == "global" else (2,)
        out = out - out.mean(axes, keepdim=True)
        return out if kind == "mean" else out / (out.square().mean(axes, keepdim=True).sqrt() + 1e-5)
