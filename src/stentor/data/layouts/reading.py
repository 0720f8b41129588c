"""Reading: what layout a file or folder of records has, and its records in the form of a manifest's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.errors import DataError
from stentor.text.field_names import Field

Columns = Mapping[Field, str | int]
"""For a field the key or column that holds it, or the number of the column from 1."""
NATIVE = "JSON lines"
"""The layout of manifests."""


@dataclass
class Reading:
    """A file or folder whose layout was recognised."""

    layout: str
    """Name of the layout, for users."""
    path: Path
    folder: Path
    """Where relative paths of audio start from."""
    rows: Callable[[], AbstractContextManager[Any]]
    """Opens what has `numbered()`: rows with their numbers, or the `RecordError` of one; `zipped` and `damaged` as
    `TextLines`."""
    parse: Callable[[Any, str], dict[str, Any]]
    """The record of a row, or of a single line where `by_line`; the second argument is its place, for errors. Raises
    `DataError`, and `RecordError` for what no record can hold."""
    regroup: Callable[[Iterator[tuple[int, Any]]], Iterator[tuple[int, Any]]] = iter
    """Makes rows of lines where a row may have several."""
    by_line: bool = False
    """Whether each record is a line of UTF-8 text, so that an index can read it alone."""
    first_line: int = 1
    """Number of the line of the first record."""
    unit: str = ":"
    """Text between the file's name and the number of a row in messages."""
    remarks: tuple[str, ...] = ()
    """Sentences about what was guessed or ignored."""
    repaired: dict[str, int] = field(default_factory=dict)
    """Number of records so far by what was done to them."""

    def records(self) -> Iterator[tuple[dict[str, Any] | DataError, str]]:
        """Each record, or what is wrong with it, and its place ("file:12")."""
        with self.rows() as rows:
            for number, row in self.regroup(rows.numbered()):
                where = f"{self.path}{self.unit}{number}"
                if isinstance(row, str) and not row.strip():
                    continue
                try:
                    yield self.parse(row, where), where
                except DataError as error:
                    yield error, where

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for users: the layout where it is not that of manifests, guesses, and repairs so far."""
        layout = () if self.layout == NATIVE else (f"{self.path.name} was read as: {self.layout}.",)
        repairs = (f"{n:,} record{'s' * (n != 1)}: {what}." for what, n in self.repaired.items())
        return (*layout, *self.remarks, *repairs)
