"""Texts of the page: `texts.yaml`, the one file to translate."""

import functools
from importlib import resources

from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError


@functools.cache
def texts() -> dict[str, str]:
    """Sentence by key. Raises ConfigError for a file that is not a mapping of keys to texts."""
    sentences = read_yaml(resources.files(__package__).joinpath("texts.yaml").read_text(encoding="utf-8"))
    if not isinstance(sentences, dict) or not all(isinstance(v, str) for v in sentences.values()):
        raise ConfigError("studio/texts.yaml must be a mapping of keys to texts.")
    return sentences


def say(key: str, **values: object) -> str:
    """The sentence of a key with its values filled in."""
    return texts()[key].format(**values)
