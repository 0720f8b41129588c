"""Options of `stentor studio`: record, train and publish in the browser."""

from dataclasses import dataclass
from pathlib import Path

from stentor.section.options import Flag, Option, verb


@verb("studio", "stentor.studio.serve:serve")
@dataclass(kw_only=True)
class StudioOptions:
    """Open the studio: record, check, train, try and publish in the browser."""

    host: str = Option("Address to listen on. Another than this machine's own needs a password.", "127.0.0.1")
    port: int = Option("Port to listen on; 0 takes a free one.", 7860, min=0, max=65535)
    folder: Path = Option("Where data sets and runs are kept (made when missing).", Path("studio"))
    password_env: str | None = Option(
        "Name of the environment variable that holds the password, or NAME:PASSWORD for each person: each then has "
        "projects of their own."
    )
    models: list[Path] = Option("Folder with models that people who sign in may train from. May be repeated.", [])
    runs: list[Path] = Option(
        "Folder with runs of `stentor train` to show beside the studio's own. May be repeated.", []
    )
    publish: bool = Flag("Each person with a name may publish with this machine's login of the Hub.")
