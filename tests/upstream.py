"""Presets of the converters' systems (upstream.yaml beside this file) and variations of them."""

import copy
import random
from pathlib import Path
from typing import Any

import yaml

_UPSTREAM = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
PRESETS: dict[str, dict[str, Any]] = _UPSTREAM["presets"]


def variation(system: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A preset with up to four changed values, and the changes by dotted key; the first is the preset itself."""
    drawn = random.Random(f"{system} {seed}")
    choices, config = _UPSTREAM["choices"][system], copy.deepcopy(PRESETS[system])
    keys = drawn.sample(sorted(choices), drawn.randint(1, 4)) if seed else []
    changes = {key: drawn.choice(choices[key]) for key in keys}
    for key, value in changes.items():
        *path, last = key.split(".")
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return config, changes
