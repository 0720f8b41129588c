"""`stentor prepare index`: where each record of a manifest lies, for data sets that do not fit in memory."""

from stentor.commands.prepare_options import IndexOptions
from stentor.config.load import parse_source
from stentor.data.record_index import RecordIndex, build_index, index_folder
from stentor.errors import ConfigError, DataError
from stentor.pipeline.progress import Progress
from stentor.pipeline.runner import Stop
from stentor.sources.manifest import Jsonl
from stentor.sources.shards import Shards

MB = 10**6


def prepare_index(options: IndexOptions) -> None:
    """Write the index of each manifest, where there is none or one of an older state. Raises ConfigError for data that
    cannot be indexed, DataError for lines that break the contract, `Stopped` at a signal."""
    for spec in options.data:
        source = parse_source(spec)
        if isinstance(source, Shards) and source.expected() is not None:
            print(f"{spec}: {source.expected():,} records by its list of shards, which is all that a stream needs.")
            continue
        if not isinstance(source, Jsonl):
            raise ConfigError(
                f"`{spec}` (type {source.type}) cannot be indexed: only JSONL manifests of recordings can. Shards are "
                "read as a stream, whose index is their list with counts (data.lst)."
            )
        print(_described(_index(source)), flush=True)


def _index(source: Jsonl) -> RecordIndex:
    manifest, record_filter = source.path.expanduser(), source.record_filter()
    folder = index_folder(manifest, record_filter)
    try:
        if (index := source.index()) is not None:
            return index
    except DataError:
        print(f"{folder} does not belong to {manifest} as it is now, and is made again.", flush=True)
    with Stop(lambda: f"{folder} is not written"), Progress("index", "MB") as progress:
        return build_index(manifest, record_filter, lambda done, total: progress.report(done // MB, total // MB))


def _described(index: RecordIndex) -> str:
    hours = ", ".join(
        f"{language or 'no language'} {part.seconds / 3600:,.2f} h"
        for language, part in sorted(index.parts.items(), key=lambda item: -item[1].seconds)[:8]
    )
    more = f" and {len(index.parts) - 8} more" if len(index.parts) > 8 else ""
    total = sum(part.seconds for part in index.parts.values()) / 3600
    return f"{index.folder}: {len(index):,} records, {total:,.2f} h ({hours}{more})."
