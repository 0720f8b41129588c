"""`stentor studio`: record, train and publish in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import app


@app.command()
def studio(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Another than this machine's own needs a password.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 7860,
    folder: Annotated[Path, typer.Option(help="Where data sets and runs are kept (made when missing).")] = Path(
        "studio"
    ),
    password_env: Annotated[
        str | None,
        typer.Option(
            help="Name of the environment variable that holds the password, or NAME:PASSWORD for each person: "
            "each then has projects of their own."
        ),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with models that people who sign in may train from. May be repeated."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with runs of `stentor train` to show beside the studio's own. May be repeated."),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="Each person with a name may publish with this machine's login of the Hub."),
    ] = False,
) -> None:
    """Open the studio: record, check, train, try and publish in the browser."""
    from stentor.studio.serve import serve

    serve(host, port, folder, password_env, tuple(models or ()), publish, tuple(runs or ()))
