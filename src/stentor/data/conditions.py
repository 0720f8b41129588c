"""Conditions of a sample of speech: what a model that speaks is given beside the masked codec tokens.

They are drawn as in OmniVoice's sample construction (k2-fsa/OmniVoice, arXiv 2604.00688), from the item's own
randomness; the family builds the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Spoken:
    """The fields of a record that a sample is made of."""

    text: str
    language: str | None = None
    instruct: str | None = None
    pinyin: str | None = None  # the text with pinyin for some of its characters
    clean_from: int | None = None  # first frame of the clean audio, where the frames before were made noisy


@dataclass(frozen=True)
class Conditions:
    """The inputs of one sample beside its masked codec tokens."""

    unconditional: bool
    """The audio alone, without style, text or prompt: what classifier-free guidance guides away from."""
    prompt_frames_ratio: float
    """The first int(frames * ratio) frames stay as they are and are not learned; see `prompt_frames`."""
    language: str | None  # None: not given
    instruct: str | None  # the voice in words. None: not given
    text: str
    denoise: bool  # whether the prompt is noisy and clean speech is wanted after it
    clean_from: int | None  # the prompt is exactly this many frames, whatever the ratio says
    mask_ratio: float  # probability with which each cell (codebook, frame) after the prompt is masked

    def prompt_frames(self, frames: int) -> int:
        """Frames of the prompt in a sample of `frames` frames; at least one is left to be learned."""
        prompt = int(frames * self.prompt_frames_ratio) if self.clean_from is None else self.clean_from
        return max(0, min(prompt, frames - 1))


class Ratios(Protocol):
    """Settings of the task `speak` that conditions are drawn by."""

    drop_cond_ratio: float
    prompt_ratio_range: tuple[float, float]
    mask_ratio_range: tuple[float, float]
    language_ratio: float
    use_pinyin_ratio: float
    instruct_ratio: float
    only_instruct_ratio: float


def draw(record: Spoken, ratios: Ratios, rng: np.random.Generator) -> Conditions:
    """The conditions of one sample. Takes the same seven numbers from `rng` whatever the record and the ratios, so that
    a changed ratio changes nothing else.

    With the probability `drop_cond_ratio` the sample is unconditional. Otherwise the prompt's share is uniform in
    `prompt_ratio_range`, language and instruct are given with their probabilities where the record has them, and where
    an instruct is given the prompt is left out with the probability `only_instruct_ratio`: the voice is then designed
    by words alone. A record whose beginning was made noisy is never unconditional and its prompt is that beginning."""
    dropped, prompt, with_language, with_instruct, alone, with_pinyin, mask = rng.random(7).tolist()
    noisy = record.clean_from is not None
    low, high = ratios.mask_ratio_range
    mask_ratio = low + (high - low) * mask
    if dropped < ratios.drop_cond_ratio and not noisy:
        return Conditions(True, 0.0, None, None, "", False, None, mask_ratio)
    low, high = ratios.prompt_ratio_range
    instruct = record.instruct if with_instruct < ratios.instruct_ratio else None
    only_instruct = instruct is not None and alone < ratios.only_instruct_ratio
    return Conditions(
        unconditional=False,
        prompt_frames_ratio=0.0 if only_instruct else low + (high - low) * prompt,
        language=record.language if with_language < ratios.language_ratio else None,
        instruct=instruct,
        text=record.pinyin if record.pinyin is not None and with_pinyin < ratios.use_pinyin_ratio else record.text,
        denoise=noisy,
        clean_from=record.clean_from,
        mask_ratio=mask_ratio,
    )
