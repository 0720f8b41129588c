"""Sections of the config: `Section` (strict keys) and `Choice` (`type:` picks the class)."""

from stentor.section.section import (
    CHOICE,
    Choice,
    ConfigConflict,
    IntRange,
    Range,
    Section,
    alternatives,
    converts,
    field_docs,
    saved_in,
    summary,
)

__all__ = [
    "CHOICE",
    "Choice",
    "ConfigConflict",
    "IntRange",
    "Range",
    "Section",
    "alternatives",
    "converts",
    "field_docs",
    "saved_in",
    "summary",
]
