"""Plug-ins: installed packages (entry point group `stentor.plugins`) and single files (`--plugin my_file.py`).

Importing a plug-in registers its `Source`, `Family`, `Task`, `Labels`, `Loss`, `Codec`, `SpeechEvaluator` and
`Callback` subclasses under their `type`.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from stentor.errors import ConfigError
from stentor.section.contract import REGISTERED

GROUP = "stentor.plugins"


def load_plugins(files: Sequence[Path] = ()) -> list[str]:
    """Import all installed plug-ins and these files; returns their names. Raises `ConfigError` when one is missing,
    does not import, or has a `type` that is already taken."""
    names = []
    for point in entry_points(group=GROUP):
        _import(point.value.partition(":")[0], f"the installed plug-in '{point.name}'")
        names.append(point.name)
    return names + [_file(Path(file)) for file in files]


def _file(path: Path) -> str:
    path = path.expanduser().resolve()
    if not path.is_file() or path.suffix != ".py":
        reason = "is not a Python file" if path.exists() else "does not exist"
        raise ConfigError(f"The plug-in {path} {reason}.")
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and _same(vars(loaded).get("__file__"), path):
        return name
    if not name.isidentifier():
        raise ConfigError(f"The plug-in {path} needs a file name that can be imported, such as my_plugin.py.")
    spec = importlib.util.find_spec(name)
    if loaded is not None or (spec is not None and not _same(spec.origin, path)):
        raise ConfigError(f"The plug-in {path} has the name of another Python module: rename the file.")
    # A plain import by name, so that loader processes find the module again.
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    before = len(REGISTERED)
    _import(name, f"the plug-in {path}")
    if len(REGISTERED) == before:
        raise ConfigError(
            f"The plug-in {path} registers nothing: a class in it extends Source, Family, Task, Labels, Loss, Codec, "
            'SpeechEvaluator or Callback and names itself, as in `type: Literal["my_loss"] = "my_loss"`.'
        )
    return name


def _import(module: str, what: str) -> None:
    try:
        importlib.import_module(module)
    except ConfigError as error:
        raise ConfigError(f"Cannot load {what}: {error}") from None
    except Exception as error:
        raise ConfigError(f"Cannot load {what}: {_where(error, module)}{type(error).__name__}: {error}") from error


def _where(error: Exception, module: str) -> str:
    """File and line in the plug-in that failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    spec = importlib.util.find_spec(module.partition(".")[0])
    folder = str(Path(spec.origin).parent) if spec and spec.origin else ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if folder and f.filename.startswith(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _same(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve() == path
