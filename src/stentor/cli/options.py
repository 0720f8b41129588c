"""Options of verbs: a dataclass declares them with Typer's metadata, and the verb gets one object of it."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

AudioFiles = Annotated[
    list[str],
    typer.Argument(
        help="Audio files of any length, folders, patterns in quotes ('talks/**/*.mp3'), http(s) addresses, or - for "
        "standard input."
    ),
]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Leave out files whose outputs are in the folder --out already.")
]
Channel = Annotated[
    int | None,
    typer.Option(min=0, help="Channel of the recording, from 0, such as one side of a call. Default: their mean."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Lag = Annotated[
    float | None, typer.Option(help="Seconds that a Whisper model's attention is late, taken off its times.")
]
Language = Annotated[str | None, typer.Option(help="Language that is spoken, as a code such as en.")]
ModelPlugins = Annotated[list[Path], typer.Option(help="A Python file with your own model family.")]
Plugins = Annotated[
    list[Path], typer.Option(help="A Python file whose classes extend Stentor. May be given several times.")
]


def takes_options(verb: Callable[[Any], None]) -> Callable[..., None]:
    """A function with one parameter for each field of the dataclass that `verb` takes, as Typer reads them.

    Where there is a field `plugin`, it loads those plug-ins and the installed ones; then it calls `verb` with the
    options as one object.
    """
    (options_class,) = (p.annotation for p in inspect.signature(verb).parameters.values())
    annotations = get_type_hints(options_class, include_extras=True)

    @functools.wraps(verb)
    def call(**values: Any) -> None:
        options = options_class(**values)
        if hasattr(options, "plugin"):
            from stentor.config.plugins import load_plugins

            load_plugins(options.plugin)
        verb(options)

    parameters = []
    for field in fields(options_class):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        kind, annotation = inspect.Parameter.KEYWORD_ONLY, annotations[field.name]
        parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=annotation))
    vars(call).update(__signature__=inspect.Signature(parameters), __annotations__=annotations)
    return call
