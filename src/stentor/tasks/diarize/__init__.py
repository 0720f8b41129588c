"""Task `diarize`."""

from stentor.tasks.diarize.task import Diarize

__all__ = ["Diarize"]
