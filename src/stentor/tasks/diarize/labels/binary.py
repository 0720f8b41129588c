"""Labels `binary`: speech or not."""

from typing import ClassVar, Literal

from stentor.tasks.diarize.labels.base import Detection


class Binary(Detection):
    """Whether anybody talks: voice activity detection."""

    type: Literal["binary"] = "binary"

    least: ClassVar = 1

    @property
    def names(self) -> list[str]:
        return ["speech"]
