"""The projects folder: data sets (see dataset.py) and runs (see jobs.py) of one person.

FOLDER/datasets/NAME/   FOLDER/runs/NAME/   FOLDER/tmp/
"""

import secrets
import shutil
import time
from pathlib import Path

from stentor.errors import ConfigError, StentorError
from stentor.studio.dataset_folder import RATES, DataSet
from stentor.studio.files import Record, checked_name, disk_errors, inside, is_name, label, same_name, write_json

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
        folder = self._free(name)
        name = folder.name
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

    def _free(self, name: str, but: Path | None = None) -> Path:
        """The folder of a data set to come. Raises as `create`."""
        folder = inside(self.folder, "datasets", checked_name(name, "data set's name"))
        if same_name(folder.name) in {same_name(p.name) for p in folder.parent.iterdir() if p != but}:
            raise ConfigError(f"There is a data set {name} already: open it, or choose another name.")
        return folder

    def dataset(self, name: str) -> DataSet:
        """A data set that is there, also by a name that it had (an open page, or a take on its way, may have the old
        one). Raises ConfigError."""
        folder = inside(self.folder, "datasets", checked_name(name, "data set's name"))
        if (folder / "dataset.json").is_file():
            return DataSet(folder)
        for dataset in (DataSet(folder.parent / name) for name in self.datasets()):
            if folder.name in dataset.about.get("formerly", []):
                return dataset
        raise ConfigError(f"There is no data set {name}.")

    def rename(self, dataset: DataSet, name: str) -> DataSet:
        """Give a data set that nothing works on another name. Raises as `create`."""
        folder = self._free(name, dataset.folder)
        about = {**dataset.about, "name": folder.name, "formerly": [*dataset.about.get("formerly", []), dataset.name]}
        with disk_errors(folder):
            dataset.folder.rename(folder)
        write_json(folder / "dataset.json", about)
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
