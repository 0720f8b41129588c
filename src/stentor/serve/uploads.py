"""Uploads: a multipart form whose files are written to disk as they come."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from stentor.serve.errors import ApiError

FIELD_BYTES = 8 * 2**20
"""Bytes of all fields that are no files: the references of four speakers as data URLs are the largest."""
PARTS = 100
SLOWEST = 60.0
"""Seconds that a sender may be silent."""


@dataclass
class UploadedFile:
    path: Path
    name: str
    """What the client calls it."""
    size: int = 0


@dataclass
class Form:
    """A form with its files in a folder of its own."""

    folder: Path
    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadedFile] = field(default_factory=dict)

    def file(self, name: str = "file") -> UploadedFile:
        """Raises ApiError where the form has no such file, or an empty one."""
        if name not in self.files:
            raise ApiError(400, f"{name} is missing: send an audio file as a multipart form.", name)
        if not self.files[name].size:
            raise ApiError(400, f"{name} is empty: send an audio file.", name)
        return self.files[name]

    def values(self) -> dict[str, Any]:
        """The fields as plain data: `name[]` and repeated names are lists, `name[key]` are objects. Empty fields are
        left out, as clients send them for what is not set."""
        values: dict[str, Any] = {}
        for name, texts in self.fields.items():
            texts = [text for text in texts if text]
            base, bracket, key = name.partition("[")
            if not texts:
                continue
            if bracket and key != "]":
                parent = values.setdefault(base, {})
                if not isinstance(parent, dict):
                    raise ApiError(400, f"{base} is sent both as a value and as an object.", base)
                parent[key.rstrip("]")] = texts[-1]
            elif bracket or len(texts) > 1:
                values[base] = [*values.get(base, []), *texts]
            else:
                values[base] = texts[0]
        return values

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


async def read_form(request: Request, most_bytes: int) -> Form:
    """The form that a request sends, of at most `most_bytes`. Raises ApiError (400, 408, 413)."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise ApiError(400, "Send a multipart form (Content-Type: multipart/form-data with its boundary).")
    too_large = ApiError(413, f"The upload is larger than {most_bytes / 2**20:g} MiB, the most that this server takes.")
    if request.headers.get("content-length", "0").isdecimal() and most_bytes < int(
        request.headers.get("content-length", "0")
    ):
        raise too_large
    writer = _FormWriter(Form(Path(tempfile.mkdtemp(prefix="stentor-serve-"))))
    try:
        parser = MultipartParser(options[b"boundary"], writer.callbacks())
        size = 0
        stream = request.stream()
        while chunk := await asyncio.wait_for(_next(stream), SLOWEST):
            size += len(chunk)
            if size > most_bytes:
                raise too_large
            await asyncio.to_thread(parser.write, chunk)
        parser.finalize()
        if not writer.complete:
            raise ApiError(400, "The form ends in the middle.")
        return writer.form
    except BaseException as error:
        writer.form.remove()
        match error:
            case TimeoutError():
                raise ApiError(408, f"Nothing came for {SLOWEST:g} s: send the upload again.") from None
            case FormParserError():
                raise ApiError(
                    400, "The multipart form cannot be read: its parts are not as its header says."
                ) from None
            case ClientDisconnect():
                raise ApiError(400, "The upload was broken off.") from None
        raise
    finally:
        writer.close()


async def _next(stream: Any) -> bytes:
    """The next bytes of a body; empty at its end."""
    async for chunk in stream:
        if chunk:
            return bytes(chunk)
    return b""


class _FormWriter:
    """Takes the parts of a form from the parser."""

    def __init__(self, form: Form):
        self.form, self.complete = form, False
        self._name, self._header, self._headers = "", (bytearray(), bytearray()), {}
        self._text: bytearray | None = None
        self._file: UploadedFile | None = None
        self._open: BinaryIO | None = None
        self._parts = self._field_bytes = 0

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def close(self) -> None:
        if self._open is not None:
            self._open.close()

    def _finish(self) -> None:
        self.complete = True

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS:
            raise ApiError(400, f"The form has more than {PARTS} parts.")
        self._headers: dict[str, str] = {}

    def _header_end(self) -> None:
        name, value = (part.decode("utf-8", "replace") for part in self._header)
        self._headers[name.lower()] = value
        self._header = (bytearray(), bytearray())

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" not in options:
            self._text = bytearray()
            return
        if self._name in self.form.files:
            raise ApiError(400, f"{self._name} is there twice: send one file.", self._name)
        # Only the ending of the client's name becomes part of a path: some formats are known by it alone.
        name = os.path.basename(options[b"filename"].decode("latin-1").encode("latin-1").decode("utf-8", "replace"))
        suffix = Path(name).suffix
        suffix = suffix if suffix[1:].isalnum() and suffix.isascii() and len(suffix) <= 8 else ""
        path = self.form.folder / f"{len(self.form.files)}{suffix}"
        self._file = self.form.files[self._name] = UploadedFile(path, name or self._name)
        self._open = open(path, "wb")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None and self._open is not None:
            self._file.size += self._open.write(data[start:end])
            return
        self._field_bytes += end - start
        if self._field_bytes > FIELD_BYTES:
            raise ApiError(413, f"The fields of the form are larger than {FIELD_BYTES / 2**20:g} MiB.", self._name)
        assert self._text is not None
        self._text += data[start:end]

    def _end(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = self._file = None
        elif self._text is not None:
            self.form.fields.setdefault(self._name, []).append(self._text.decode("utf-8", "replace"))
            self._text = None
