"""Command line: the program (program.py), whose options are made from what verbs declare (typer_options.py)."""

from stentor.cli.program import build, main, run

__all__ = ["build", "main", "run"]
