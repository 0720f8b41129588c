"""Labels `binary`, speech or not, and `overlap`, where several talk at once."""

from typing import ClassVar, Literal

from stentor.tasks.diarize.labels.base import Detection


class Binary(Detection):
    """Whether anybody talks: voice activity detection."""

    type: Literal["binary"] = "binary"

    least: ClassVar = 1

    @property
    def names(self) -> list[str]:
        return ["speech"]


class Overlap(Detection):
    """Whether two or more talk at once: overlapped speech detection."""

    type: Literal["overlap"] = "overlap"

    least: ClassVar = 2

    @property
    def names(self) -> list[str]:
        return ["overlap"]
