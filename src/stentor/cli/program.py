"""The program `stentor`: Typer commands of all verbs, which the modules `*_options.py` of `commands/` declare."""

import functools
import importlib
import io
import sys
import traceback
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from stentor.cli.typer_options import add_verb
from stentor.engine.signals import stop_at_once
from stentor.errors import FULL, DataError, StentorError, without_secrets
from stentor.inference.declarations import GROUPS, VERBS

DEBUG = "--debug"
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]
"""ClickException, of the click that this typer uses: newer ones carry a click of their own."""


SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    name="stentor",
    help="One training pipeline for speech models: transcribe, time every word, tell speakers apart, speak.",
    pretty_exceptions_enable=False,
    add_completion=False,
    **SETTINGS,
)


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Show the version and stop."),
    debug: bool = typer.Option(False, DEBUG, help="Show the traceback of an error. May stand anywhere."),
) -> None:
    if version:
        from stentor.version import __version__

        typer.echo(f"stentor {__version__}")
        raise typer.Exit()


@functools.cache
def build() -> Any:
    """The command tree of all verbs, as click has it."""
    for path in sorted((Path(__file__).parents[1] / "commands").glob("*_options.py")):
        importlib.import_module(f"stentor.commands.{path.stem}")
    groups = {"": app}
    for name, help in GROUPS.items():
        parent, _, last = name.rpartition(" ")
        groups[name] = typer.Typer(name=last, help=help, **SETTINGS)
        groups[parent].add_typer(groups[name])
    for verb in VERBS:
        add_verb(groups[verb.group], verb)
    return typer.main.get_command(app)


def main(argv: list[str] | None = None) -> int:
    """Run one command; answer its exit code (see docs: 0 done, 1 failure, 2 usage, 3 data, 75 stopped)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = DEBUG in arguments
    arguments = [a for a in arguments if a != DEBUG]
    try:
        code = build().main(arguments, prog_name="stentor", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Abort:
        return 130
    except CLICK_ERROR as error:
        print(without_secrets(_usage(error)), end="", file=sys.stderr)
        return 2
    except StentorError as error:
        print(f"stentor: {without_secrets(str(error))}", file=sys.stderr)
        if debug:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
        return error.exit_code
    except UnicodeEncodeError as error:
        part = error.object[max(0, error.start - 40) : error.end + 40]
        print(f"stentor: {part!r} is no text, as of a file whose name is not UTF-8: rename it.", file=sys.stderr)
        return DataError.exit_code
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from stentor.section.contract import blame
        from stentor.section.explain import wrong_value

        mistake = blame(error, wrong := wrong_value(error)) or wrong
        if debug:
            print(without_secrets(traceback.format_exc()), file=sys.stderr)
        elif mistake is not None:
            print(f"stentor: {without_secrets(str(mistake))}", file=sys.stderr)
        elif isinstance(error, OSError) and (error.filename or error.errno in FULL):
            print(f"stentor: {_reason(error)}", file=sys.stderr)
        else:
            print(
                f"stentor: unexpected failure: {type(error).__name__}: {without_secrets(str(error))}\n"
                f"Run the command again with {DEBUG} to see where, and please report it.",
                file=sys.stderr,
            )
        return 1 if mistake is None else mistake.exit_code


def _usage(error: Any) -> str:
    """Message about wrong arguments. Typer checks values with pydantic, whose words are replaced."""
    if isinstance(error.__cause__, ValidationError):
        detail = error.__cause__.errors()[0]
        bounds = {"ge": "at least", "le": "at most", "gt": "above", "lt": "below"}
        bound = [f"{bounds[key]} {limit:g}" for key, limit in detail.get("ctx", {}).items() if key in bounds]
        kind = {"int": "a whole number", "float": "a number"}.get(detail["type"].split("_")[0], "another value")
        error.message = f"it must be {(bound or [kind])[0]}, not {detail['input']!r}."
    error.show(text := io.StringIO())
    return text.getvalue()


def _reason(error: OSError) -> str:
    """Sentence for an error of a file or a disk, which the user can fix, wherever it was raised."""
    problem = f"{error.filename} cannot be used" if error.filename else "A file could not be written"
    fix = "free disk space" if error.errno in FULL else "check the path and its permissions"
    return without_secrets(f"{problem} ({error.strerror or error}): {fix}, then run the same command again.")


def run() -> None:
    """Console entry point."""
    stop_at_once()
    sys.exit(main())
