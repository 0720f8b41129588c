"""Duration rule: seconds that a text takes to say, without a model, after OmniVoice's (arXiv 2604.00688).

Each character has a weight by its script; a reference says how many seconds its speaker takes for a unit of weight.
"""

from stentor.data.speaking_rate import SpeakingRate, weight

PACE_TEXT = "Nice to meet you."
"""A text that takes one second where nothing else tells the pace."""
SHORT = 2.0
"""Seconds below which an estimate is stretched: short phrases are said slower than the rule has it."""


def estimate(
    text: str,
    reference_text: str | None = None,
    reference_seconds: float | None = None,
    speed: float = 1.0,
    pace: SpeakingRate | None = None,
) -> float:
    """Seconds that a text takes, at the pace of a reference where there is one, `speed` times as fast.

    `pace` is that of the records that a model was trained on. Without it texts take as long as their weight says, and
    estimates d below 2 s become 2 (d / 2) ** (1/3) s, before `speed` counts. A reference text without any weight tells
    nothing.
    """
    usual = pace or SpeakingRate(0.0, 1.0 / weight(PACE_TEXT))
    seconds = usual.seconds(text)
    if reference_text and reference_seconds and weight(reference_text):
        seconds *= reference_seconds / usual.seconds(reference_text)
    if pace is None and seconds < SHORT:
        seconds = SHORT * (seconds / SHORT) ** (1 / 3)
    return seconds / speed


def frames_of(seconds: float, frame_rate: float) -> int:
    """Whole frames of a duration, at least one; a remainder is cut off, as OmniVoice does."""
    return max(1, int(seconds * frame_rate + 1e-9))
