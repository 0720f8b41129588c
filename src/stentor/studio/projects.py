"""The projects folder: data sets (see dataset.py) and runs (see jobs.py) of one person.

FOLDER/datasets/NAME/   FOLDER/runs/NAME/   FOLDER/tmp/
"""

import secrets
import shutil
import time
from pathlib import Path

from stentor.errors import ConfigError, StentorError
from stentor.studio.dataset_folder import RATES, DataSet, label
from stentor.studio.files import Record, checked_name, disk_errors, inside, is_name, same_name, write_json

__all__ = ["RATES", "DataSet", "Projects", "Record"]


class Projects:
    """The folder that the studio keeps everything of one person in.

    `guarded`: the person sits elsewhere and has signed in, so that their runs may read this folder and `models` only.
    `publishes`: they may publish with the Hub's login of this machine. `more_runs`: folders of runs that were trained
    elsewhere, to be looked at.
    """

    def __init__(
        self,
        folder: Path,
        guarded: bool = False,
        models: tuple[Path, ...] = (),
        publishes: bool = True,
        more_runs: tuple[Path, ...] = (),
    ):
        self.folder = Path(folder).expanduser().resolve()
        self.guarded, self.models, self.publishes, self.more_runs = guarded, models, publishes, more_runs
        with disk_errors(self.folder):
            for name in ("datasets", "runs", "tmp"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    def datasets(self) -> list[str]:
        """Names of the data sets, the one that changed last first."""
        folders = [p.parent for p in (self.folder / "datasets").glob("*/dataset.json") if is_name(p.parent.name)]
        return [p.name for p in sorted(folders, key=lambda p: p.stat().st_mtime, reverse=True)]

    def create(self, name: str, language: str | None = None) -> DataSet:
        """A new, empty data set. Raises ConfigError for an invalid name and for one that is taken (also on disks that
        ignore case)."""
        name = checked_name(name, "data set's name")
        folder = inside(self.folder, "datasets", name)
        if same_name(name) in {same_name(p.name) for p in folder.parent.iterdir()}:
            raise ConfigError(f"There is a data set {name} already: open it, or choose another name.")
        with disk_errors(folder):
            try:
                (folder / "audio").mkdir(parents=True)
            except FileExistsError:
                raise ConfigError(f"There is a data set {name} already: open it, or choose another name.") from None
        try:
            write_json(folder / "dataset.json", {"name": name, "language": label(language), "created": time.time()})
        except StentorError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return DataSet(folder)

    def dataset(self, name: str) -> DataSet:
        """A data set that is there. Raises ConfigError."""
        folder = inside(self.folder, "datasets", checked_name(name, "data set's name"))
        if not (folder / "dataset.json").is_file():
            raise ConfigError(f"There is no data set {name}.")
        return DataSet(folder)

    def delete(self, name: str) -> None:
        """Remove a data set with its recordings."""
        self.discard(self.dataset(name).folder)

    def discard(self, folder: Path) -> None:
        """Remove a folder. It disappears at once, even if its removal is cut off. Raises StentorError."""
        trash = self.tmp / f"deleted-{secrets.token_hex(8)}"
        with disk_errors(folder):
            folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
