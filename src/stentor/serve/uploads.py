"""Uploads: a multipart form whose files are written to disk as they come."""

import shutil
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from stentor.serve.errors import ApiError, api_error
from stentor.serve.recordings import Cancellation
from stentor.web.body import TooLarge, TooSlow, chunks

FIELD_BYTES, FIELDS_BYTES = 4 * 2**20, 16 * 2**20
"""Bytes of a field that is no file, and of all of a form: speakers' references as data URLs are the largest."""
HELD_BYTES = 2**28
"""Bytes of the fields of all forms that are being answered: what a server holds in memory of uploads."""
FILES, FIELDS = 4, 64


class HeldBytes:
    """Limit of the fields of forms that a server holds."""

    left = HELD_BYTES


@dataclass
class Form:
    """A form with its files in a folder of its own."""

    folder: Path
    held: HeldBytes = field(default_factory=HeldBytes)
    field_bytes: int = 0
    cancelled: Cancellation = field(default_factory=Cancellation)
    """Set when the files are removed: they are read no more."""
    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadFile] = field(default_factory=dict)

    def file(self) -> UploadFile:
        """The file, closed. Raises ApiError where there is none, or an empty one."""
        if "file" not in self.files or not self.files["file"].size:
            kind = "empty" if "file" in self.files else "text" if "file" in self.fields else "missing"
            raise ApiError(400, f"file is {kind}: send an audio file, with a file name, in a multipart form.", "file")
        return self.files["file"]

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
        """Delete the files, and end what reads them."""
        self.cancelled.set()
        self.held.left += self.field_bytes
        self.field_bytes = 0
        shutil.rmtree(self.folder, ignore_errors=True)


class _Parser(MultiPartParser):
    """Writes the files of a form into its folder as they come, and counts what its fields hold in memory."""

    def __init__(self, request: Request, most_bytes: int, form: Form):
        limits: Any = {"max_files": FILES, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
        super().__init__(request.headers, chunks(request, most_bytes, timed=True), **limits)
        self.form = form

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if (upload := self._current_part.file) is not None:
            upload.file.close()  # a temporary one, without a name that others could open
            path = self.form.folder / f"{self._current_files}{_suffix(upload.filename or '')}"
            upload.file = path.open("w+b")
            self._files_to_close_on_error.append(upload.file)  # type: ignore[arg-type]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None:
            form = self.form
            form.field_bytes += end - start
            form.held.left -= end - start
            if form.field_bytes > FIELDS_BYTES:
                raise MultiPartException(f"its fields are larger than {FIELDS_BYTES // 2**20} MiB together.")
            if form.held.left < 0:
                raise ApiError(429, "Too many large fields are waiting: try again later.", retry_after=10)
        super().on_part_data(data, start, end)


async def read_form(request: Request, most_bytes: int, held: HeldBytes | None = None) -> Form:
    """The form that a request sends, of at most `most_bytes`; `held` is the server's. Raises ApiError (400, 408, 413,
    429)."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "Send a multipart form (Content-Type: multipart/form-data with its boundary).")
    form = Form(Path(tempfile.mkdtemp(prefix="stentor-serve-")), held or HeldBytes())
    try:
        parts = await _Parser(request, most_bytes, form).parse()
        for name, value in parts.multi_items():
            if isinstance(value, str):
                form.fields.setdefault(name, []).append(value)
            else:
                form.files[name] = value
        await parts.close()
        return form
    except BaseException as error:
        form.remove()
        if isinstance(error, MultiPartException):
            raise ApiError(400, f"The multipart form cannot be read: {error.message}") from None
        if isinstance(error, TooLarge | TooSlow):
            raise api_error(error) from None
        raise


async def _uploaded(request: Request) -> AsyncGenerator[Form, None]:
    service = request.app.state.service
    form = await read_form(request, service.limits.upload_bytes, service.held)
    try:
        yield form
    finally:
        form.remove()


Upload = Annotated[Form, Depends(_uploaded)]
"""The form of a request, for a route. Its files are there until the answer is sent."""


def _suffix(name: str) -> str:
    """The ending of the client's name, which alone becomes part of a path: some formats are known by it only."""
    suffix = Path(name).suffix
    return suffix if suffix[1:].isalnum() and suffix.isascii() and len(suffix) <= 8 else ""
