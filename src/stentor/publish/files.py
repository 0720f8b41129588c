"""Files of what is published: read, linked, and the base models that an export depends on."""

import json
import shutil
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError
from stentor.inference.load import HUB_ID


def local_bases(export: Path) -> list[str]:
    """Bases that an export leaves weights to and that are folders of this machine, not ids of the Hub.

    A speech LLM names a base for each of its parts: it needs those of which it holds nothing, or adapters only. Raises
    ConfigError for a file that is damaged.
    """
    bases: list[str] = []
    held = {name.partition(".")[0] for p in sorted(export.glob("model*.safetensors")) for name in tensors(p)}
    adapted = {
        name.removeprefix("base_model.model.").partition(".")[0]
        for p in sorted(export.glob("adapter_model*.safetensors"))
        for name in tensors(p)
    }
    for part, base in (read(export / "config.json").get("bases") or {}).items():
        if part not in held or part in adapted:
            bases.append(str(base["from"]))
    if (export / "adapter_config.json").is_file() and not held and not bases:
        named = read(export / "adapter_config.json").get("base_model_name_or_path")
        family = read(export / "stentor.json").get("family", {})
        bases.append(named or family.get("from") or "a folder that is not named")
    return [base for base in bases if Path(base).exists() or not HUB_ID.fullmatch(base) or base.count("/") != 1]


def tensors(path: Path) -> list[str]:
    """Names of the tensors of a safetensors file. Raises ConfigError unless its header fits its length."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is damaged ({error}): export the model again.") from None


def read(path: Path) -> dict[str, Any]:
    """The object in a JSON file of an export; empty without the file. Raises ConfigError."""
    try:
        return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as a JSON object ({error}): export the model again.") from None


def link_or_copy(source: Path, to: Path) -> None:
    """A hard link to a file that is only read, or a copy where the disk allows none."""
    try:
        to.hardlink_to(source.resolve())
    except OSError:  # another disk
        shutil.copyfile(source, to)
