"""Options of verbs: a dataclass declares them, field by field, and the verb gets one object of it."""

import functools
import importlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import typer

PATHS: Any = {Path: str, list[Path]: list[str], Path | None: str | None}
"""Types of fields that are paths or addresses, and how Typer reads them."""
REQUIRED: Any = MISSING
"""Default of an option that must be given."""

AUDIO_FILES = (
    "Audio files of any length, folders, patterns in quotes ('talks/**/*.mp3'), addresses (s3://, gs://, hf://, "
    "https://), or - for standard input."
)
CHANNEL = "Channel of the recording, from 0, such as one side of a call. Default: their mean."
DEVICE = "auto, cpu, cuda, cuda:N or mps."
JOBS = "Processes, of one thread each when more than one. Default: 1; with --ray what the cluster offers."
LAG = "Seconds that a Whisper model's attention is late, taken off its times."
GPUS_PER_WORKER = "With --ray: GPUs of each worker, such as 0.25. Default: 1 with GPUs, 0 without."
LANGUAGE = "Language that is spoken, as a code such as en."
MODEL_PLUGINS = "A Python file with your own model family."
RAY = "Work on a Ray cluster: auto (the one that runs here, or one for this command) or HOST:PORT."
TRANSCRIPT_FORMATS = (
    "json, txt, srt, vtt, ctm, textgrid, rttm, stm or seglst; several with commas, or all, together with --out."
)
WORKERS = "With --ray: workers. Default: as many as the cluster offers."


# Named as Typer's, whose work they do.
def Option(help: str, default: Any = None, flags: str | None = None, output: bool = False, **settings: Any) -> Any:
    """A field that is an option, `--` and its name unless `flags` says otherwise; `settings` are Typer's, as `min`. An
    `output` is a file or folder that the verb writes: at an address it is uploaded when the verb is done."""
    return _field(default, typer.Option, flags, output, help=help, **settings)


def Flag(help: str) -> Any:
    """A field that is False unless its option is there."""
    return Option(help, False)


def Argument(help: str, default: Any = REQUIRED, **settings: Any) -> Any:
    """A field that is an argument; `settings` are Typer's, as `metavar`."""
    return _field(default, typer.Argument, None, help=help, **settings)


def _field(default: Any, kind: Callable[..., Any], flags: str | None, output: bool = False, **settings: Any) -> Any:
    metadata = {"kind": kind, "flags": flags, "output": output, "settings": settings}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def command_line(options: Any) -> list[str]:
    """The arguments that make an equal options object, for another process of the same command."""
    positional, named = [], []
    for declared in fields(options):
        value = getattr(options, declared.name)
        default = declared.default if declared.default_factory is MISSING else declared.default_factory()
        if value == default:
            continue
        texts = [str(part) for part in (value if isinstance(value, list) else [value])]
        name = declared.name.replace("_", "-")
        if declared.metadata["kind"] is typer.Argument:
            positional += texts
        elif isinstance(value, bool):
            named.append(f"--{'' if value else 'no-'}{name}")
        else:
            named += [part for text in texts for part in (f"--{name}", text)]
    return [*positional, *named]


def verb(group: typer.Typer, name: str, function: str) -> Callable[[type], type]:
    """Makes the dataclass below it a verb of `group`, with its docstring as the help: its options are handed to
    `function`, written `MODULE:NAME`, whose module is imported when the verb is called."""

    def add(options_class: type) -> type:
        def call(options: Any) -> None:
            module, _, attribute = function.partition(":")
            getattr(importlib.import_module(module), attribute)(options)

        call.__annotations__["options"] = options_class
        group.command(name, help=inspect.getdoc(options_class))(takes_options(call))
        return options_class

    return add


def takes_options(verb: Callable[[Any], None]) -> Callable[..., None]:
    """A function with one parameter for each field of the dataclass that `verb` takes, as Typer reads them.

    Paths may be addresses, which `verb` sees as local files (stentor.commands.addresses). Where there is a field
    `plugin`, it loads those plug-ins and the installed ones, a field `device` is checked; then it calls `verb` with the
    options as one object.
    """
    (options_class,) = (p.annotation for p in inspect.signature(verb).parameters.values())
    types = get_type_hints(options_class)

    @functools.wraps(verb)
    def call(**values: Any) -> None:
        options = options_class(**{name: _as_declared(value, types[name]) for name, value in values.items()})
        with _local_files(options):
            if hasattr(options, "plugin"):
                from stentor.config.plugins import load_plugins

                load_plugins(options.plugin)
            if getattr(options, "device", "auto") not in ("auto", []):
                from stentor.pipeline.executor import check_device

                check_device(options)
            verb(options)

    parameters = []
    for declared in fields(options_class):
        default = ... if declared.default is MISSING else declared.default
        if declared.default_factory is not MISSING:
            default = declared.default_factory()
        flags = declared.metadata["flags"]
        if default is False and flags is None:  # without the --no-... that Typer would add
            flags = f"--{declared.name.replace('_', '-')}"
        annotation, settings = types[declared.name], declared.metadata["settings"]
        if annotation in PATHS:  # as text, which Typer does not change
            annotation, default = PATHS[annotation], str(default) if isinstance(default, Path) else default
            if declared.metadata["kind"] is typer.Option:
                settings = {"metavar": "PATH", **settings}
        info = declared.metadata["kind"](default, *([flags] if flags else []), **settings)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(declared.name, kind, default=info, annotation=annotation))
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    vars(call).update(__signature__=inspect.Signature(parameters), __annotations__=annotations)
    return call


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
