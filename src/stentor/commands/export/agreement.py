"""Agreement of an export with the model that it was made from: what was compared, and what rounding may explain."""

from dataclasses import dataclass, field
from typing import Any

from stentor.errors import StentorError


class Different(StentorError):
    """The export does not do what the model does."""


@dataclass
class Agreement:
    """What was compared and did not differ by more than rounding explains; or why nothing was."""

    summary: str
    """For people, in a sentence without a point."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures of the comparison: `clips`, the metric of both, `rounded` (answers that differ by rounding)."""

    def __str__(self) -> str:
        return self.summary

    def as_dict(self) -> dict[str, Any]:
        """For results.json."""
        return {"checked": self.summary, **self.facts}


@dataclass
class Tolerance:
    """What rounding may do to the outputs of the same weights."""

    loss: float
    """Difference of a mean loss, relative to 1 + the loss."""
    log_prob: float
    """Difference of the mean log-probability of an answer whose text came out differently."""
    share: float
    """Share of the clips whose text may come out differently at all (rounded down): where two tokens are as likely as
    each other, rounding decides."""
    least: int = 0
    """Clips of which that is allowed, however few there are."""
    metric: float = 0.01
    """Difference of the main metric, where answers are no texts."""


FULL = Tolerance(1e-4, 0.02, 0.125)
"""Both with float32 weights on one device. Adapters that are folded in add up in another order."""
HALF = Tolerance(2e-2, 0.2, 0.25, least=1, metric=0.05)
"""Some of the arithmetic is in 16 or fewer bits, where folding rounds a weight anew."""

COARSE = Tolerance(2e-2, 0.5, 0.5, least=1, metric=0.05)
"""Weights in 8 bits, which change what is said where the model is unsure."""
