"""Sections of the config: `Section` (strict keys) and `Choice` (`type:` picks the class)."""

from stentor.section.explain import saved_in
from stentor.section.section import (
    CHOICE,
    Choice,
    ConfigConflict,
    Effect,
    IntRange,
    Range,
    Section,
    alternatives,
    converts,
    field_docs,
    summary,
)

__all__ = [
    "CHOICE",
    "Choice",
    "ConfigConflict",
    "Effect",
    "IntRange",
    "Range",
    "Section",
    "alternatives",
    "converts",
    "field_docs",
    "saved_in",
    "summary",
]
