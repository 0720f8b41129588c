"""Checkpoints of other programs, as torch.save wrote them: read without running their code."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError


class PlainObject:
    """An instance of another program's class: its attributes alone."""


def read_checkpoint(path: Path, classes: Collection[str] = ()) -> dict[str, Any]:
    """Return the tensors and plain values of a checkpoint, mapped from the disk but for files of torch before 1.6.
    Instances of `classes`, which are names without their module, become a `PlainObject`. Raises ConfigError for other
    objects, and for other files."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    try:
        mapped = zipfile.is_zipfile(path)
        names = get_unsafe_globals_in_checkpoint(path) if mapped else []
        if refused := [name for name in names if name.rpartition(".")[2] not in classes]:
            raise ConfigError(f"{path} holds objects that may run code and are never loaded: {', '.join(refused)}.")
        with safe_globals([(PlainObject, name) for name in names]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ConfigError:
        raise
    except Exception as error:  # torch has errors of many kinds for damaged files
        problem = " ".join(str(error).split())[:200].rstrip(".")
        raise ConfigError(f"{path} cannot be read as a checkpoint of torch ({problem}): get it again.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no checkpoint: it holds a {type(content).__name__} instead of named tensors.")
    return content
