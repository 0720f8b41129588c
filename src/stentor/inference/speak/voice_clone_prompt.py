"""Voice clone prompts: the files that OmniVoice's `VoiceClonePrompt.save` writes.

Such a file is a zip of torch.save: `NAME/data.pkl`, a program for a small stack machine, and `NAME/data/0`, the numbers
of the codes. The program is not run: its steps are read with `pickletools`, only those that put plain values and one
table of integers together are known, and nothing in it is imported or called.
"""

import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".pt"
CODEC = "higgs_audio_v2"
"""The codec that all such prompts are made with."""
FRAME_RATE = 25.0
"""Hz, of that."""
VERSION = 1
MOST_BYTES = 1 << 24
"""Of one file within the zip: an hour of codes has less."""
REBUILD, ORDERED = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
STORAGES = {
    "torch LongStorage": "<i8",
    "torch IntStorage": "<i4",
    "torch ShortStorage": "<i2",
    "torch CharStorage": "<i1",
    "torch ByteStorage": "<u1",
}


def read_prompt(path: Path) -> tuple[np.ndarray, str, float]:
    """(codes, integers [codebooks, frames]; their text; root mean square of the reference) of a file.

    Raises OSError, and ValueError for what is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (program,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            folder = program.removesuffix("data.pkl")
            if f"{folder}byteorder" in archive.namelist() and _bytes(archive, f"{folder}byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
            values = _values(_bytes(archive, program), archive, folder)
        if values["format_version"] != VERSION:
            raise ValueError(f"it is of format version {values['format_version']}")
        codes, text, rms = (values[key] for key in ("ref_audio_tokens", "ref_text", "ref_rms"))
    except (zipfile.BadZipFile, LookupError, TypeError, AttributeError, EOFError, RuntimeError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not (isinstance(codes, np.ndarray) and isinstance(text, str) and isinstance(rms, (int, float))):
        raise ValueError("its values are of other types")
    return codes, text, float(rms)


def _bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise ValueError(f"{name} is larger than any prompt")
    return archive.read(name)


def _values(program: bytes, archive: zipfile.ZipFile, folder: str) -> Any:
    """What the program of a file puts together. Raises ValueError at a step that no prompt needs."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since(place: int) -> list[Any]:
        items = stack[place:]
        del stack[place:]
        return items

    for step, value, _ in pickletools.genops(program):
        match step.name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                marks.append(len(stack))
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(value)
            case "EMPTY_DICT" | "EMPTY_TUPLE" | "NEWFALSE" | "NEWTRUE" | "NONE":
                empty = {"EMPTY_DICT": {}, "EMPTY_TUPLE": (), "NEWFALSE": False, "NEWTRUE": True, "NONE": None}
                stack.append(empty[step.name])
            case "TUPLE":
                stack.append(tuple(since(marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(since(len(stack) - int(step.name[-1]))))
            case "SETITEM" | "SETITEMS":
                items = since(marks.pop() if step.name == "SETITEMS" else len(stack) - 2)
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "GLOBAL" if value in (REBUILD, ORDERED, *STORAGES):
                stack.append(value)  # the name alone
            case "BINPERSID":
                _, kind, name, _, _ = stack.pop()
                stack.append(np.frombuffer(_bytes(archive, f"{folder}data/{name}"), STORAGES[kind]))
            case "REDUCE":
                function, arguments = since(len(stack) - 2)
                stack.append(_table(*arguments[:4]) if function == REBUILD else {})
            case "STOP":
                return stack.pop()
            case _:
                raise ValueError(f"it asks for {step.name} {value if value is not None else ''}".rstrip())
    raise ValueError("it is cut short")


def _table(storage: np.ndarray, offset: int, size: tuple[int, int], strides: tuple[int, int]) -> np.ndarray:
    """Rows and columns of numbers that lie one after the other. Raises IndexError beyond their end."""
    (rows, columns), (down, along) = size, strides
    if not 0 < rows * columns <= MOST_BYTES:
        raise ValueError("it has no codes, or more than any prompt")
    return storage[offset + down * np.arange(rows)[:, None] + along * np.arange(columns)]
