"""Conditions of a sample of speech: what a model that speaks is given beside the masked codec tokens."""

from dataclasses import dataclass


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
