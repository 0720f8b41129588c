"""Scores: a metric's value with the counts and the interval that it is made of."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass
class Score:
    """A metric with what it is made of; `low` and `high` are a 95 % interval, see `rate_interval`."""

    value: float
    """NaN when there was nothing to measure."""
    errors: int | None = None
    total: int | None = None
    low: float | None = None
    high: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    resampled: Literal["speakers", "recordings"] | None = None
    """What the interval draws, see `stentor.metrics.resampling`; None where it is not said."""
    units: int | None = None
    """How many of these there are."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: `value` is None then; what is not known is left out."""
        value = self.value if math.isfinite(self.value) else None
        return {"value": value} | {k: v for k, v in asdict(self).items() if k != "value" and v is not None and v != {}}
