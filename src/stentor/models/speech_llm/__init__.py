"""Family `speech_llm`."""

from stentor.models.speech_llm.config import SpeechLLM

__all__ = ["SpeechLLM"]
