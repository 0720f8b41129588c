"""Speaker embeddings: one for each speaker of a window, from the frames without other speakers."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from stentor.errors import ConfigError
from stentor.models.pretrained.load import load_pretrained
from stentor.tasks.diarize.windows import Embedder

SHORTEST = 0.4
"""Least seconds of speech for an x-vector model, whose first layers span 150 ms."""
LONGEST = 10.0
"""Seconds of a speaker's speech in a window that an x-vector model is given: more changes little and costs time."""

BANDS = 64
"""Number of mel bands of the spectra that represent voices without an embedding model."""


def nonoverlapping_frames(active: np.ndarray) -> np.ndarray:
    """The frames of each speaker in which no other talks: bool [T, S] from activity bool [T, S]."""
    return active & (active.sum(1, keepdims=True) == 1)


def pools(active: np.ndarray) -> np.ndarray:
    """Averaging weights, float32 [S, T], over the frames that tell a speaker's voice; zero for silent speakers.

    Those are the frames in which only this speaker talks; all frames in which the speaker talks where that leaves none.
    """
    alone = nonoverlapping_frames(active)
    chosen = np.where(alone.any(0), alone, active).T.astype(np.float32)
    return chosen / np.maximum(chosen.sum(1, keepdims=True), 1)


def spectra(audio: np.ndarray, active: np.ndarray, frame_seconds: float, rate: int) -> np.ndarray:
    """The long-term spectrum of each speaker of a window, float32 [S, 2 * BANDS]; 0 for speakers who are silent.

    Mean and deviation over time of the log mel spectrum, with a resolution that shows the pitch, over the louder half
    of the frames in which only this speaker talks. It tells voices apart within one recording, not across recordings.
    """
    size = 2 ** round(np.log2(0.064 * rate))
    audio = np.pad(audio, (0, max(0, size - len(audio)))).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(audio, size)[:: size // 2]
    power = np.abs(np.fft.rfft(frames * np.hanning(size).astype(np.float32), axis=1)) ** 2
    mels = np.log(power.astype(np.float32) @ mel_bands(size, rate) + 1e-8)
    middles = (np.arange(len(mels)) * (size // 2) + size / 2) / rate
    frame_of = np.minimum((middles / frame_seconds).astype(int), len(active) - 1)
    level = mels.mean(1)
    embeddings = np.zeros((active.shape[1], 2 * BANDS), np.float32)
    for s, weights in enumerate(pools(active)):
        mask = weights[frame_of] > 0
        if mask.any():
            speech = mels[mask & (level >= np.median(level[mask]))]
            embeddings[s] = np.concatenate([speech.mean(0), speech.std(0)])
    return embeddings


@lru_cache(maxsize=4)
def mel_bands(size: int, rate: int) -> np.ndarray:
    """Triangular mel filters float32 [size / 2 + 1, BANDS] from 60 to 7600 Hz, or as far as the rate goes."""
    top = min(7600.0, 0.475 * rate)
    edges = 700 * (np.exp(np.linspace(np.log1p(60 / 700), np.log1p(top / 700), BANDS + 2)) - 1)
    frequencies = np.arange(size // 2 + 1)[:, None] * rate / size
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


class XVectors:
    """An x-vector model of transformers (WavLMForXVector, Wav2Vec2ForXVector, ...), for the section `Embedder`.

    Snyder et al. 2018, "X-vectors: robust DNN embeddings for speaker recognition". Raises ConfigError when there is no
    such model, or it is of another kind.
    """

    def __init__(self, section: Embedder, device: str, where: str = "task.windows.embedding"):
        """`where` is the key or option that names the model, for messages."""
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        self.model = load_pretrained(
            section, where, lambda name, options: _pretrained(AutoModelForAudioXVector, name, options, where)
        )
        self.model.to(device).eval()
        self.extractor = load_pretrained(
            section,
            where,
            lambda name, options: AutoFeatureExtractor.from_pretrained(name, trust_remote_code=False, **options),
        )
        self.rate = int(self.extractor.sampling_rate)
        self.size = int(self.model.config.xvector_output_dim)
        self.device = device

    def __call__(self, audio: np.ndarray, active: np.ndarray, frame_seconds: float, rate: int) -> np.ndarray:
        """Unit vectors float32 [S, E] of the speakers of a window, whose activity is bool [T, S]; 0 for speakers with
        too little speech."""
        if rate != self.rate:
            import soxr

            audio = soxr.resample(audio, rate, self.rate)
        embeddings = np.zeros((active.shape[1], self.size), np.float32)
        samples = round(frame_seconds * self.rate)
        for s, weights in enumerate(pools(active)):
            mask = np.repeat(weights > 0, samples)
            speech = audio[: len(mask)][mask[: len(audio)]][: round(LONGEST * self.rate)]
            if len(speech) < SHORTEST * self.rate:
                continue
            embeddings[s] = self.embed(speech)
        return embeddings

    @torch.no_grad()
    def embed(self, speech: np.ndarray) -> np.ndarray:
        """The unit vector float32 [E] of all of a clip, float32 [samples] at `rate`; the shortest are padded."""
        speech = np.pad(speech, (0, max(0, round(SHORTEST * self.rate) - len(speech))))
        # One at a time: some of these models normalise over time in their first layer, so that padding would count.
        inputs = self.extractor(speech, sampling_rate=self.rate, return_tensors="pt").to(self.device)
        vector = self.model(**inputs).embeddings[0].float().cpu().numpy()
        return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-9), np.float32)


@lru_cache(maxsize=1)
def _loaded(source: str, revision: str | None, device: str) -> XVectors:
    return XVectors(Embedder(source=source, revision=revision), device)


def embedder(section: Embedder, device: str) -> XVectors:
    """The x-vector model of the section, loaded once."""
    return _loaded(section.source, section.revision, device)


def _pretrained(kind: Any, name: str, options: dict[str, Any], where: str) -> Any:
    model, info = kind.from_pretrained(
        name, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **options
    )
    if any(key.startswith(("tdnn", "projector", "feature_extractor.")) for key in info["missing_keys"]):
        raise ConfigError(
            f"{where}.from: {name} has no trained x-vector head: name a model made for speaker "
            "verification, such as microsoft/wavlm-base-plus-sv."
        )
    return model
