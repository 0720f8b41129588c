"""`stentor prepare segments`: recordings through stages that cut, measure and drop."""

from stentor.commands.prepare.segments.command import prepare_segments

__all__ = ["prepare_segments"]
