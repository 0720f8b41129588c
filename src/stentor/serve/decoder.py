"""Decoder: a helper program that reads audio files for the server, so that a file that breaks a codec, or unpacks to
more than there is memory for, breaks nothing else.

It reads requests from standard input, a JSON object a line: `{"path", "rate", "selection", "hold"}` for all of a file
in blocks, which are also written to the file `hold` where parts of them cannot be read later; or, in the place of
`hold`, `start` and `end` (samples at `rate`) for such a part. It answers with JSON lines: `{"samples": n}`, followed by
n float32 values, for each block, and at the end 0 samples and the `notes` of all; or `{"error", "reason"}`.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stentor.audio.blocks import FileBlocks, file_part
from stentor.audio.selection import Selection
from stentor.errors import AudioError
from stentor.inference.recording import temporary_space

MEMORY = 4 * 2**30
"""Bytes of address space; libraries alone take one or two hundred megabytes."""


def answer(request: dict[str, Any], out: BinaryIO) -> None:
    """Write what a request asks for."""
    path, notes = request["path"], tuple[str, ...]()
    try:
        file = Path(path), request["rate"], Selection(**request["selection"])
        if "start" in request:
            _send([file_part(*file, request["start"], request["end"])], None, out)
        else:
            blocks = FileBlocks(*file)
            with open(request["hold"], "wb") if blocks.to_hold else contextlib.nullcontext() as hold:
                _send(blocks, hold, out)
            notes = blocks.notes
        _line(out, {"samples": 0, "notes": notes})
    except AudioError as error:
        _line(out, {"error": str(error), "reason": error.reason})
    except MemoryError:
        _line(out, {"error": f"{path} unpacks to more audio than fits into memory.", "reason": "too_long"})
    except Exception as error:  # libraries have errors of their own for damaged files
        _line(out, {"error": f"{path} cannot be read ({type(error).__name__}).", "reason": "unreadable"})
    out.flush()


def _send(blocks: Iterable[np.ndarray], hold: BinaryIO | None, out: BinaryIO) -> None:
    for block in filter(len, blocks):
        block = np.ascontiguousarray(block, "<f4")
        if hold is not None:
            with temporary_space(hold.name):
                hold.write(block.data)
        _line(out, {"samples": len(block)})
        out.write(block.data)


def _line(out: BinaryIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message).encode() + b"\n")


def main() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on Windows, and not below what is set already
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a codec prints is no answer
    for line in sys.stdin.buffer:
        answer(json.loads(line), out)


if __name__ == "__main__":
    main()
