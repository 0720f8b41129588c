"""Pretrained parts of models: the section of a part, from weights or from a config of transformers, and the base of
families that have such parts."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, model_validator

from stentor.models.base import Family
from stentor.section import Section

SIZE = re.compile(r"(?:^|_)(?:layers|heads|(?<!window_)(?<!chunk_)size|dim|d_model|channels|bins)$")
"""Keys of transformers' configs that count something; of a window or chunk -1 may mean all."""
LARGEST = 10**8
"""More than any of them is in any model."""


def check_sizes(config: Any) -> Any:
    """Return the config of transformers unchanged; ValueError for a size that no model can have."""
    if not isinstance(config, dict):
        return config
    for key, value in config.items():
        check_sizes(value)
        sizes = value if isinstance(value, list) else [value]
        for size in sizes if SIZE.search(key) else ():
            if isinstance(size, int | float) and not (isinstance(size, int) and 0 <= size <= LARGEST):
                raise ValueError(f"`{key}` must be a whole number from 0 to {LARGEST:,}, not {size}")
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads == 0 or (isinstance(heads, int) and isinstance(groups, int) and (groups == 0 or heads % groups)):
        raise ValueError(f"`num_attention_heads` ({heads}) must be a multiple of `num_key_value_heads` ({groups})")
    return config


TransformersConfig = Annotated[dict[str, Any] | None, AfterValidator(check_sizes)]
"""Keys of a config of transformers, nested as there."""


class PretrainedSection(Section):
    """A part that comes from pretrained weights (`from`) or is built from a transformers config (`config`)."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    example: ClassVar[str] = "{model_type: whisper, d_model: 144}"
    """A `config`, for messages."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("from", "config"),)

    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a pretrained model."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: whisper, d_model: 144}`."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""

    @model_validator(mode="after")
    def _one_origin(self) -> PretrainedSection:
        check_origin(self, self.example)
        return self


def check_origin(section: Any, example: str | None = None) -> None:
    """Raise ValueError, for the validator of a section, unless it has one of `from` and `config`; of which the latter
    needs a `model_type` where there is an `example` of it."""
    origins = "`from` (a Hub id or folder) or `config` (a transformers config)"
    if section.source is None and section.config is None:
        raise ValueError(f"needs {origins}")
    if section.source is not None and section.config is not None:
        raise ValueError(f"give either {origins}, not both")
    if example and section.config is not None and not isinstance(section.config.get("model_type"), str):
        raise ValueError(f"`config` needs `model_type`, such as `{example}`")


class PretrainedFamily(Family):
    """A family whose models are made of pretrained parts, known in full once a model is built."""

    @classmethod
    def from_alias(cls, alias: str, keys: dict[str, Any]) -> dict[str, Any]:
        """An alias is the `model_type` of transformers' config."""
        config = keys.get("config")
        return {**keys, "config": {"model_type": alias, **config}} if isinstance(config, dict) else keys

    def decoding_options(self) -> frozenset[str]:
        return super().decoding_options() | {"hotwords"}


class BuiltFamily(PretrainedFamily):
    """A family whose module `build` has a `builder` with all methods (`stentor.models.pretrained.builder`)."""

    _model_type: str | None = PrivateAttr(default=None)
    """transformers' `model_type`; with `from` it is known once the model's config was read (`known_as`)."""

    @classmethod
    def _module(cls, name: str) -> Any:
        return super()._module("build").builder

    def known_as(self, model_type: str, **changes: Any) -> Self:
        """The section of a model that was read: a copy that knows its `model_type`, with these keys changed."""
        known = self.model_copy(update=changes)
        known._model_type = model_type
        return known
