"""`stentor improve`."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import Argument, Option, verb
from stentor.cli.train import PLUGINS


@verb(app, "improve", "stentor.commands.improve:improve")
@dataclass
class ImproveOptions:
    """Train in rounds, each on labels that the best model made and on synthetic speech, as the section `improve:` of a
    run file says; the same command again goes on where it stopped."""

    config: Path = Argument("The YAML (or JSON) file of the run.")
    overrides: list[str] = Argument("Overrides, such as improve.rounds=3.", [], metavar="[KEY=VALUE]...")
    more: int = Option("So many rounds more than there are, whatever `rounds` and `patience` say.", 0, min=0)
    processes: int = Option("Processes of each training on this machine: one for each GPU.", 1, min=1)
    plugin: list[Path] = Option(PLUGINS, [])
