"""Noisy prompts: utterances whose beginning is noisy, for models that learn to speak cleanly after a noisy reference.

OmniVoice's variant of its token shards: the first 10 to 30 % of each utterance get noise and, at times, a room; the
label says at which frame the clean speech begins (`clean_start_token_idx`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stentor.data.augment import Noise, Reverb, list_audio
from stentor.errors import AudioError

if TYPE_CHECKING:
    from stentor.commands.prepare_options import TokensOptions

SHARE = (0.1, 0.3)
"""Part of an utterance that is noisy, drawn evenly."""
SNR = (5.0, 15.0)
"""dB, drawn evenly."""
ROOMS = 0.3
"""How often the noisy part is also heard in a room."""
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
    """The noisy prompts that the options ask for."""
    if options.noisy_prompts or options.noise or options.reverb:
        return NoisyPrompts(tuple(options.noise), tuple(options.reverb))
    return None
