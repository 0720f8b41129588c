"""Remote run: a run folder at an address. It is trained in a folder of this machine, and a thread keeps the address
like it: a checkpoint counts there when its meta.json has come, after all its other files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stentor.commands.addresses import UPLOADS, work_place
from stentor.data.remote_path import rmtree
from stentor.data.storage import copy_to, files_below, is_remote, name_of, upload
from stentor.engine.checkpoint import META, step_of
from stentor.errors import MissingData, StentorError

EVERY = 5.0
"""Seconds between two looks at what has changed."""
POINTERS = ("latest", "best")
CHECKPOINTS = "checkpoints"
RESULTS = "results.json"


@contextlib.contextmanager
def local_run(folder: Path) -> Iterator[Path]:
    """The folder to train in for a run folder: itself, or for an address the one on this machine that belongs to it,
    with what lies at the address. What is written there is uploaded while the run goes on and when it ends.

    Raises StentorError at the end where the last upload failed: the same command goes on with it.
    """
    if not is_remote(folder):
        yield folder
        return
    local = work_place("runs", folder)
    with local.with_name("bringing.lock").open("a") as lock:  # one of the processes of a machine
        fcntl.flock(lock, fcntl.LOCK_EX)
        bring_back(folder, local)
    if os.environ.get("RANK", "0") != "0":
        yield local
        return
    mirror = Mirror(local, folder)
    thread = threading.Thread(target=mirror.follow, daemon=True)
    thread.start()
    try:
        yield local
    finally:
        mirror.stopping.set()
        thread.join()
        try:
            mirror.upload_changes()
        except StentorError as error:
            raise StentorError(f"The run is in {local}, but not all of it could be uploaded: {error}") from error
        print(f"The run folder is at {name_of(folder)} (on this machine: {local}).", flush=True)


def bring_back(address: Path, local: Path) -> None:
    """Copy the complete checkpoints at an address that are not here and, where one of them is newer than those here,
    the other files too. Incomplete ones are passed over with a sentence."""
    try:
        names = list(files_below(address))
    except MissingData:  # a new run
        return
    folders = {Path(*Path(name).parts[: depth + 2]) for name in names if (depth := _depth(name)) is not None}
    here = [step_of(local / folder) for folder in folders if (local / folder / META).is_file()]
    newer = False
    for folder in sorted(folders, key=step_of):
        if str(folder / META) not in names:
            print(f"The checkpoint {name_of(address / str(folder))} was not uploaded completely: it is passed over.")
        elif not (local / folder).exists():
            newer |= step_of(folder) > max(here, default=-1)
            _bring(address, local, folder, [name for name in names if folder in Path(name).parents])
    rest = [name for name in names if _depth(name) is None]
    if newer or not (local / "resolved.yaml").exists():
        with ThreadPoolExecutor(UPLOADS) as pool:
            list(pool.map(lambda name: copy_to(address / name, local / name), rest))


def _depth(name: str) -> int | None:
    """Of a file of a checkpoint: how many folders lie above the folder of checkpoints. None for other files."""
    parts = Path(name).parts
    at = parts.index(CHECKPOINTS) if CHECKPOINTS in parts else len(parts)
    return at if len(parts) > at + 2 and step_of(Path(parts[at + 1])) >= 0 else None


def _bring(address: Path, local: Path, folder: Path, names: list[str]) -> None:
    """A checkpoint, which appears when it is complete; whether its files are whole is seen when it is loaded."""
    print(f"Bringing {name_of(address / str(folder))}.", flush=True)
    part = local / folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    with ThreadPoolExecutor(UPLOADS) as pool:
        list(pool.map(lambda name: copy_to(address / name, part / Path(name).relative_to(folder)), names))
    part.rename(local / folder)


class Mirror:
    """Keeps an address like a local run folder."""

    def __init__(self, local: Path, address: Path):
        self.local, self.address = local, address
        self.stopping = threading.Event()
        self.sent: dict[str, tuple[int, int]] = {}
        """Time and size of the files as they were uploaded, by their names in the run folder."""
        self.complete: set[str] = set()
        """Checkpoints that are wholly at the address."""
        with contextlib.suppress(MissingData):
            names = files_below(address)
            self.complete = {str(Path(name).parent) for name in names if name.endswith(f"/{META}")}
            self.sent = {name: (0, 0) for name in names if Path(name).name == RESULTS}

    def follow(self) -> None:
        """Upload what changes until `stopping`. What fails is tried again; the end of the run says what is left."""
        while not self.stopping.wait(EVERY):
            try:
                self.upload_changes()
            except (StentorError, OSError) as error:  # OSError: what was listed is being deleted
                print(f"Not uploaded yet: {error}", flush=True)

    def upload_changes(self) -> None:
        """Checkpoints first, then the names of the latest and the best, then the other files; what was deleted here is
        deleted there. Raises StentorError."""
        checkpoints = {str(p.parent.relative_to(self.local)): p.parent for p in self.local.rglob(f"step-*/{META}")}
        for name, folder in checkpoints.items():
            if name not in self.complete:
                self._upload_checkpoint(name, folder)
        pointers = [p for p in self.local.rglob(f"{CHECKPOINTS}/*") if p.name in POINTERS]
        for file in [*pointers, *self._others()]:
            self._upload(file)
        for name in self.complete - checkpoints.keys():
            if (self.local / name).with_name(f"damaged-{Path(name).name}").exists():
                continue  # here; there it may be whole
            (self.address / name / META).unlink(missing_ok=True)  # from here on it does not count
            rmtree(self.address / name)
            self.complete.discard(name)
        for name in [name for name in self.sent if not (self.local / name).exists()]:
            (self.address / name).unlink(missing_ok=True)  # results of a run that goes on are none
            del self.sent[name]

    def _upload_checkpoint(self, name: str, folder: Path) -> None:
        files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p != folder / META]
        try:
            with ThreadPoolExecutor(UPLOADS) as pool:
                list(pool.map(lambda p: upload(p, self.address / str(p.relative_to(self.local))), files))
            upload(folder / META, self.address / name / META)
        except FileNotFoundError:
            if (folder / META).exists():  # it is the bucket that is not there
                raise
            rmtree(self.address / name)  # deleted while it was uploaded: a newer one is there
            return
        self.complete.add(name)

    def _others(self) -> list[Path]:
        """Files outside of checkpoints; results.json last, which says that the run is finished."""
        parts = {p: p.relative_to(self.local).parts for p in self.local.rglob("*") if p.is_file()}
        files = [p for p, names in parts.items() if CHECKPOINTS not in names and not p.name.endswith(".tmp")]
        files = [p for p in files if not any(name.startswith(".") for name in parts[p])]
        return sorted(files, key=lambda p: (p.name == RESULTS, p))

    def _upload(self, file: Path) -> None:
        name = str(file.relative_to(self.local))
        try:
            facts = file.stat()
            if self.sent.get(name) != (facts.st_mtime_ns, facts.st_size):
                upload(file, self.address / name)
                self.sent[name] = (facts.st_mtime_ns, facts.st_size)
        except FileNotFoundError:
            if file.exists():  # it is the bucket that is not there
                raise
