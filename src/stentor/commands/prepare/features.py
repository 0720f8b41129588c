"""`stentor prepare features`: the features of a data set, stored ahead for training (`model.features.store`)."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.errors import AudioError, ConfigError, DataError, Stopped

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.data.cut import UnusableRecord
    from stentor.models.transformer.feature_cache import Store
    from stentor.models.transformer.frontend import Features

AT_ONCE = 8
"""Records that a process is given at a time."""
NAMED = 20
"""Unusable records that an error names."""
Outcome = tuple[str, str] | None
"""(reason, message) of a record whose audio cannot be used; None of one that is stored."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str | None
    to: Path
    config: Path | None = None
    options: tuple[str, ...] = ()
    jobs: int = 1


def prepare_features(request: Request) -> None:
    """Fill the folder, or go on where a killed command stopped.

    Raises ConfigError for options that do not go together and for a folder with features of other settings, `Stopped`
    at a signal, and DataError when over 1 % of the records cannot be used (the others are stored all the same).
    """
    from stentor.commands.prepare.corpus import progress
    from stentor.data.cut import UnusableRecord
    from stentor.data.dataset_report import MAX_BAD
    from stentor.models.transformer.feature_cache import Store

    features, cuts = _asked(request)
    lost: list[tuple[str, str]] = []
    todo: list[Cut] = []
    store = Store(request.to.expanduser(), features, features.store_bits)
    for cut in cuts:
        if isinstance(cut, UnusableRecord):
            lost.append((cut.reason, cut.message))
        elif not store.has(cut):
            todo.append(cut)
    total = len(cuts)
    before = total - len(todo) - len(lost)
    if before:
        print(f"{before:,} of {total:,} records were stored before.", flush=True)

    def stop(number: int, _frame: object) -> None:
        raise Stopped(
            f"Stopped by {signal.Signals(number).name}; what is done is in {store.folder}. Run the same command to go "
            "on."
        )

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with progress("features", "records") as bar:
            bar(before, total)
            for done, outcome in enumerate(_outcomes(store, features, todo, request.jobs), 1):
                if outcome is not None:
                    lost.append(outcome)
                bar(before + done, total)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    seconds = sum(c.duration for c in cuts if not isinstance(c, UnusableRecord))
    size = sum(file.stat().st_size for file in store.folder.iterdir())
    print(
        f"{store.folder}: features of {total - len(lost):,} records ({seconds / 3600:.2f} h), {size / 1e6:,.1f} MB. "
        f"Train with `model.features.store: {request.to}`.",
        flush=True,
    )
    if lost:
        print("unusable: " + ", ".join(f"{n:,} {reason}" for reason, n in Counter(r for r, _ in lost).most_common()))
    if len(lost) > MAX_BAD * total:
        more = f"\n  ... and {len(lost) - NAMED:,} more" if len(lost) > NAMED else ""
        raise DataError(
            f"{len(lost):,} of {total:,} records cannot be used. The first are:\n  "
            + "\n  ".join(message for _, message in lost[:NAMED])
            + more
        )


def _asked(request: Request) -> tuple[Features, Sequence[Cut | UnusableRecord]]:
    """The settings of the features, and the records: of the data, or those that the run of `--config` trains on."""
    from stentor.config.load import load, parse_source
    from stentor.models.transformer import Transformer
    from stentor.models.transformer.frontend import Features

    if request.config is None:
        if request.data is None:
            raise ConfigError("Name the data whose features are wanted, or a run with --config.")
        features = load(None, request.options, Features).config
        assert isinstance(features, Features)
        cuts: Sequence[Cut | UnusableRecord] = list(parse_source(request.data).cuts())
    else:
        from stentor.dataloading.dataset import train_dataset

        config = load(request.config, [f"model.features.{option}" for option in request.options]).config
        family = config.model
        if not isinstance(family, Transformer) or family.ssl is not None or family.kind == "decoder":
            raise ConfigError(f"{request.config}: its model reads no features that could be stored (see `model`).")
        features = family.features
        data = config.data
        if request.data is not None:
            data = data.model_copy(
                update={"train": [parse_source(request.data)], "replay": None, "eval": {}, "test": {}}
            )
        if any(source.streaming for source in data.train):
            raise ConfigError("The data is a stream of unknown length: its features cannot be stored ahead.")
        task = config.task
        pieces = task.training_segments if task.any_length else None
        cuts = list(train_dataset(data, config.train.seed, task.drop_reason, print, pieces).cuts())
    if not cuts:
        raise DataError("There are no records.")
    return features, cuts


def _outcomes(store: Store, features: Features, todo: Sequence[Cut], jobs: int) -> Iterator[Outcome]:
    """Of each record, as they come."""
    if jobs == 1 or len(todo) < 2 * AT_ONCE:
        yield from (_one(store, features, cut) for cut in todo)
        return
    # Forked where possible: a spawned process would import lhotse and torch again, and speak again what was spoken.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with context.Pool(jobs, initializer=_start, initargs=(store, features)) as pool:
        yield from pool.imap_unordered(_of_worker, todo, AT_ONCE)


def _one(store: Store, features: Features, cut: Cut) -> Outcome:
    try:
        store.get(cut, features.raw)
    except AudioError as error:
        return error.reason, f"{cut.id}: {error}"
    return None


_worker: tuple[Store, Features] | None = None


def _start(store: Store, features: Features) -> None:
    """In a new process: one thread, and an end when the parent ends, however it does."""
    global _worker
    import torch

    from stentor.data.processes import end_with_parent, plain_signals

    plain_signals()
    torch.set_num_threads(1)
    end_with_parent()
    _worker = store, features


def _of_worker(cut: Cut) -> Outcome:
    assert _worker is not None
    return _one(*_worker, cut)
