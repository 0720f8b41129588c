"""Description of a kind of model in GGUF: what differs between the backends of CrispASR is data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stentor.export.gguf.names import Names

if TYPE_CHECKING:
    import numpy as np

    from stentor.models.base import Bundle

Keys = dict[str, Any]
"""Values of a file by key: bool, int (written as uint32), float (float32), str, or a list of them."""


@dataclass(frozen=True)
class Kind:
    """Rules by which a model is written. The functions take the bundle and transformers' config."""

    architecture: str
    """`general.architecture`, by which CrispASR finds its backend."""
    names: Names
    keys: Callable[[Bundle, Any], Keys]
    refusal: Callable[[Bundle, Any], str | None] = lambda bundle, config: None
    """Reason in a sentence why its backend cannot run a model of these settings."""
    extra: Callable[[Bundle, Any, Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    """Further tensors, from those that are named already."""
    exact: tuple[str, ...] = ()
    """Beginnings of the names of tensors that are read as float32 only. So are norms, biases and vectors."""
    language: bool = True
    """Whether it runs with the language of a clip."""


def read(config: Any, pairs: str) -> Keys:
    """Settings of a transformers config, from `key=attribute` pairs."""
    facts = config.to_dict()
    return {key: facts[attribute] for key, attribute in (pair.split("=") for pair in pairs.split())}


def prefixed(prefix: str, values: Keys) -> Keys:
    """The same values under `prefix.key`."""
    return {f"{prefix}.{key}": value for key, value in values.items()}
