"""What stands before the frames that are to be spoken."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.models.omnivoice.processor import OmniVoiceProcessor

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "FULLWIDTH", "THAI", "LAO", "KHMER", "MYANMAR")
"""Beginnings of the Unicode names of characters between which no space is written."""


@dataclass
class Prompt:
    """One utterance to speak: style and text, the reference's codes where there is one, and how long it shall be.

    The frames to speak follow it, at first all MASK; they are not among `ids`.
    """

    ids: Tensor
    """int64 [C, S]: a text token is repeated in every row, a reference frame has its codes. S may be 0."""
    audio_mask: Tensor
    """bool [S]: which positions are frames of the reference."""
    frames: int
    """Frames to speak, at least 1."""


def utterance(
    processor: OmniVoiceProcessor,
    text: str,
    language: str | None,
    instruct: str | None,
    reference: tuple[Any, str] | None,
    frames: int | None,
    denoise: bool,
) -> Prompt:
    """Style, the reference's text and the text in one, the reference's codes: as a sample with a prompt is trained on.

    `reference` is (codes [C, T], what is said in them). `denoise` asks for clean speech after a noisy reference, and is
    nothing without one. `frames` must be given, at least 1.
    """
    import torch

    if frames is None or frames < 1:
        raise ValueError(f"an utterance of {frames} frames")
    codes = torch.zeros(processor.codebooks, 0, dtype=torch.long)
    if reference is not None:
        codes = torch.as_tensor(reference[0]).long()
        text = joined(reference[1], text)
    ids = processor.text_ids(text, language, instruct, denoise and reference is not None)
    told = torch.tensor(ids).expand(processor.codebooks, -1)
    return Prompt(torch.cat([told, codes], 1), torch.arange(len(ids) + codes.shape[1]) >= len(ids), frames)


def joined(before: str, after: str) -> str:
    """Two texts as one, with a space between them where their scripts have spaces."""
    before, after = before.rstrip(), after.lstrip()
    spaced = before and after and not (_unspaced(before[-1]) or _unspaced(after[0]))
    return f"{before} {after}" if spaced else before + after


def _unspaced(character: str) -> bool:
    return unicodedata.name(character, "").startswith(UNSPACED)
