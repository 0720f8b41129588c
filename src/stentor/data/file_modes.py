"""File modes: weights can be read by whom the umask lets, as other files of a run or an export."""

import stat
from pathlib import Path


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
