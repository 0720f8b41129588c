"""Base models that an export depends on, and whether they are public."""

import json
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
    adapters = export / "adapter_config.json"
    held = {name.partition(".")[0] for p in sorted(export.glob("model*.safetensors")) for name in tensors(p)}
    adapted = {
        name.removeprefix("base_model.model.").partition(".")[0]
        for p in sorted(export.glob("adapter_model*.safetensors"))
        for name in tensors(p)
    }
    if (path := export / "config.json").is_file():
        for part, base in (read(path).get("bases") or {}).items():
            if part not in held or part in adapted:
                bases.append(str(base["from"]))
    if adapters.is_file() and not held and not bases:
        family = read(export / "stentor.json").get("family", {}) if (export / "stentor.json").is_file() else {}
        bases.append(
            read(adapters).get("base_model_name_or_path") or family.get("from") or "a folder that is not named"
        )
    return [base for base in bases if Path(base).exists() or not HUB_ID.fullmatch(base) or base.count("/") != 1]


def tensors(path: Path) -> list[str]:
    """Names of the tensors of a safetensors file. Raises ConfigError unless its header fits its length."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is damaged ({error}): export the model again.") from None


def read(path: Path) -> Any:
    """A JSON file of an export. Raises ConfigError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): export the model again.") from None
