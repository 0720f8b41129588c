"""`stentor improve`: rounds of labels, synthetic speech, training and comparison."""

from stentor.commands.improve.command import improve

__all__ = ["improve"]
