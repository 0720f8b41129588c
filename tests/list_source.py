"""Sources of records that a test made."""

from stentor.sources.base import Source


class ListSource(Source):
    """Records that a test made; remembers how far they were read. Has no `type` of its own, so that it is never among
    the known kinds."""

    _records: list
    _read: int = 0

    def records(self):
        self._read = 0
        for record in self._records:
            self._read += 1
            yield record


class ListStream(ListSource):
    """The same, without a length that could be known."""

    streaming = True


def list_source(records, kind: type[ListSource] = ListSource, **fields) -> ListSource:
    source = kind(type="given", **fields)
    source._records = list(records)
    return source
