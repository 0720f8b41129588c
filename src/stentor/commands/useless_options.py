"""Options that would be ignored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from stentor.errors import ConfigError


def refuse_useless(options: Any, flag: str, useful: Collection[str]) -> None:
    """Raises ConfigError for an option with another value than its default, where `flag` knows only `useful` ones."""
    for declared in fields(options):
        default = declared.default if declared.default_factory is MISSING else declared.default_factory()
        if declared.name not in useful and getattr(options, declared.name) != default:
            raise ConfigError(f"{flag} does not know --{declared.name.replace('_', '-')}: leave it out.")
