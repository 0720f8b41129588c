"""Weights that are published as one file: found by path, folder or Hub id, and read from safetensors alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.models.pretrained.load import load_pretrained

if TYPE_CHECKING:
    from torch import Tensor

PICKLES = (".pt", ".pth", ".ckpt", ".bin")


def weights_file(part: Any, where: str, endings: Sequence[str] = (".safetensors",)) -> Path:
    """The file of a section with `source` (a file, a folder or a Hub id) and `revision`: the only one with the first of
    the `endings` that there is. Raises ConfigError."""
    path = Path(part.source).expanduser()
    if path.suffix in PICKLES and not path.is_dir():
        raise ConfigError(
            f"{where}.from: {path} may hold code, which is never loaded; docs/speak.md (Published weights) has the "
            "line that writes its tensors as safetensors."
        )
    if path.is_file():
        if path.suffix not in endings:
            raise ConfigError(f"{where}.from: {path} is none of {', '.join(endings)}.")
        return path
    if path.suffix in endings:
        raise ConfigError(f"{where}.from: there is no file {path}.")
    folder = path if path.is_dir() else Path(load_pretrained(part, where, partial(_download, endings)))
    for ending in endings:
        files = sorted(folder.glob(f"*{ending}"))
        if len(files) > 1:
            raise ConfigError(f"{where}.from: {folder} has {len(files)} files {ending}; name one of them.")
        if files:
            return files[0]
    raise ConfigError(f"{where}.from: {part.source} has no file {' or '.join(endings)}.")


def _download(endings: Sequence[str], name: str, options: dict[str, Any]) -> str:
    from huggingface_hub import snapshot_download

    return str(snapshot_download(name, allow_patterns=[f"*{ending}" for ending in endings], **options))


def read_tensors(path: Path, where: str) -> dict[str, Tensor]:
    """All tensors of a safetensors file in float32. Raises ConfigError for a file that is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.float() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{where}.from: {path} cannot be read as safetensors ({error}): get it again.") from None
