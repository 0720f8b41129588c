"""Labels `overlap`: where several talk at once."""

from typing import ClassVar, Literal

from stentor.tasks.diarize.labels.base import Detection


class Overlap(Detection):
    """Whether two or more talk at once: overlapped speech detection."""

    type: Literal["overlap"] = "overlap"

    least: ClassVar = 2

    @property
    def names(self) -> list[str]:
        return ["overlap"]
