"""Remote run: a run folder at an address. It is trained in a folder of this machine, and a thread keeps the address
like it: a checkpoint counts there when its meta.json has come, after all its other files.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from filelock import FileLock

from stentor.data.atomic_write import atomic_path
from stentor.data.storage import at_once, copy_files, copy_to, files_below, is_remote, name_of, upload
from stentor.data.storage_cache import work_place
from stentor.engine.checkpoint import META, step_of
from stentor.engine.run_lock import LOCK, AddressLock, run_lock
from stentor.errors import MissingData, StentorError

EVERY = 5.0
"""Seconds between two looks at what has changed."""
IN_CHECKPOINT = re.compile(r"((?:.+/)?checkpoints/step-\d{6,})/.+", re.ASCII)
"""Name of a file of a checkpoint, which begins with that of the checkpoint."""
POINTER = re.compile(r"(?:.+/)?checkpoints/(latest|best)")
RESULTS = "results.json"
Stamp = tuple[int, int]
"""Time and size of a file."""


@contextlib.contextmanager
def local_run(folder: Path) -> Iterator[Path]:
    """The folder to train in for a run folder: itself, or for an address the one on this machine that belongs to it,
    with what lies at the address. What is written there is uploaded during the run and when it ends.

    Raises ConfigError where another process trains into it, StentorError at the end where the last upload failed: the
    same command continues with it.
    """
    if not is_remote(folder):
        yield folder
        return
    local = work_place("runs", folder)
    with contextlib.ExitStack() as stack:
        is_main = os.environ.get("RANK", "0") == "0"
        if is_main:
            with run_lock(local):  # of a process of this machine there is nothing to wait for
                pass
            lock = stack.enter_context(AddressLock(folder, local.with_name("address.lock")))
        with FileLock(local.with_name("bringing.lock")):  # one of the processes of a machine
            bring_back(folder, local)
        if is_main:
            stack.enter_context(Mirror(local, folder, lock))
        yield local


def bring_back(address: Path, local: Path) -> None:
    """Copy the complete checkpoints at an address that are not here and, where one of them is newer than those here,
    the other files too. Incomplete ones are passed over with a sentence."""
    try:
        names = [name for name in files_below(address) if name != LOCK]
    except MissingData:  # a new run
        return
    folders = {match[1] for match in map(IN_CHECKPOINT.fullmatch, names) if match}
    here = [step_of(local / folder) for folder in folders if (local / folder / META).is_file()]
    newer = not (local / "resolved.yaml").exists()
    for folder in sorted(folders, key=lambda folder: step_of(local / folder)):
        if f"{folder}/{META}" not in names:
            print(f"The checkpoint {name_of(address / folder)} was not uploaded completely: it is passed over.")
        elif not (local / folder / META).is_file():
            print(f"Bringing {name_of(address / folder)}.", flush=True)
            meta = f"{folder}/{META}"
            copy_files((name for name in names if name.startswith(f"{folder}/") and name != meta), address, local)
            with atomic_path(local / meta) as part:  # from here on it counts
                copy_to(address / meta, part)
            newer |= step_of(local / folder) > max(here, default=-1)
    if newer:
        copy_files((name for name in names if not IN_CHECKPOINT.fullmatch(name)), address, local)


class Mirror:
    """Keeps an address like a local run folder."""

    def __init__(self, local: Path, address: Path, lock: AddressLock):
        self.local, self.address, self.lock = local, address, lock
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.sent: dict[str, Stamp | None] = {}
        """Content of the address, as it was when it was uploaded; of other files than those of checkpoints what came
        from here. None: other than here."""

    def __enter__(self) -> None:
        with contextlib.suppress(MissingData):
            names = files_below(self.address)
            for name in names:
                if match := IN_CHECKPOINT.fullmatch(name):
                    self.sent[name] = _stamp(self.local / name) if f"{match[1]}/{META}" in names else None
                elif Path(name).name == RESULTS:
                    self.sent[name] = None
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()
        try:
            self.upload_changes()
        except StentorError as error:
            raise StentorError(f"The run is in {self.local}, but not all of it could be uploaded: {error}") from error
        print(f"The run folder is at {name_of(self.address)} (on this machine: {self.local}).", flush=True)

    def _follow(self) -> None:
        """Upload what changes until `stopping`. What fails is tried again; the end of the run says what is left."""
        while not self.stopping.wait(EVERY):
            try:
                self.upload_changes()
            except (StentorError, OSError) as error:  # OSError: what was listed is being deleted
                print(f"Not uploaded yet: {error}", flush=True)

    def upload_changes(self) -> None:
        """Checkpoints first, then the names of the latest and the best, then the other files; what was deleted here is
        deleted there. Raises StentorError."""
        self._refuse_taken()
        stamps = {name: stamp for name in self._names() if (stamp := _stamp(self.local / name))}
        changed = [name for name, stamp in stamps.items() if self.sent.get(name) != stamp]
        # A checkpoint that is being rewritten does not count before all of it is there.
        self._delete(name for name in changed if name.endswith(f"/{META}") and name in self.sent)
        for _, group in groupby(sorted(changed, key=_order), _order):
            at_once(lambda name: self._upload(name, stamps[name]), group)
        gone = [name for name in self.sent if name not in stamps and not self._is_set_aside(name)]
        self._delete(name for name in gone if name.endswith(f"/{META}"))  # from here on they do not count
        self._delete(name for name in gone if name in self.sent)

    def _names(self) -> Iterator[str]:
        """The files that belong at the address: no hidden or unfinished ones, of checkpoints those that count."""
        for path in self.local.rglob("*"):
            name = path.relative_to(self.local).as_posix()
            if any(part.startswith(".") for part in name.split("/")) or name.endswith(".tmp") or not path.is_file():
                continue
            if match := IN_CHECKPOINT.fullmatch(name):
                if (self.local / match[1] / META).is_file():
                    yield name
            elif POINTER.fullmatch(name) or "checkpoints" not in path.relative_to(self.local).parts:
                yield name

    def _is_set_aside(self, name: str) -> bool:
        """Whether a file is that of a checkpoint that is damaged here; there it may be whole."""
        match = IN_CHECKPOINT.fullmatch(name)
        return match is not None and self.local.joinpath(match[1]).with_name(f"damaged-{Path(match[1]).name}").exists()

    def _refuse_taken(self) -> None:
        if self.lock.taken_by:
            raise StentorError(f"{name_of(self.address)} was taken over by {self.lock.taken_by}.")

    def _upload(self, name: str, stamp: Stamp) -> None:
        self._refuse_taken()
        try:
            upload(self.local / name, self.address / name)
            self.sent[name] = stamp
        except FileNotFoundError:
            if (self.local / name).exists():  # it is the bucket that is not there
                raise

    def _delete(self, names: Iterable[str]) -> None:
        def delete(name: str) -> None:
            (self.address / name).unlink(missing_ok=True)
            del self.sent[name]

        at_once(delete, list(names))


def _stamp(file: Path) -> Stamp | None:
    with contextlib.suppress(FileNotFoundError):
        facts = file.stat()
        return facts.st_mtime_ns, facts.st_size
    return None


def _order(name: str) -> int:
    """When a file is uploaded: results.json, which says that the run is finished, comes last."""
    if IN_CHECKPOINT.fullmatch(name):
        return 1 if name.endswith(f"/{META}") else 0
    return 2 if POINTER.fullmatch(name) else 4 if Path(name).name == RESULTS else 3
