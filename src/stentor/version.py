"""Version of Stentor, and the formats of the folders that it writes.

Each of them has a file with the number of its format and the version that wrote it. Folders without a number are of
format 1. A number is raised when older versions can no longer read what is written.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError

__version__ = "0.1.0"

EXPORT_FORMAT = 1
"""Newest format of export folders, in training_config.json."""
RUN_FORMAT = 1
"""Newest format of finished run folders, in results.json; what an unfinished one resumes from is a checkpoint."""
CHECKPOINT_FORMAT = 2
"""Newest format of checkpoints, in meta.json. In format 2 a tensor may lie in several files, one for each process that
wrote it."""
FORMAT_KEY, VERSION_KEY = "stentor_format", "stentor_version"
PAUSE_KEY = "trained_pause"
"""Longest pause of the training clips in seconds, in training_config.json."""
EXPORT_KEYS = (FORMAT_KEY, VERSION_KEY, PAUSE_KEY)
"""Keys of training_config.json that are not those of a run file."""
"""Keys of a file that says the format of its folder."""


def format_keys(number: int) -> dict[str, Any]:
    """The two keys, for a folder of format `number` that this version writes."""
    return {FORMAT_KEY: number, VERSION_KEY: __version__}


def refuse_newer(
    file: Path | str, content: Mapping[str, Any], newest: int, key: str = FORMAT_KEY, also: str = ""
) -> None:
    """Raise ConfigError when the format in `content`, of `file`, is newer than `newest`.

    `also`: what else the user can do, as the end of the sentence.
    """
    number = content.get(key, 1)
    if isinstance(number, int) and 1 <= number <= newest:
        return
    version = content.get(VERSION_KEY)
    needed = f"Stentor {version} or newer" if isinstance(version, str) else "a newer Stentor"
    raise ConfigError(
        f"{file} was written by another version of Stentor (format {number}; this one reads up to {newest}): install "
        f"{needed}{also}."
    )
