"""Weights that are published as one file: found by path, folder or Hub id, and read from safetensors. Tensors of a
file of torch are written as safetensors first, into the cache; nothing else of such a file is ever read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.atomic_write import atomic_path, follow_umask
from stentor.data.storage_cache import work_place
from stentor.errors import ConfigError
from stentor.models.pretrained.load import load_pretrained
from stentor.models.pretrained.pickled import read_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

PICKLES = (".pt", ".pth", ".ckpt", ".bin")
OF_TRAINING = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt")
"""Files of transformers' Trainer and accelerate that hold no weights."""


def weights_file(part: Any, where: str, endings: Sequence[str] = (".safetensors",)) -> Path:
    """The file of a section with `source` (a file, a folder or a Hub id) and `revision`: the only one with the first of
    the `endings` that there is; a file of torch as safetensors. Raises ConfigError."""
    path = Path(part.source).expanduser()
    if path.is_file():
        if path.suffix in PICKLES:
            return converted([path], f"{where}.from")
        if path.suffix not in endings:
            raise ConfigError(f"{where}.from: {path} is none of {', '.join((*endings, *PICKLES))}.")
        return path
    if path.suffix in (*endings, *PICKLES):
        raise ConfigError(f"{where}.from: there is no file {path}.")
    folder = snapshot(part, where, [f"*{ending}" for ending in endings])
    for ending in endings:
        files = sorted(folder.glob(f"*{ending}"))
        if len(files) > 1:
            raise ConfigError(f"{where}.from: {folder} has {len(files)} files {ending}; name one of them.")
        if files:
            return files[0]
    raise ConfigError(f"{where}.from: {part.source} has no file {' or '.join(endings)}.")


def snapshot(part: Any, where: str, patterns: list[str]) -> Path:
    """The folder of a section with `source` and `revision`, or one with the files of its repository on the Hub that fit
    the `patterns`. Raises ConfigError."""
    folder = Path(part.source).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(
        load_pretrained(part, where, lambda name, options: snapshot_download(name, allow_patterns=patterns, **options))
    )


def converted(files: Sequence[Path], where: str) -> Path:
    """The tensors of files of torch, whose code is never run, in one safetensors file of the cache, by the same names;
    those below the key `model`, where there is one. Raises ConfigError for a file with anything else."""
    from safetensors.torch import save_file
    from torch import Tensor

    stamp = "".join(f"-{file.stat().st_size}-{file.stat().st_mtime_ns}" for file in files)
    path = work_place("weights", files[0].resolve().with_name(f"{files[0].stem}{stamp}")).with_suffix(".safetensors")
    if path.is_file():
        return path
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            content = read_checkpoint(file)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        named = content.get("model", content)
        if not isinstance(named, dict) or not all(isinstance(value, Tensor) for value in named.values()):
            raise ConfigError(f"{where}: {file} holds more than tensors by their names: it is no file of weights.")
        tensors |= {name: tensor.clone() for name, tensor in named.items()}
    with atomic_path(path) as part:
        save_file(tensors, part, metadata={"format": "pt"})
        follow_umask(part)
    return path


def safe_folder(folder: Path, where: str) -> Path:
    """A model's folder with weights in safetensors: itself, or for one with files of torch alone a folder in the cache
    with their tensors, and links to its other files."""
    pickles = sorted(f for f in folder.iterdir() if f.suffix in PICKLES and f.name not in OF_TRAINING)
    if not pickles or any(folder.glob("*.safetensors")):
        return folder
    weights = converted(pickles, where)
    safe = weights.with_suffix("")
    safe.mkdir(exist_ok=True)
    linked = [file for file in folder.iterdir() if file.suffix not in PICKLES and ".index." not in file.name]
    for name, file in (("model.safetensors", weights), *((file.name, file.absolute()) for file in linked)):
        link = safe / name
        if not (link.exists() and link.samefile(file)):  # other processes may be reading it
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    return safe


def read_tensors(path: Path, where: str) -> dict[str, Tensor]:
    """All tensors of a safetensors file in float32. Raises ConfigError for a file that is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.float() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{where}.from: {path} cannot be read as safetensors ({error}): get it again.") from None
