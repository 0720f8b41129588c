"""Uploads: a multipart form whose files are written to disk as they come."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from stentor.serve.errors import ApiError

FIELD_BYTES = 4 * 2**20
"""Bytes of a field that is no file: a speaker's reference as a data URL is the largest."""
FILES, FIELDS = 4, 64
SILENT, SLOWEST = 60.0, 4000
"""Seconds that a sender may be silent, and bytes a second of the slowest one, who has these seconds besides."""


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
        if name not in self.files or not self.files[name].size:
            kind = "empty" if name in self.files else "text" if name in self.fields else "missing"
            raise ApiError(400, f"{name} is {kind}: send an audio file, with a file name, in a multipart form.", name)
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
            kind = dict if bracket and key != "]" else list if bracket or len(texts) > 1 else str
            if not isinstance(values.setdefault(base, kind()), kind) or (kind is str and values[base]):
                raise ApiError(400, f"{base} is sent in two ways: as a value, a list or an object.", base)
            if kind is dict:
                values[base][key.rstrip("]")] = texts[-1]
            else:
                values[base] += texts if kind is list else texts[0]
        return values

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


async def read_form(request: Request, most_bytes: int) -> Form:
    """The form that a request sends, of at most `most_bytes`. Raises ApiError (400, 408, 413)."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "Send a multipart form (Content-Type: multipart/form-data with its boundary).")
    form = Form(Path(tempfile.mkdtemp(prefix="stentor-serve-")))
    try:
        body = _limited(request, most_bytes)
        parts = await MultiPartParser(
            request.headers, body, max_files=FILES, max_fields=FIELDS, max_part_size=FIELD_BYTES
        ).parse()
        try:
            for name, value in parts.multi_items():
                if isinstance(value, str):
                    form.fields.setdefault(name, []).append(value)
                else:
                    path = form.folder / f"{len(form.files)}{_suffix(value.filename or '')}"
                    form.files[name] = await asyncio.to_thread(_stored, value, path)
        finally:
            await parts.close()
        return form
    except BaseException as error:
        form.remove()
        if isinstance(error, MultiPartException):
            raise ApiError(400, f"The multipart form cannot be read: {error.message}") from None
        raise


async def read_body(request: Request, most_bytes: int) -> bytes:
    """What a request sends that is no form. Raises ApiError (400, 408, 413)."""
    return b"".join([chunk async for chunk in _limited(request, most_bytes)])


async def _limited(request: Request, most_bytes: int) -> AsyncGenerator[bytes, None]:
    """The body of a request. Raises ApiError when it is too large, too slow or broken off."""
    length = request.headers.get("content-length", "")
    size = int(length) if length.isdecimal() else 0
    stream, received, began = request.stream(), 0, time.monotonic()
    while size <= most_bytes:
        left = began + SILENT + received / SLOWEST - time.monotonic()
        try:
            chunk = await asyncio.wait_for(anext(stream, b""), min(SILENT, left))
        except TimeoutError:
            raise ApiError(408, "The upload came too slowly: send it again, or a smaller file.") from None
        except ClientDisconnect:
            raise ApiError(400, "The upload was broken off.") from None
        if not chunk:
            return
        yield chunk
        received += len(chunk)
        size = max(size, received)
    raise ApiError(413, f"The upload is larger than {most_bytes / 2**20:g} MiB, the most that this server takes.")


def _stored(upload: UploadFile, path: Path) -> UploadedFile:
    with open(path, "wb") as file:
        shutil.copyfileobj(upload.file, file)
        return UploadedFile(path, os.path.basename(upload.filename or "") or "upload", file.tell())


def _suffix(name: str) -> str:
    """The ending of the client's name, which alone becomes part of a path: some formats are known by it only."""
    suffix = Path(name).suffix
    return suffix if suffix[1:].isalnum() and suffix.isascii() and len(suffix) <= 8 else ""
