"""Section and Choice: what every section of the config is made of, and the contract of its kinds."""

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
    "summary",
]
