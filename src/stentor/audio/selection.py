"""The part of an audio file that is read. Options hold it, so no library of audio is imported here."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Selection:
    """The part of an audio file that is read."""

    channel: int | None = None
    """From 0; None: the mean of all."""
    track: int | None = None
    """Audio track, from 0; None: the first."""
    partial: bool = False
    """Read what is there of a file that is cut short or damaged."""

    @property
    def keys(self) -> dict[str, int]:
        """Choices that were made, for transcripts."""
        return {key: value for key, value in asdict(self).items() if value is not None and value is not False}


WHOLE = Selection()
"""The mean of all channels of the first track of a complete file."""
