"""`stentor prepare tokens`: shards of codec tokens."""

from stentor.commands.prepare.tokens.command import prepare_tokens

__all__ = ["prepare_tokens"]
