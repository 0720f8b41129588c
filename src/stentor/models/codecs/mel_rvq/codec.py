"""Codec `mel_rvq`: fitting, saving, encoding and decoding."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stentor.data.atomic_write import follow_umask
from stentor.errors import ConfigError, DataError
from stentor.models.codecs.base import AudioCodec
from stentor.models.codecs.mel_rvq.config import MelRVQ
from stentor.models.codecs.mel_rvq.decoder import SourceFilterDecoder
from stentor.models.codecs.mel_rvq.decoder_training import train_decoder
from stentor.models.codecs.mel_rvq.spectra import Spectra

SPECTRA = ("sample_rate", "mels", "hop", "window", "floor")
SETTINGS = ("codebooks", "entries", *SPECTRA[:4], "stack", "floor", "iterations", "momentum")
"""Keys of config.json, besides `decoder`."""
DECODER = "decoder."
"""Before the names of the decoder's tensors."""
BLOCK = 4096
"""Vectors whose distances are computed at a time."""


class MelRVQCodec(AudioCodec):
    """Residual k-means over stacked log-mel frames, decoded by a network or by Griffin-Lim."""

    type = "mel_rvq"

    def __init__(self, settings: dict[str, Any], tensors: dict[str, Tensor]):
        self.settings = settings
        self.sample_rate = settings["sample_rate"]
        self.codebooks, self.vocabulary, self.stack = settings["codebooks"], settings["entries"], settings["stack"]
        self.hop = settings["hop"] * self.stack
        self.tensors = tensors
        """`codebooks` [codebooks, entries, D] of frames less `mean` [D] over `scale` [1]; D = stack * mels."""
        self.spectra = Spectra(*(settings[key] for key in SPECTRA))
        self.decoder: SourceFilterDecoder | None = None
        if shape := settings.get("decoder"):
            with torch.random.fork_rng(devices=[]):  # opening a codec changes nothing that is drawn after it
                self.decoder = SourceFilterDecoder(self.spectra, self.sample_rate, shape["width"], shape["layers"])
        self.device = "cpu"

    @classmethod
    def fit(cls, section: MelRVQ, audios: Iterable[np.ndarray], seed: int) -> Self:
        """See `MelRVQ.fit`."""
        settings = {key: getattr(section, key) for key in SETTINGS}
        codec = cls(settings, {})
        generator = torch.Generator().manual_seed(seed)
        sampled: list[Tensor] = []
        count, share = 0, 1.0
        clips: list[np.ndarray] = []  # for the decoder
        samples_left = round(60 * section.decoder.minutes * section.sample_rate) if section.decoder else 0
        for audio in audios:
            if len(audio) < codec.hop:
                continue
            if samples_left > 0:
                clips.append(audio)
                samples_left -= len(audio)
            frames = codec._frames(audio)
            if share < 1:
                frames = frames[torch.rand(len(frames), generator=generator) < share]
            sampled.append(frames)
            count += len(frames)
            if count > 2 * section.fit_frames:  # every frame of the corpus keeps the same chance, in bounded memory
                frames = torch.cat(sampled)
                sampled = [frames[torch.rand(len(frames), generator=generator) < 0.5]]
                count, share = len(sampled[0]), share / 2
        if not count:
            raise DataError("The codec mel_rvq cannot be fitted: there is no audio of at least one frame.")
        vectors = torch.cat(sampled)
        vectors = vectors[torch.randperm(len(vectors), generator=generator)[: section.fit_frames]]
        mean = vectors.mean(0)
        scale = vectors.std(unbiased=False).clamp(min=1e-3)[None]
        books = residual_kmeans((vectors - mean) / scale, section.codebooks, section.entries, section.rounds, generator)
        codec.tensors = {"codebooks": books, "mean": mean, "scale": scale}
        if section.decoder is not None:
            codec.settings["decoder"] = {key: getattr(section.decoder, key) for key in ("width", "layers")}
            codec = cls(codec.settings, codec.tensors)
            assert codec.decoder is not None
            pairs = [(codec.log_mel(codes), clip) for clip, codes in zip(clips, codec.encode(clips))]
            train_decoder(codec.decoder, pairs, section.decoder, seed)
        return codec

    @classmethod
    def load(cls, folder: Path, decoding: dict[str, Any]) -> Self:
        """A saved codec. Raises ConfigError for a damaged or incomplete folder."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "model.safetensors")
            settings = {key: saved[key] for key in SETTINGS} | {"decoder": saved.get("decoder")}
            codec = cls({**settings, **decoding}, {key: tensors[key] for key in ("codebooks", "mean", "scale")})
            if codec.decoder is not None:
                codec.decoder.load_state_dict(
                    {key.removeprefix(DECODER): t for key, t in tensors.items() if key.startswith(DECODER)}
                )
            size = settings["stack"] * settings["mels"]
            assert tensors["codebooks"].shape == (settings["codebooks"], settings["entries"], size)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError, AssertionError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": .")
            raise ConfigError(
                f"The codec in {folder} is damaged or incomplete ({reason}). Get or make it again."
            ) from None
        return codec

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(
            json.dumps({"model_type": self.type, **self.settings}, indent=1) + "\n", encoding="utf-8"
        )
        tensors = dict(self.tensors)
        if self.decoder is not None:
            tensors |= {DECODER + key: tensor for key, tensor in self.decoder.state_dict().items()}
        save_file({key: t.cpu().contiguous() for key, t in tensors.items()}, folder / "model.safetensors")
        follow_umask(folder / "model.safetensors")

    def to(self, device: str) -> Self:
        self.tensors = {key: t.to(device) for key, t in self.tensors.items()}
        self.spectra.to(device)
        if self.decoder is not None:
            self.decoder.to(device)
        self.device = device
        return self

    def _frames(self, audio: np.ndarray) -> Tensor:
        """Stacked log-mel frames [frames, stack * mels]; the end of the clip is filled up with silence."""
        padded = torch.zeros(self.frames(len(audio)) * self.hop, device=self.device)
        padded[: len(audio)] = torch.as_tensor(audio, dtype=torch.float32)
        with torch.no_grad():
            return self.spectra.log_mel(padded).reshape(-1, self.stack * self.settings["mels"])

    def _encode(self, audios: Sequence[np.ndarray]) -> list[np.ndarray]:
        # Clip by clip: of other shapes, a product of matrices may round differently and turn the nearest entry.
        t = self.tensors
        return [
            residual_nearest((self._frames(audio) - t["mean"]) / t["scale"], t["codebooks"]).cpu().numpy()
            for audio in audios
        ]

    def log_mel(self, codes: np.ndarray) -> Tensor:
        """Log-mel frames [frames * stack, mels] that the codes stand for."""
        index = torch.as_tensor(codes.astype(np.int64), device=self.device)
        summed = sum(book[row] for book, row in zip(self.tensors["codebooks"], index))
        return (summed * self.tensors["scale"] + self.tensors["mean"]).reshape(-1, self.settings["mels"])

    def _decode(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [self._audio(clip).cpu().numpy() for clip in codes]

    def _audio(self, codes: np.ndarray) -> Tensor:
        if self.decoder is not None:
            return self.decoder.audio(self.log_mel(codes))
        return self.spectra.audio(self.log_mel(codes), self.settings["iterations"], self.settings["momentum"])


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """int64 [N]: the nearest row (squared Euclidean distance) of [K, D] to each of [N, D], the first one of equals."""
    half = codebook.square().sum(1) / 2
    parts = [(half - part @ codebook.T).argmin(1) for part in vectors.split(BLOCK)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=vectors.device)


def kmeans(vectors: Tensor, entries: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm from random vectors: centres [entries, D] of [N, D].

    Entries that lose all their vectors start again from the vectors that are worst off. Of fewer different vectors than
    entries, the entries repeat: `nearest` then always answers the first.
    """
    order = torch.randperm(len(vectors), generator=generator)
    centres = vectors[order[torch.arange(entries) % len(vectors)]].clone()
    for _ in range(rounds):
        codes = nearest(vectors, centres)
        counts = torch.bincount(codes, minlength=entries)
        sums = torch.zeros_like(centres).index_add_(0, codes, vectors)
        used = counts > 0
        empty = (~used).nonzero()[:, 0]
        if len(empty):
            distances = (vectors - centres[codes]).square().sum(1)
            worst = distances.argsort(descending=True, stable=True)[: len(empty)]
            worst = worst[distances[worst] > 0]
            centres[empty[: len(worst)]] = vectors[worst]
        centres[used] = sums[used] / counts[used, None]
    return centres


def residual_kmeans(vectors: Tensor, codebooks: int, entries: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Codebooks [codebooks, entries, D], each of what the ones before leave over (Juang and Gray 1982)."""
    books = []
    residual = vectors
    for _ in range(codebooks):
        books.append(kmeans(residual, entries, rounds, generator))
        residual = residual - books[-1][nearest(residual, books[-1])]
    return torch.stack(books)


def residual_nearest(vectors: Tensor, codebooks: Tensor) -> Tensor:
    """Codes int64 [codebooks, N] of vectors [N, D], each codebook's nearest entry to what is left over."""
    codes = []
    for centres in codebooks:
        codes.append(nearest(vectors, centres))
        vectors = vectors - centres[codes[-1]]
    return torch.stack(codes)
