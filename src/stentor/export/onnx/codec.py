"""ONNX graphs of audio codecs, written by torch's exporter.

codec_encoder.onnx    audio [frames, hop], float32 at the codec's rate -> codes [codebooks, frames], int64 or, of
                      continuous codes, float32
codec_decoder.onnx    codes [1, codebooks, frames] -> audio [about frames * hop]

Frames are free. Convolutions that fill up the last hop by a length that is computed get none to fill.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.errors import ConfigError
from stentor.export.onnx.trace import trace
from stentor.models.codecs.base import AudioCodec
from stentor.models.codecs.mel_rvq.codec import MelRVQCodec
from stentor.models.codecs.mel_rvq.decoder import CORRECTIONS, HIGHEST, LOWEST, QUIETEST, pulse_train
from stentor.models.codecs.neural import NeuralCodec

FRAMES = 23
"""Frames of the example that is traced."""
SIZES = {"stride", "kernel_size", "padding_total"}
"""Buffers of convolutions that hold sizes."""
NOISE_SECONDS = 30
"""Seconds of noise in a decoder of `mel_rvq`; longer pieces begin with it again."""


def write_codec(codec: AudioCodec, folder: Path, encoder: bool) -> dict[str, Any]:
    """Write the decoder and, where it is wanted, the encoder. Returns the section `codec` of onnx_config.json.

    Raises ConfigError for codecs that cannot be traced, naming them.
    """
    if not isinstance(codec, MelRVQCodec | NeuralCodec):
        raise ConfigError(f"The codec {codec.type} cannot be exported to ONNX: only mel_rvq and those of transformers.")
    kind = torch.float32 if codec.vocabulary is None else torch.int64
    codes = torch.zeros(1, codec.codebooks, FRAMES, dtype=kind)
    with whole_frames(codec):
        decode, encode = coders(codec)
        part = f"decoder of the codec {codec.type}"
        trace(decode, {"codes": codes}, {"codes": (2,)}, ["audio"], folder / "codec_decoder.onnx", part)
        if encoder:
            audio = 0.1 * torch.randn(FRAMES, codec.hop, generator=torch.Generator().manual_seed(0))
            part = f"encoder of the codec {codec.type}"
            with torch.no_grad():
                encode(audio)  # tables that are made once must not be made of what traces
            trace(encode, {"audio": audio}, {"audio": (0,)}, ["codes"], folder / "codec_encoder.onnx", part)
    names = ("type", "sample_rate", "hop", "codebooks", "vocabulary")
    return {name: vars(codec).get(name, codec.type) for name in names}


def coders(codec: MelRVQCodec | NeuralCodec) -> tuple[nn.Module, nn.Module]:
    """Decoder and encoder of a codec as modules of the graphs."""
    if isinstance(codec, NeuralCodec):
        return NeuralDecoder(codec), NeuralEncoder(codec)
    return MelDecoder(codec), MelEncoder(codec)


class NeuralDecoder(nn.Module):
    """A codec of transformers, from codes to audio."""

    def __init__(self, codec: NeuralCodec):
        super().__init__()
        self.model, self.section = codec.model, codec.section

    def forward(self, codes: Tensor) -> Tensor:
        return self.section.wave(self.model, codes)


class NeuralEncoder(nn.Module):
    """A codec of transformers, from audio to codes."""

    def __init__(self, codec: NeuralCodec):
        super().__init__()
        self.model, self.section, self.geometry = codec.model, codec.section, codec.geometry

    def forward(self, audio: Tensor) -> Tensor:
        hooks, frames = [], torch.arange(audio.shape[0])
        if self.section.type == "higgs_audio_v2":
            # Both parts give a frame for each hop, which torch's exporter cannot derive.
            vars(self.model)["_get_conv1d_output_lengths"] = lambda *_: EqualToAll()
            for part in (self.model.acoustic_encoder, self.model.encoder_semantic):
                hooks.append(part.register_forward_hook(lambda m, given, out: out.index_select(2, frames)))
        codes = self.section.codes(self.model, audio.flatten(), self.geometry)[: self.geometry.codebooks]
        for hook in hooks:
            hook.remove()
        return codes


class EqualToAll(int):
    """A length that is the expected one, whatever that is."""

    def __ne__(self, other: object) -> bool:
        return False


@contextmanager
def whole_frames(codec: AudioCodec) -> Iterator[None]:
    """Sizes of a network's convolutions as numbers, not tensors, and nothing to fill up: audio is in whole frames."""
    if not isinstance(codec, NeuralCodec):
        yield
        return
    before = codec.model
    codec.model = copy.deepcopy(before)
    for module in codec.model.modules():
        sizes = {name: int(size) for name, size in module.named_buffers(recurse=False) if name in SIZES}
        if sizes.keys() == SIZES:
            for name in sizes:
                delattr(module, name)
            right = sizes["padding_total"] // 2
            sides = {"padding_right": right, "padding_left": sizes["padding_total"] - right}
            vars(module).update(sizes, **sides, _get_extra_padding_for_conv1d=lambda states: 0)
        for name, part in module.named_children():
            if isinstance(part, nn.LSTM):
                setattr(module, name, LSTM(part))
    try:
        with patch.object(torch, "cdist", distances):
            yield
    finally:
        codec.model = before


class LSTM(nn.Module):
    """An LSTM as ONNX has it: torch's exporter writes a step for each frame of the example."""

    def __init__(self, lstm: nn.LSTM):
        super().__init__()
        self.layers = nn.ModuleList()
        for weights in lstm.all_weights:
            # torch has the gates in the order i f g o, ONNX i o f g.
            ordered = [w.detach().unflatten(0, (4, -1))[[0, 3, 1, 2]].flatten(0, 1)[None] for w in weights]
            self.layers.append(nn.ParameterList([*ordered[:2], torch.cat(ordered[2:], 1)]))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        weights: Any
        for weights in self.layers:
            size = weights[1].shape[-1]
            shape = (x.shape[0], 1, x.shape[1], size)
            inputs = (x, *weights)
            x = torch.onnx.ops.symbolic("LSTM", inputs, {"hidden_size": size}, dtype=x.dtype, shape=shape).squeeze(1)
        return x, None


def distances(x: Tensor, y: Tensor, p: float = 2.0) -> Tensor:
    """Squared Euclidean distances, for nearest entries: torch's exporter knows no `cdist`."""
    return x.square().sum(-1, keepdim=True) - 2 * x @ y.mT + y.square().sum(-1)[..., None, :]


class Mel(nn.Module):
    """Spectra of `mel_rvq` without complex numbers: [T, bins, 2] of audio [T hop] by convolution, and back."""

    forth: Tensor
    back: Tensor

    def __init__(self, codec: MelRVQCodec):
        super().__init__()
        spectra, t = codec.spectra, codec.tensors
        self.codec, self.hop, self.window = codec, spectra.hop, spectra.window
        place = torch.arange(self.window, dtype=torch.float64)
        angle = 2 * math.pi / self.window * torch.arange(self.window // 2 + 1)[:, None] * place
        basis = torch.stack([angle.cos(), -angle.sin()], 1).flatten(0, 1)
        twice = torch.where((torch.arange(self.window // 2 + 1) % (self.window // 2)) == 0, 1.0, 2.0)
        if self.window % 2:
            twice[-1] = 2.0
        back = basis * twice.repeat_interleave(2)[:, None] / self.window
        self.register_buffer("forth", (basis * spectra.hann)[:, None].float())
        self.register_buffer("back", (back * spectra.hann)[:, None].float())
        self.edge = (self.window - self.hop) // 2
        self.tables = nn.ParameterDict({k: nn.Parameter(v, requires_grad=False) for k, v in t.items()})

    def stft(self, audio: Tensor) -> Tensor:
        padded = F.pad(audio, (self.edge, self.window - self.hop - self.edge))
        return F.conv1d(padded[None, None], self.forth, stride=self.hop)[0].T.unflatten(1, (-1, 2))

    def istft(self, spectrum: Tensor) -> Tensor:
        def added(frames: Tensor, filters: Tensor) -> Tensor:
            end = self.edge + frames.shape[0] * self.hop
            return F.conv_transpose1d(frames.T[None], filters, stride=self.hop)[0, 0, self.edge : end]

        weight = self.codec.spectra.hann.square()[None, None]
        wave = added(spectrum.flatten(1), self.back)
        return wave / added(torch.ones_like(spectrum[:, 0, :1]), weight).clamp(min=1e-8)

    def log_mel(self, audio: Tensor) -> Tensor:
        spectra = self.codec.spectra
        return (self.stft(audio).square().sum(-1) @ spectra.filters + spectra.floor).log()


class MelEncoder(Mel):
    """`mel_rvq`, from audio to codes."""

    def forward(self, audio: Tensor) -> Tensor:
        frames = self.log_mel(audio.flatten()).reshape(audio.shape[0], -1)
        frames = (frames - self.tables["mean"]) / self.tables["scale"]
        codes = []
        for book in self.tables["codebooks"]:
            codes.append((book.square().sum(1) / 2 - frames @ book.T).argmin(1))
            frames = frames - F.embedding(codes[-1], book)
        return torch.stack(codes)


class MelDecoder(Mel):
    """`mel_rvq`, from codes to audio: by its network or by Griffin-Lim, from noise that is in the graph."""

    noise: Tensor

    def __init__(self, codec: MelRVQCodec):
        super().__init__(codec)
        generator, size = torch.Generator().manual_seed(0), NOISE_SECONDS * codec.sample_rate
        self.decoder = codec.decoder
        if codec.decoder is not None:
            noise = torch.randn(size, generator=generator)
        else:
            noise = torch.rand(size // self.hop, self.window // 2 + 1, generator=generator)
        self.register_buffer("noise", noise)

    def forward(self, codes: Tensor) -> Tensor:
        summed = sum(F.embedding(row, book) for book, row in zip(self.tables["codebooks"], codes[0]))
        mel = (summed * self.tables["scale"] + self.tables["mean"]).reshape(-1, self.codec.settings["mels"])
        return self.griffin_lim(mel) if self.decoder is None else self.source_filter(mel)

    def first(self, size: Any) -> Tensor:
        return self.noise[torch.arange(size) % self.noise.shape[0]]

    def griffin_lim(self, mel: Tensor) -> Tensor:
        """As `Spectra.audio`."""
        settings = self.codec.settings
        magnitude = self.codec.spectra.power(mel).sqrt()[..., None]
        angle = 2 * math.pi * self.first(mel.shape[0])
        phase = torch.stack([angle.cos(), angle.sin()], -1)
        previous = torch.zeros_like(phase)
        for _ in range(settings["iterations"]):
            rebuilt = self.stft(self.istft(magnitude * phase))
            phase = rebuilt - (settings["momentum"] / (1 + settings["momentum"])) * previous
            phase = phase / phase.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
            previous = rebuilt
        return self.istft(magnitude * phase)

    def source_filter(self, mel: Tensor) -> Tensor:
        """As `SourceFilterDecoder.audio`."""
        decoder: Any = self.decoder
        filters, voiced, octaves = decoder(mel[None])
        hertz = (LOWEST * 2**octaves).clamp(LOWEST, HIGHEST) * (voiced > 0)
        pulses = pulse_train(hertz, self.hop, self.codec.sample_rate)[0]
        gains = filters[0].exp()[..., None]
        audio = self.istft(self.stft(pulses) * gains[:, 0] + self.stft(self.first(pulses.shape[0])) * gains[:, 1])
        for _ in range(CORRECTIONS):
            gain = ((mel - self.log_mel(audio)) @ decoder.between / 2).clamp(QUIETEST, -QUIETEST).exp()
            audio = self.istft(self.stft(audio) * gain[..., None])
        return audio
