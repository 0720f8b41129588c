"""`stentor prepare labels`: pseudo-labels by recognisers that vote."""

from stentor.commands.prepare.labels.command import prepare_labels

__all__ = ["prepare_labels"]
