"""`stentor prepare words`: word times of a manifest."""

from stentor.commands.prepare.words.command import prepare_words

__all__ = ["prepare_words"]
