"""`stentor voices`: the saved voices of a model or a folder."""

from dataclasses import dataclass

from stentor.cli import app
from stentor.cli.options import Argument, Option, verb


@verb(app, "voices", "stentor.commands.voices:list_voices")
@dataclass
class VoicesOptions:
    """List the voices that travel with a model, or those in a folder: length, language, codec and text."""

    folder: str = Argument("Run folder, export folder or Hub id; or a folder with voices.", ".")
    as_json: bool = Option("Answer as JSON.", False, "--json")
