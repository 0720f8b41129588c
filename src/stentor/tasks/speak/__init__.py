"""Task `speak`."""

from stentor.tasks.speak.task import Speak

__all__ = ["Speak"]
