"""Family `audio_llm`."""

from stentor.models.audio_llm.config import AudioLLM

__all__ = ["AudioLLM"]
