"""Codec tokens of records that come from token shards (see the `shards` source), instead of their audio."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stentor.data.tar import read_at, read_member
from stentor.errors import AudioError

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

MAGIC = b"\x93NUMPY"


class AcceptsCodecTokens:
    """Base of processors whose models take codec tokens: records with codes come as `Example.extra["codes"]`,
    integers [codebooks, frames], and `Example.audio` is None. For all other processors such records have no audio."""

    codebooks: int
    """Codebooks that the model takes."""
    vocabulary: int | None
    """Entries of each codebook; codes are 0 ... vocabulary - 1. None: there are no entries, each is a real number."""


def has_codes(cut: Cut) -> bool:
    """Whether the cut's audio is given as codec tokens: it came from token shards."""
    from lhotse.cut.data import DataCut

    if not isinstance(cut, DataCut) or cut.recording is None or cut.recording.sources:
        return False
    return cut.custom is not None and "codes" in cut.custom


def load_codes(cut: Cut, codebooks: int | None = None, vocabulary: int | None = None) -> np.ndarray:
    """The codec tokens of a cut with `has_codes`: [codebooks, frames], int16 or int32.

    Raises `AudioError` with the reason `missing`, `truncated`, `unreadable`, `wrong_type`, `wrong_shape` (rows: those
    of the other records of the source and `codebooks`, where it is given; frames: the label's `num_tokens`), `empty`
    or `wrong_range` (0 to `vocabulary` - 1).
    """
    codes = codes_at(cut.custom["codes"], cut.recording.id, vocabulary)
    rows, frames = codes.shape
    if codebooks is not None and rows != codebooks:
        raise AudioError(f"{cut.recording.id} has {rows} codebooks; this model takes {codebooks}.", "wrong_shape")
    num_tokens = cut.custom.get("num_tokens")
    if num_tokens is not None and frames != num_tokens:
        message = f"{cut.recording.id} has {frames} frames where its label says `num_tokens` {num_tokens}."
        raise AudioError(message, "wrong_shape")
    return codes


def codes_at(location: Mapping[str, Any], name: str, vocabulary: int | None = None) -> np.ndarray:
    """The codec tokens in an .npy file inside of another file, `{"path", "offset", "size"}` in bytes, and `codebooks`
    where it is known: [codebooks, frames], int16 or, of vocabularies beyond it, int32. `name` is used in errors. Raises
    `AudioError` as `load_codes`."""
    import numpy as np

    data = read_member(location, name)
    if data[:6] != MAGIC or len(data) < 12:
        raise AudioError(f"{name} is not an .npy file.", "unreadable")
    start = 10 + int.from_bytes(data[8:10], "little") if data[6] == 1 else 12 + int.from_bytes(data[8:12], "little")
    try:
        dtype, fortran_order, shape = _header(bytes(data[:start]))
    except (SyntaxError, ValueError, KeyError, TypeError):
        raise AudioError(f"{name} is a damaged .npy file: its header cannot be read.", "unreadable") from None
    if dtype.kind not in "iu":
        raise AudioError(f"{name} holds {dtype.name}, codec tokens are int16.", "wrong_type")
    if len(shape) != 2:
        raise AudioError(f"{name} has the shape {list(shape)}; codec tokens are [codebooks, frames].", "wrong_shape")
    rows, frames = shape
    if rows != location.get("codebooks", rows):
        others = f"the other records of the source have {location['codebooks']} codebooks"
        raise AudioError(f"{name} has the shape {list(shape)}; {others}.", "wrong_shape")
    if not rows * frames:
        raise AudioError(f"{name} has no frames.", "empty")
    if len(data) - start < rows * frames * dtype.itemsize:
        raise AudioError(f"{name} is cut off: it holds fewer codes than its header says.", "truncated")
    codes = np.frombuffer(data, dtype, rows * frames, start).reshape(shape, order="F" if fortran_order else "C")
    low, high = int(codes.min()), int(codes.max())
    largest = (1 << 31 if vocabulary is None else vocabulary) - 1
    if low < 0 or high > largest:
        wrong = low if low < 0 else high
        raise AudioError(f"{name} has the code {wrong}; they must lie between 0 and {largest}.", "wrong_range")
    return codes.astype(np.int16 if high < 1 << 15 else np.int32, order="C")


def shape_at(location: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape in the header of the .npy file at a location (see `codes_at`); empty when it has none."""
    data = read_at({**location, "size": min(256, location["size"])})
    try:
        return _header(data[: 10 + int.from_bytes(data[8:10], "little")])[2] if data[:6] == MAGIC else ()
    except (SyntaxError, ValueError, KeyError, TypeError):
        return ()


@lru_cache(maxsize=4096)
def _header(head: bytes) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """(type, whether in Fortran's order, shape) of an .npy file; codes of equal length have equal headers."""
    import numpy as np

    header = ast.literal_eval(head[head.index(b"{") :].decode("latin1").strip())
    shape = header["shape"]
    if not (isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)):
        raise ValueError("shape")
    return np.dtype(header["descr"]), bool(header["fortran_order"]), shape
