"""Record table: the records of a command in a temporary file, at eight bytes each in memory."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, overload

ItemT = TypeVar("ItemT")


class RecordTable(Sequence[ItemT]):
    """A sequence that grows at its end and reads an item from its file each time that it is asked for one.

    The file is in the system's folder for temporary files (TMPDIR). It has no name and is gone with the process, so
    that nothing foreign can be read from it: items lie in it as processes hand them to each other. Forked processes can
    read the table, too; to any other process a `Selection` of it is sent as a list.
    """

    def __init__(self, items: Iterable[ItemT] = ()):
        self._file = tempfile.TemporaryFile(prefix="stentor-records-")  # noqa: SIM115 (open as long as the table)
        self._ends = array("Q", [0])
        self._flushed = True
        self.extend(items)

    def append(self, item: ItemT) -> None:
        self._ends.append(self._ends[-1] + self._file.write(ForkingPickler.dumps(item)))
        self._flushed = False

    def extend(self, items: Iterable[ItemT]) -> None:
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> Selection[ItemT]: ...
    def __getitem__(self, index: int | slice) -> ItemT | Selection[ItemT]:
        rows = range(len(self))[index]
        if not isinstance(rows, int):
            return Selection(self.__getitem__, rows)
        if not self._flushed:
            self._file.flush()
            self._flushed = True
        start = self._ends[rows]
        item: ItemT = ForkingPickler.loads(os.pread(self._file.fileno(), self._ends[rows + 1] - start, start))
        return item

    def select(self, rows: Sequence[int]) -> Selection[ItemT]:
        return Selection(self.__getitem__, rows)


class Selection(Sequence[ItemT]):
    """Items that are made from their numbers each time that they are asked for; pickled as the list of them."""

    def __init__(self, item: Callable[[int], ItemT], rows: Sequence[int]):
        self._item, self._rows = item, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> Selection[ItemT]: ...
    def __getitem__(self, index: int | slice) -> ItemT | Selection[ItemT]:
        rows = self._rows[index]
        return Selection(self._item, rows) if isinstance(index, slice) else self._item(rows)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[ItemT]:
        return map(self._item, self._rows)

    def where(self, condition: Callable[[ItemT], bool]) -> Selection[ItemT]:
        return Selection(self._item, [row for row in self._rows if condition(self._item(row))])

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[ItemT]]]:
        return list, (list(self),)
