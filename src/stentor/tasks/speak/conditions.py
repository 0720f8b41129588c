"""Sample conditions: the random draws of OmniVoice's sample construction.

A sample is a style (language, instruct), a text and the codec tokens of the audio, of which the first frames are a
prompt (the voice to go on in) and the cells of the rest are masked at random. Which of these a sample has is drawn
here, from the item's own randomness; the family builds the tensors (k2-fsa/OmniVoice, arXiv 2604.00688).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stentor.data.conditions import Conditions, Spoken

if TYPE_CHECKING:
    import numpy as np


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
    `prompt_ratio_range`, language and instruct are told with their probabilities where the record has them, and where
    an instruct is told the prompt is left out with the probability `only_instruct_ratio`: the voice is then designed by
    words alone. A record whose beginning was made noisy is never unconditional and its prompt is that beginning.
    """
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
