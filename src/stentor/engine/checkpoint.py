"""Checkpoints on disk: written under a temporary name, hashed, renamed; a damaged one is passed over.

checkpoints/step-000400/export/   what others load (written by the model family)
                        resume/   weights.safetensors optimizer.safetensors state.json: what training goes on from
                        meta.json step, and a hash of every file
checkpoints/latest, best          names of checkpoints, in one line
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.file_modes import follow_umask
from stentor.errors import StentorError

if TYPE_CHECKING:
    import torch

META = "meta.json"


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def write(parent: Path, step: int, fill: Callable[[Path], None], **meta: Any) -> Path:
    """Make checkpoint `step` by calling `fill(temporary folder)`; it appears under its name only when complete.

    Raises StentorError when the disk refuses; what was there before stays.
    """
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / name_of(step)
    temporary = parent / f".{target.name}.tmp"
    for left in parent.glob(".step-*.tmp"):  # by a process that was killed while writing
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir()
        fill(temporary)
        files = sorted(p for p in temporary.rglob("*") if p.is_file())
        hashes = {str(p.relative_to(temporary)): _hash(p) for p in files}
        (temporary / META).write_text(json.dumps({"step": step, "files": hashes, **meta}, indent=1))
        for path in [*files, temporary / META]:
            _sync(path)
        if target.exists():
            shutil.rmtree(target)
        os.rename(temporary, target)
        _sync(parent)
        point(parent, "latest", target)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # safetensors reports a full disk as its own error, with the system's message inside.
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        newest = next(iter(existing(parent)), None)
        fallback = f"the newest complete checkpoint is {newest.name}" if newest else "there is no earlier checkpoint"
        raise StentorError(
            f"The checkpoint of step {step} could not be written to {parent} ({error}); {fallback}. "
            "Make room (`df -h`) and run the same command again to go on from there."
        ) from error
    return target


def existing(parent: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    return sorted((p for p in parent.glob("step-*") if (p / META).is_file()), key=step_of, reverse=True)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None when every file is as it was written."""
    try:
        meta = json.loads((folder / META).read_text())
        for name, digest in meta["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if _hash(folder / name) != digest:
                return f"{name} is not as it was written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{META} cannot be read ({error})"
    return None


def newest_good(parent: Path, say: Callable[[str], None]) -> Path | None:
    """The newest undamaged checkpoint; says so when it has to pass over a damaged one."""
    for folder in existing(parent):
        problem = damage(folder)
        if problem is None:
            point(parent, "latest", folder)
            return folder
        say(f"Checkpoint {folder.name} is damaged ({problem}); falling back to the one before.")
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder, aside)
    return None


def point(parent: Path, name: str, target: Path) -> None:
    """Let the small text file `name` (latest, best) name a checkpoint."""
    temporary = parent / f".{name}.tmp"
    temporary.write_text(target.name + "\n")
    os.replace(temporary, parent / name)


def prune(parent: Path, keep: int, also: set[str]) -> None:
    """Delete all but the `keep` newest checkpoints and those named in `also`."""
    for folder in existing(parent)[keep:]:
        if folder.name not in also:
            (folder / META).unlink()  # from here on it no longer counts, even if the deletion is cut off
    for folder in parent.glob("step-*"):
        if not (folder / META).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """One safetensors file; tensors that share memory are copied apart."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        if tensor.numel() and tensor.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.data_ptr())
        tensors[name] = tensor
    save_file(tensors, path)
    follow_umask(path)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
