"""`stentor prepare speech`: texts spoken by a model or the built-in voice."""

from stentor.commands.prepare.speech.command import prepare_speech

__all__ = ["prepare_speech"]
