"""`stentor doctor`."""

import typer

from stentor.cli import app


@app.command()
def doctor(json: bool = typer.Option(False, "--json", help="Answer as JSON.")) -> None:
    """What this machine has, what is missing, what clashes, each with its mend. Exit code 1 when it is broken."""
    from stentor.commands.doctor.doctor import main

    raise typer.Exit(main(json))
