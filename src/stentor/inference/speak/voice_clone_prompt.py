"""Voice clone prompts: the files of `VoiceClonePrompt.save` of OmniVoice.

Such a file is a zip of torch.save: `NAME/data.pkl`, a program for a small stack machine, and `NAME/data/0`, the numbers
of the codes. The program is not run: its steps are read with `pickletools`, only steps that build plain values and one
table of integers are allowed, and nothing in it is imported or called.
"""

import pickletools
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".pt"
CODEC = "higgs_audio_v2"
"""Codec of all such prompts."""
FRAME_RATE = 25.0
"""Frame rate of the codec in Hz."""
VERSION = 1
KEYS = ("format_version", "ref_audio_tokens", "ref_text", "ref_rms")
PROMPT = "a VoiceClonePrompt of OmniVoice"
MOST_BYTES = 1 << 24
"""Maximum bytes of one file in the zip; an hour of codes has fewer."""
REBUILD, ORDERED = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
DAMAGED = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError)
"""Exceptions that a damaged file may raise, besides ValueError."""
STORAGES = {
    "torch LongStorage": "<i8",
    "torch IntStorage": "<i4",
    "torch ShortStorage": "<i2",
    "torch CharStorage": "<i1",
    "torch ByteStorage": "<u1",
}


def read_prompt(path: Path) -> tuple[np.ndarray, str, float]:
    """Read a file: (codes, integers [codebooks, frames]; their transcript; root mean square of the reference).

    Raises OSError, and ValueError for other files, with what the file is and how to fix it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            program = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            if program is None:
                raise ValueError("it is a zip of other files")
            folder = program.removesuffix("data.pkl")
            if f"{folder}byteorder" in archive.namelist() and _bytes(archive, f"{folder}byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
            values = _values(_bytes(archive, program), archive, folder)
        if missing := [key for key in KEYS if key not in values]:
            raise ValueError(f"it has no {missing[0]}")
        version, codes, text, rms = (values[key] for key in KEYS)
        if version != VERSION:
            raise ValueError(f"it is of format version {version}, not {VERSION}")
        if not (isinstance(codes, np.ndarray) and isinstance(text, str) and isinstance(rms, (int, float))):
            raise ValueError("its values are of other types")
    except (zipfile.BadZipFile, zlib.error):
        raise ValueError(_broken(path)) from None
    except (*DAMAGED, ValueError) as error:
        raise ValueError(f"is not {PROMPT} ({error}): give one that OmniVoice saved") from None
    return codes, text, float(rms)


def _broken(path: Path) -> str:
    """Return the error message for a file that is not a readable zip, with how to fix it."""
    with path.open("rb") as file:
        start = file.read(2)
    if start and start != b"PK":
        return f"is not a torch file (version 1.6 or later), so it is not {PROMPT}: give one that OmniVoice saved"
    state = "is empty" if not start else "is damaged" if zipfile.is_zipfile(path) else "is cut short"
    return f"{state}: copy it again"


def _bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise ValueError(f"{name} is larger than any prompt")
    return archive.read(name)


def _values(program: bytes, archive: zipfile.ZipFile, folder: str) -> Any:
    """Return the values that the program of a file builds. Raises ValueError at a step that no prompt needs."""
    machine = _Machine(archive, folder)
    for step, value, _ in pickletools.genops(program):
        if step.name == "STOP":
            return machine.stack.pop()
        if step.name not in machine.steps:
            raise ValueError(f"it asks for {step.name}")
        machine.steps[step.name](value)
    raise ValueError("it is cut short")


class _Machine:
    """Stack machine with the steps that prompts need."""

    def __init__(self, archive: zipfile.ZipFile, folder: str):
        self.archive, self.folder = archive, folder
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        push = self.stack.append
        plain = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
        self.steps: dict[str, Callable[[Any], object]] = {
            **dict.fromkeys(("PROTO", "FRAME"), lambda value: None),
            **dict.fromkeys(plain, push),
            "MARK": lambda value: self.marks.append(len(self.stack)),
            "EMPTY_DICT": lambda value: push({}),
            "EMPTY_TUPLE": lambda value: push(()),
            "NEWFALSE": lambda value: push(False),
            "NEWTRUE": lambda value: push(True),
            "TUPLE": lambda value: push(tuple(self.pop_since(self.marks.pop()))),
            "TUPLE2": lambda value: push(tuple(self.pop_since(len(self.stack) - 2))),
            "SETITEMS": lambda value: self.set_items(self.marks.pop()),
            "SETITEM": lambda value: self.set_items(len(self.stack) - 2),
            "BINPUT": lambda value: self.memo.update({value: self.stack[-1]}),
            "BINGET": lambda value: push(self.memo[value]),
            "GLOBAL": self.name,
            "BINPERSID": lambda value: push(self.storage(*self.stack.pop())),
            "REDUCE": lambda value: push(self.reduce(*self.pop_since(len(self.stack) - 2))),
        }

    def pop_since(self, place: int) -> list[Any]:
        items = self.stack[place:]
        del self.stack[place:]
        return items

    def set_items(self, place: int) -> None:
        items = self.pop_since(place)
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def name(self, value: str) -> None:
        if value not in (REBUILD, ORDERED, *STORAGES):
            raise ValueError(f"it asks for {value.replace(' ', '.')}")
        self.stack.append(value)

    def storage(self, _: str, kind: str, name: str, *others: Any) -> np.ndarray:
        return np.frombuffer(_bytes(self.archive, f"{self.folder}data/{name}"), STORAGES[kind])

    def reduce(self, function: str, arguments: Any) -> Any:
        return _table(*arguments[:4]) if function == REBUILD else {}


def _table(storage: np.ndarray, offset: int, size: tuple[int, int], strides: tuple[int, int]) -> np.ndarray:
    """Return rows and columns of numbers from a flat storage. Raises IndexError beyond its end."""
    (rows, columns), (down, along) = size, strides
    if not 0 < rows * columns <= MOST_BYTES:
        raise ValueError("it has no codes, or more than any prompt")
    return storage[offset + down * np.arange(rows)[:, None] + along * np.arange(columns)]
