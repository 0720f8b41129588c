"""Family `omnivoice`."""

from stentor.models.omnivoice.config import OmniVoice

__all__ = ["OmniVoice"]
