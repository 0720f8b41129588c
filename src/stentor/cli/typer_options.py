"""Typer commands of verbs, made from the declarations of their options (`stentor.inference.declarations`)."""

import dataclasses
import inspect
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import typer

from stentor.inference.declarations import Declaration, Verb, declarations, default_of, flag, refuse_missing

PATHS: Any = {Path: str, list[Path]: list[str], Path | None: str | None}
"""Types of fields that are paths or addresses, and how Typer reads them."""


class Command(typer.core.TyperCommand):
    """A command whose help has its options under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            heading = "Arguments" if isinstance(param, typer.core.TyperArgument) else "Options"
            if isinstance(param, typer.core.TyperOption) and param.rich_help_panel is not None:
                heading = param.rich_help_panel
            if (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(heading, []).append(record)
        first = {heading: panels.pop(heading) for heading in ("Arguments", "Options") if heading in panels}
        for heading, records in (first | panels).items():
            with formatter.section(heading):
                formatter.write_dl(records)


def add_verb(group: typer.Typer, verb: Verb) -> None:
    """Add a verb to `group`. Its paths may be addresses, which its function sees as local files
    (stentor.commands.addresses); plug-ins are loaded and a device is checked before it is called."""

    def call(**values: Any) -> int | None:
        if not verb.name and values.pop("context").invoked_subcommand is not None:
            return None
        options = verb.options(**{name: _as_declared(value, types[name]) for name, value in values.items()})
        with _local_files(options):
            if "plugin" in values:
                from stentor.config.plugins import load_plugins

                load_plugins(options.plugin)
            refuse_missing(options)
            if values.get("device", "auto") not in ("auto", []):
                from stentor.pipeline.executor import check_device

                check_device(options.device, options.ray if "ray" in values else None)
            result = verb.call(options)
            return result if isinstance(result, int) else None

    types = {f.name: f.type if d.read_as is None else d.read_as for f, d in declarations(verb.options)}
    classes = [vars(cls).get("__annotations__", {}) for cls in verb.options.__mro__]
    # Its own options come first in the help, then those that it shares with other verbs.
    fields = sorted(
        declarations(verb.options), key=lambda pair: max(n for n, c in enumerate(classes) if pair[0].name in c)
    )
    parameters = [_parameter(field, declared, types[field.name]) for field, declared in fields]
    if not verb.name:
        parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    vars(call).update(__signature__=inspect.Signature(parameters), __annotations__=annotations)
    if verb.name:
        group.command(verb.name, help=inspect.getdoc(verb.options), cls=Command)(call)
    else:
        group.callback(invoke_without_command=True, no_args_is_help=False)(call)


def _parameter(field: dataclasses.Field[Any], declared: Declaration, annotation: Any) -> inspect.Parameter:
    """A field as Typer reads it; `annotation` is its type on the command line."""
    default: Any = default_of(field)
    default = ... if default is dataclasses.MISSING else default
    settings: dict[str, Any] = {key: vars(declared)[key] for key in ("help", "metavar", "min", "max")}
    if annotation in PATHS:  # as text, which Typer does not change
        annotation, default = PATHS[annotation], str(default) if isinstance(default, Path) else default
        if not declared.argument:
            settings["metavar"] = declared.metavar or "PATH"
    if declared.argument:
        info = typer.Argument(default, **settings)
    else:
        # A flag of its own name, without the --no-... that Typer would add.
        flags = (
            [flag(field)] if default is False and declared.flags is None else [declared.flags] * bool(declared.flags)
        )
        info = typer.Option(default, *flags, rich_help_panel=declared.panel, **settings)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=info, annotation=annotation)


def _as_declared(value: Any, annotation: Any) -> Any:
    """The value of an option as its field declares it: paths, of which addresses are some."""
    if value is None or annotation not in PATHS:
        return value
    from stentor.data.storage import as_path

    return [as_path(text) for text in value] if isinstance(value, list) else as_path(value)


def _local_files(options: Any) -> AbstractContextManager[None]:
    """Nothing to do where no option is an address."""
    values = [part for value in vars(options).values() for part in (value if isinstance(value, list) else [value])]
    if not any("://" in str(value) for value in values):
        return nullcontext()
    from stentor.commands.addresses import with_local_files

    return with_local_files(options)
