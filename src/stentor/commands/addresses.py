"""Addresses of verbs: what a verb reads is brought into the cache, what it writes is made there and then uploaded."""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from stentor.data.storage import as_path, copy_files, files_below, is_remote, name_of
from stentor.data.storage_cache import local_copy, local_folder, work_place
from stentor.errors import DataError, MissingData
from stentor.inference.declarations import declarations
from stentor.section.full_paths import mapped

AnySection = TypeVar("AnySection")


@contextlib.contextmanager
def with_local_files(options: Any) -> Iterator[None]:
    """While a verb runs, its options name local files in the place of addresses. Its outputs are uploaded after it."""
    with contextlib.ExitStack() as stack:
        values = vars(options)
        for field, declared in declarations(options):
            value = values[field.name]
            if declared.output and is_remote(value):
                local = stack.enter_context(staged(as_path(value), "force" in values))
                values[field.name] = local if isinstance(as_path(value), type(value)) else str(local)
            elif declared.local:
                values[field.name] = brought(value)
        yield


def brought(value: Any) -> Any:
    """A value with local copies in the place of the addresses in it; a folder of a run stands for its export."""
    if isinstance(value, list):
        return [brought(part) for part in value]
    if not is_remote(value):
        return value
    path = as_path(value)
    if not path.is_dir():
        local = local_copy(path)
    elif (path / "resolved.yaml").is_file():
        from stentor.inference.load import find_export

        local = find_export(path)
    else:
        local = local_folder(path)
    return str(local) if isinstance(value, str) else local


def brought_run(model: str) -> str:
    """A model that is named, as `brought`; of a finished run at an address the results, too."""
    if is_remote(model) and (as_path(model) / "results.json").is_file():
        return str(local_folder(as_path(model), without=("checkpoints/", "stages/")))
    return str(brought(model))


def with_local_models(section: AnySection) -> AnySection:
    """A copy of a section, such as `model:`, in which addresses of models and of stored features are local folders."""
    local: AnySection = mapped(section, lambda value, _: brought(value) if isinstance(value, str) else value)
    return local


@contextlib.contextmanager
def staged(address: Path, with_existing: bool = False) -> Iterator[Path]:
    """A local path in the place of an address to write: what was made is uploaded at the end, also when some of the
    data could not be used. After another error it stays, and the same command continues with it. A local path is
    itself.

    `with_existing`: what lies at the address is copied first.
    """
    if not is_remote(address):
        yield address
        return
    local = work_place("outputs", address)
    if with_existing:
        with contextlib.suppress(MissingData):
            copy_files(files_below(address), address, local)
    try:
        yield local
    except DataError:
        _send(local, address)
        raise
    _send(local, address)


def _send(local: Path, address: Path) -> None:
    """Upload a file, or all of a folder and the files beside it, and delete them here."""
    # Beside a manifest lie its errors.jsonl and the like.
    names = [p.relative_to(local.parent).as_posix() for p in sorted(local.parent.rglob("*")) if p.is_file()]
    marks = [name for name in names if name.endswith(".prepared.json")]  # last: they say that the rest is there
    for group in ([name for name in names if name not in marks], marks):
        copy_files(group, local.parent, address.parent)
    if names:
        print(f"Uploaded {len(names)} file{'s' * (len(names) > 1)} to {name_of(address)}.", file=sys.stderr)
    shutil.rmtree(local.parent, ignore_errors=True)
