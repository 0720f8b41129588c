"""Token worker of `stentor prepare tokens`: groups of samples to members of a tar and their labels.

Noisy prompts, for models that learn to speak cleanly after a noisy reference, are OmniVoice's variant of its shards:
the first 10 to 30 % of each utterance get noise and, at times, a room; the label says at which frame the clean speech
begins (`clean_start_token_idx`).
"""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.io import encode
from stentor.commands.prepare.tokens.plan import Sample, SampleGroup, describe
from stentor.commands.prepare.words import batches
from stentor.commands.prepare_options import TokensOptions
from stentor.data.augment import Noise, Reverb, list_audio
from stentor.data.cut import Cut, UnusableRecord, divided
from stentor.data.load_audio import load_audio
from stentor.data.seeding import rng
from stentor.errors import AudioError
from stentor.models.codecs.base import AudioCodec, at_peak, open_codec
from stentor.pipeline.runner import reject
from stentor.pipeline.worker import Worker

SHARE = (0.1, 0.3)
"""Part of an utterance that is noisy, drawn evenly."""
SNR = (5.0, 15.0)
"""dB, drawn evenly."""
ROOMS = 0.3
"""Probability that the noisy part also gets a room."""
HEADROOM = 0.6
"""Peak before noise is added."""


@dataclass(frozen=True)
class NoisyPrompts:
    """Where noise and rooms come from: folders, manifests or files; where there are none, both are made."""

    noise: tuple[Path, ...] = ()
    rooms: tuple[Path, ...] = ()

    def as_dict(self) -> dict[str, list[str]]:
        return {"noise": [str(path.resolve()) for path in self.noise], "rooms": [str(p.resolve()) for p in self.rooms]}

    def check(self) -> None:
        """Raises DataError when a file or folder is missing or holds no audio."""
        list_audio(self.noise)
        list_audio(self.rooms)

    def apply(
        self, audio: np.ndarray, frames: int, hop: int, rate: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        """`audio`, float32 [samples], with a noisy beginning; and the number of its noisy frames, of `hop` samples.
        `frames` is the length in frames. Raises AudioError (`too_short`) for fewer than two."""
        if frames < 2:
            raise AudioError(f"{len(audio) / rate:.3f} s are too short for a noisy beginning.", "too_short")
        noisy = max(1, int(frames * rng.uniform(*SHARE)))
        start = audio[: noisy * hop]
        if rng.random() < ROOMS:
            start = Reverb(paths=list(self.rooms), simulated=not self.rooms).apply(start, rng, rate)
        kinds = [] if self.noise else ["white", "pink", "brown", "hum", "babble"]
        start = Noise(paths=list(self.noise), builtin=kinds, snr=SNR).apply(start, rng, rate)
        return np.concatenate([start.astype(np.float32, copy=False), audio[noisy * hop :]]), noisy


def noisy_prompts(options: TokensOptions) -> NoisyPrompts | None:
    if options.noisy_prompts or options.noise or options.reverb:
        return NoisyPrompts(tuple(options.noise), tuple(options.reverb))
    return None


RAW_RATE = 24000
"""Hz of audio that is packed as it is, unless --rate names another."""
Member = tuple[str, bytes, dict[str, Any]]
"""A member of the tar: its name, its bytes and its label."""


class TokensWorker(Worker):
    """Groups of samples to members. `codec` is a name for `open_codec`; None packs audio as FLAC."""

    def __init__(self, options: TokensOptions, codec: str | None):
        self.options, self.codec_name = options, codec
        self.noisy = noisy_prompts(options)
        self.codec: AudioCodec | None = None
        self.rate = options.rate or RAW_RATE
        """Hz at which audio is read."""

    def setup(self, device: str) -> None:
        if self.codec_name is not None:
            self.codec = open_codec(self.codec_name, device)
            self.rate = self.codec.sample_rate

    def split(self, group: SampleGroup) -> list[SampleGroup]:
        return [replace(group, samples=[sample]) for sample in group.samples]

    def name(self, group: SampleGroup) -> str:
        return group.samples[0][1].id

    def process(self, group: SampleGroup) -> tuple[list[Member], list[UnusableRecord]]:
        """The members of a group and its rejects, both in the group's order."""
        results: dict[str, Member | UnusableRecord] = {}
        samples = list(group.samples)
        for numbers in batches([cut for _, cut in samples]):
            inputs: list[tuple[Sample, np.ndarray, dict[str, Any]]] = []
            for name, cut in (samples[number] for number in numbers):
                try:
                    inputs.append(((name, cut), *self._prepare(cut)))
                except AudioError as error:
                    results[name] = reject(cut, error)
            encoded = self._encode([audio for _, audio, _ in inputs])
            for ((name, cut), audio, extra), data in zip(inputs, encoded):
                if isinstance(data, AudioError):
                    results[name] = reject(cut, data)
                else:
                    results[name] = self._member(name, cut, audio, data, extra)
        return divided(results[name] for name, _ in samples)

    def _prepare(self, cut: Cut) -> tuple[np.ndarray, dict[str, Any]]:
        """The audio to encode, float32 [samples], and further keys of its label. Raises AudioError."""
        audio = read_audio(cut, self.rate)
        if self.codec is None:
            return audio, {}  # raw audio keeps its level
        if self.noisy is None:
            return at_peak(audio), {}
        generator = rng(self.options.seed, cut.id, "noisy prompt")
        frames = self.codec.frames(len(audio))
        audio, clean = self.noisy.apply(at_peak(audio, HEADROOM), frames, self.codec.hop, self.rate, generator)
        return at_peak(audio), {"clean_start_token_idx": clean}

    def _encode(self, audios: list[np.ndarray]) -> list[np.ndarray | bytes | AudioError]:
        """The codes of each clip, [codebooks, frames], or its FLAC; or the error of a clip that the codec refuses."""
        if self.codec is None:
            return [encode(audio, self.rate) for audio in audios]  # `read_audio` has checked that it can be written
        try:
            return list(self.codec.encode(audios))
        except AudioError as error:
            if len(audios) == 1:
                return [error]
            return [result for audio in audios for result in self._encode([audio])]

    def _member(
        self, name: str, cut: Cut, audio: np.ndarray, data: np.ndarray | bytes, extra: dict[str, Any]
    ) -> Member:
        label = {**describe(cut), "id": name}
        if name != cut.id:
            label["source_id"] = cut.id
        label["audio_duration"] = len(audio) / self.rate
        if isinstance(data, bytes):
            return f"{name}.flac", data, label
        return f"{name}.npy", npy(data), {**label, "num_tokens": data.shape[1], **extra}


def read_audio(cut: Cut, rate: int) -> np.ndarray:
    """The audio of a record, float32 [samples] at `rate` Hz. Raises AudioError, also where it is silent."""
    audio = load_audio(cut, rate)
    if not np.isfinite(audio).all():
        raise AudioError("the audio contains NaN or infinite samples.", "not_finite")
    if not audio.any():
        raise AudioError("the audio is silent.", "silent")
    return audio


def npy(codes: np.ndarray) -> bytes:
    """An array as the contents of an .npy file."""
    file = io.BytesIO()
    np.save(file, codes, allow_pickle=False)
    return file.getvalue()
