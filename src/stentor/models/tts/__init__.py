"""Family `tts`."""

from stentor.models.tts.config import TTS

__all__ = ["TTS"]
