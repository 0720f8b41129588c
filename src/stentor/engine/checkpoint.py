"""Checkpoints on disk: written under a temporary name, hashed, then renamed. Damaged checkpoints are skipped.

checkpoints/step-000400/export/   the model, for inference (written by the model family)
                        resume/   weights, optimizer (and ema) .safetensors, of several processes one file for each
                                  (`tensor_files`), and state.json: what training resumes from
                        meta.json format, version of Stentor, step, and a hash of every file
checkpoints/latest, best          names of checkpoints, in one line
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from stentor.data.system import sync
from stentor.errors import DataError, StentorError
from stentor.version import CHECKPOINT_FORMAT, VERSION_KEY, __version__, refuse_newer

META = "meta.json"
NAME = re.compile(r"step-(\d{6,})", re.ASCII)
"""Names of checkpoints. Other folders, such as a copy `step-000012.old`, belong to the user."""


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint; -1 for other files and folders."""
    match = NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1


def temporary(parent: Path, step: int) -> Path:
    """Return the folder in which a checkpoint is written."""
    return parent / f".{name_of(step)}.tmp"


def begin(parent: Path, step: int) -> Path:
    """Create the empty temporary folder of checkpoint `step`. Raises StentorError for errors of the disk."""
    folder = temporary(parent, step)
    with _writing(parent, step):
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(".step-*.tmp"):  # by a process that was killed while writing
            shutil.rmtree(left, ignore_errors=True)
        (folder / "resume").mkdir(parents=True)
    return folder


def complete(parent: Path, step: int, fill: Callable[[Path], Mapping[str, str]], format: int = 1) -> Path:
    """Call `fill` with the folder of `begin`, then rename it to its final name and return its path.

    `fill` returns the hashes of files that are already flushed to disk, by their paths in the folder; all other files
    are hashed and flushed here. Raises StentorError for errors of the disk; an earlier checkpoint is not changed.
    """
    target, folder = parent / name_of(step), temporary(parent, step)
    with _writing(parent, step):
        hashes = dict(fill(folder))
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            if (name := path.relative_to(folder).as_posix()) not in hashes:
                hashes[name] = sealed(path)
        meta = {"format": format, VERSION_KEY: __version__, "step": step, "files": dict(sorted(hashes.items()))}
        (folder / META).write_text(json.dumps(meta, indent=1))
        sync(folder / META)
        if target.exists():
            shutil.rmtree(target)
        os.rename(folder, target)
        sync(parent)
        point(parent, "latest", target)
    return target


def is_of_disk(error: BaseException) -> bool:
    """Return whether this is an error of the disk; safetensors has its own error for a full disk."""
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError"


@contextlib.contextmanager
def _writing(parent: Path, step: int) -> Iterator[None]:
    """Context that removes the temporary folder on errors, and reports errors of the disk in one sentence."""
    try:
        yield
    except Exception as error:
        shutil.rmtree(temporary(parent, step), ignore_errors=True)
        if not is_of_disk(error):
            raise
        newest = next(iter(existing(parent)), None)
        fallback = f"the newest complete checkpoint is {newest.name}" if newest else "there is no earlier checkpoint"
        raise StentorError(
            f"The checkpoint of step {step} could not be written to {parent} ({error}); {fallback}. "
            "Free disk space (`df -h`) and run the same command again to resume from there."
        ) from error


def existing(parent: Path, complete: bool = True) -> list[Path]:
    """Return complete checkpoints, newest first; or all, including those without meta.json."""
    folders = [p for p in parent.glob("step-*") if step_of(p) >= 0 and ((p / META).is_file() or not complete)]
    return sorted(folders, key=step_of, reverse=True)


def damage(folder: Path) -> str | None:
    """Fault of a checkpoint, or None when every file is as it was written.

    Raises StentorError for errors of the disk, which do not mean that the checkpoint is damaged.
    """
    try:
        meta = json.loads((folder / META).read_text())
        if not isinstance(meta, dict) or not isinstance(meta.get("files"), dict):
            return f"{META} cannot be read (it names no files)"
        return changed_file(folder, meta["files"])
    except FileNotFoundError:
        return f"{META} is missing"
    except OSError as error:
        raise _refused(folder / META, error) from None
    except ValueError as error:
        return f"{META} cannot be read ({error})"


def changed_file(folder: Path, hashes: dict[str, str]) -> str | None:
    """Fault of the first file of a folder that does not match its hash, or None."""
    for name, digest in hashes.items():
        try:
            if hash_of(folder / name) != digest:
                return f"{name} is not as it was written"
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        except OSError as error:
            raise _refused(folder / name, error) from None
    return None


def _refused(path: Path, error: OSError) -> StentorError:
    return StentorError(
        f"{path} cannot be read ({error.strerror}). Nothing was changed: check the disk and the file's permissions, "
        "then run the same command again."
    )


def newest_good(parent: Path, say: Callable[[str], None]) -> Path | None:
    """Return the newest undamaged checkpoint, and report damaged ones that are skipped. None if there is none yet.
    Nothing is changed on disk.

    Raises ConfigError for one of a newer Stentor, and DataError if all are damaged.
    """
    damaged: dict[Path, str] = {}
    for folder in existing(parent, complete=False):
        if problem := damage(folder):
            damaged[folder] = problem
            continue
        meta = json.loads((folder / META).read_text())
        also = ", or start a new run under another `name` with `model.init` set to its export"
        refuse_newer(folder / META, meta, CHECKPOINT_FORMAT, "format", also)
        for other, problem in damaged.items():
            say(f"Checkpoint {other.name} is damaged ({problem}); falling back to the one before.")
        return folder
    if damaged:
        problems = "; ".join(f"{folder.name}: {problem}" for folder, problem in damaged.items())
        raise DataError(
            f"All checkpoints in {parent} are damaged ({problems}): there is nothing to resume from. Restore them from "
            "a copy; or, to start again at step 0, choose another `name`."
        )
    return None


def link(source: Path, parent: Path, names: Iterable[str]) -> None:
    """Link or copy the checkpoints of these names from the checkpoints of another run, where they are and `parent` has
    none. Files of a checkpoint are never changed, so the two runs can share them."""
    for name in names:
        target, temporary = parent / name, parent / f".{name}.tmp"
        if (source / name / META).is_file() and not target.exists():
            with contextlib.suppress(OSError):  # a lost one is reported where it is used
                shutil.copytree(source / name, temporary, copy_function=link_file)
                os.rename(temporary, target)


def link_file(source: str, target: str) -> None:
    """Link a file that is never changed, or copy it."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def set_aside_after(parent: Path, step: int, why: str) -> None:
    """Rename the checkpoints after a step to `{why}-NAME`, and let `latest` name the newest of the others, if any."""
    for other in existing(parent, complete=False):
        if step_of(other) > step:
            aside = other.with_name(f"{why}-{other.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(other, aside)
    point(parent, "latest", next(iter(existing(parent)), None))


def point(parent: Path, name: str, target: Path | None) -> None:
    """Write the name of a checkpoint to the text file `name` (latest, best), or delete the file if there is none."""
    if target is None:
        (parent / name).unlink(missing_ok=True)
        return
    temporary = parent / f".{name}.tmp"
    temporary.write_text(target.name + "\n")
    os.replace(temporary, parent / name)


def prune(parent: Path, keep: int | None, also: set[str]) -> None:
    """Delete all but the `keep` newest checkpoints (None: all) and those named in `also`."""
    for folder in [] if keep is None else existing(parent)[keep:]:
        if folder.name not in also:
            (folder / META).unlink()  # from here on it no longer counts, even if the deletion is cut off
    for folder in existing(parent, complete=False):
        if not (folder / META).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def sealed(path: Path) -> str:
    """The hash of a file, after it was flushed to disk."""
    sync(path)
    return hash_of(path)


def hash_of(path: Path) -> str:
    """Return 16 bytes of BLAKE2b over a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]
