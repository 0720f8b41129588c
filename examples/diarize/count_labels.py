"""Labels of one's own in one file: how many people talk at once.

stentor train count.yaml --plugin count_labels.py --plugin ordinal_loss.py --plugin talk_share.py
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from stentor.extend import CrossEntropy, Labels, concurrent_segments


class Count(Labels):
    """None, one, two ... people: one class for each number. Answers with segments of `talk` and of `overlap`."""

    type: Literal["count"] = "count"
    most: int = Field(3, ge=2)
    """Greatest number with a class of its own; larger numbers count as this."""

    exclusive: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        return self.most + 1

    @property
    def names(self) -> list[str]:
        return ["talk", "overlap"]

    def losses(self):
        return {"count": CrossEntropy()}

    def targets(self, activity, ids):
        """int64 [T] from who talks in which frame, bool [T, N]."""
        return activity.sum(1).clip(max=self.most).astype(np.int64)

    def decode(self, logits):
        """Probability that at least one and that at least two talk, float32 [T, 2]."""
        odds = np.exp(logits - logits.max(1, keepdims=True))
        chances = odds / odds.sum(1, keepdims=True)
        return np.stack([chances[:, 1:].sum(1), chances[:, 2:].sum(1)], axis=1).astype(np.float32)

    def reference_segments(self, segments):
        """Output of a perfect model."""
        return [*concurrent_segments(segments, 1, "talk"), *concurrent_segments(segments, 2, "overlap")]
