"""Skeletons: models built from their configs alone, without weights, data or memory, to check the settings of a run.

A family builds its skeleton as it builds the model, on torch's meta device; transformers' loaders give an untrained
model of the pretrained model's config there. Tokenizers are made of `LETTERS` instead of the training texts.
"""

from __future__ import annotations

import dataclasses
import string
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from stentor.errors import ConfigError
from stentor.models.pretrained.load import NotAtHand
from stentor.section import Section

if TYPE_CHECKING:
    from stentor.models.base import Bundle, Family, TaskRequirements

_Part = TypeVar("_Part", bound=Section)
LETTERS = (f"{string.ascii_letters} {string.digits}", string.punctuation)
"""Training texts of a skeleton."""
LEFT_OUT = ("init", "codec", "quantize", "store")
"""Keys of families, and of their sections, that need weights or audio, or write files."""


def skeleton(family: Family, requirements: TaskRequirements) -> Bundle:
    """The model of a family without weights. Raises `NotAtHand` when a config or a tokenizer of a base cannot be had or
    the model computes with its weights while it is built, and ConfigError for settings that do not fit."""
    parts = {key: _bare(part) for key, part in family if isinstance(part, Section)}
    bare = _bare(family.model_copy(update=parts))
    requirements = dataclasses.replace(requirements, texts=lambda: iter(LETTERS), cuts=None, complete=False)
    try:
        with without_weights():
            return bare.build(requirements)
    except ConfigError:
        raise
    except Exception as error:
        raise NotAtHand(f"model: it is not built without its weights ({type(error).__name__}: {error}).") from error


def _bare(section: _Part) -> _Part:
    return section.model_copy(update={key: None for key in LEFT_OUT if key in type(section).model_fields})


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside, models are made on torch's meta device, and transformers' `from_pretrained` of models returns untrained
    ones of the same config."""
    import torch
    from transformers import PreTrainedModel

    original = vars(PreTrainedModel)["from_pretrained"]

    def of_config(cls: Any, name: Any, *_: Any, config: Any = None, **options: Any) -> Any:
        if config is None:
            revision = options.get("revision")
            config = cls.config_class.from_pretrained(name, trust_remote_code=False, revision=revision)
        return cls(config)

    PreTrainedModel.from_pretrained = classmethod(of_config)  # type: ignore[method-assign, assignment]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter")
            yield
    finally:
        PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]
