"""`text`: texts without audio, for language models."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stentor.data.cut import Cut, UnusableRecord
from stentor.data.jsonl import open_text
from stentor.data.storage import StoragePath, name_of
from stentor.errors import DataError, RecordError
from stentor.sources.base import Source


class Text(Source):
    """Texts of a file or of the config itself. The records have no audio, so only tasks that need none take them."""

    type: Literal["text"] = "text"
    path: StoragePath | None = None
    """A UTF-8 file with one text per line, plain or gzipped; empty lines are left out."""
    texts: list[str] | None = Field(None, min_length=1)
    """The texts themselves, instead of a file."""
    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("path", "texts"),)

    @model_validator(mode="after")
    def _one_origin(self) -> Text:
        if (self.path is None) == (self.texts is None):
            raise ValueError("needs exactly one of `path` (a file with one text per line) and `texts` (a list)")
        return self

    def records(self) -> Iterator[Cut | UnusableRecord]:
        """Cuts of no duration, without a recording. Raises DataError for a file that is missing or empty."""
        from lhotse import MonoCut, SupervisionSegment

        name = name_of(self.path) if self.path is not None else f"{zlib.crc32(repr(self.texts).encode()):08x}"
        empty = True
        for number, line in self._lines():
            key = f"{name}:{number}"
            if isinstance(line, RecordError):
                yield UnusableRecord(key, line.reason, str(line))
                continue
            if not (text := line.strip()):
                continue
            empty = False
            supervision = SupervisionSegment(id=key, recording_id=key, start=0.0, duration=0.0, text=text)
            yield MonoCut(id=key, start=0.0, duration=0.0, channel=0, supervisions=[supervision])
        if empty:
            raise DataError(f"{self.path or 'texts'} holds no text.")

    def _lines(self) -> Iterator[tuple[int, str | RecordError]]:
        if self.texts is not None:
            yield from enumerate(self.texts, 1)
        else:
            assert self.path is not None
            with open_text(self.path.expanduser()) as lines:
                yield from lines.numbered()
