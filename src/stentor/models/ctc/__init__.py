"""Family `ctc`."""

from stentor.models.ctc.config import CTCFamily

__all__ = ["CTCFamily"]
