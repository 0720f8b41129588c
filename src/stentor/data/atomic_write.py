"""Atomic writing: a file or a folder appears under its name when it is complete, or not at all; and modes of files."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.data.storage import is_remote, upload


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, for a file or a folder, that is renamed to it at the end, or removed after an
    error; of an address, a path of this machine whose files are then uploaded, the config.json of a folder last."""
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="stentor-") as folder:
            part = Path(folder) / path.name
            yield part
            files = [part] if part.is_file() else [f for f in part.rglob("*") if f.is_file()]
            for file in sorted(files, key=lambda f: f.name == "config.json"):
                upload(file, path.joinpath(*file.relative_to(part).parts))
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)


def follow_umask(*files: Path) -> None:
    """Give files the mode of a new file in their folder. safetensors and huggingface_hub write through a temporary file
    that only its owner may read (mode 0600), and rename it. The mode is taken from a file made for it: asking the
    system for the umask means to change it for a moment, for all threads."""
    for file in files:
        probe = file.with_name(f".{file.name}.mode")
        probe.touch()
        mode = stat.S_IMODE(probe.stat().st_mode)
        probe.unlink(missing_ok=True)
        file.chmod(mode)
