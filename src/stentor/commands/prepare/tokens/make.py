"""Making the shards of this machine, in order, and going on where a killed command stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.tokens.shards import Shard
from stentor.commands.prepare.tokens.worker import made
from stentor.commands.prepare.words.journal import Journal

if TYPE_CHECKING:
    from stentor.commands.prepare.tokens import Request
    from stentor.commands.prepare.tokens.plan import Group, Plan
    from stentor.commands.prepare.tokens.stop import Stop


def make_shards(planned: Plan, request: Request, codec: str | None, settings: dict[str, Any], stop: Stop) -> None:
    """All shards of this machine that are not there yet.

    The journal gets a line for each group after its members are in the tar: where the tar ends then, the labels, and
    the lines of errors.jsonl. Raises `Stopped` after a signal.
    """
    from stentor.commands.prepare.corpus import progress

    journal = Journal(request.journal, settings)
    mine = planned.of_machine(request)
    total = sum(len(group.samples) for shard in mine for group in shard)
    todo = [group for shard in mine for group in _left(shard, request, journal)]
    done = total - sum(len(group.samples) for group in todo)
    if done:
        print(f"Going on: {done:,} of {total:,} records were done before.", flush=True)
    last = {shard[0].shard: shard[-1].id for shard in mine}
    writing: Shard | None = None
    stop.gently = True
    with journal, progress("encoding", "records") as bar:
        bar(done, total)
        try:
            for group, (members, errors) in made(todo, request, codec, devices(request.device, codec), stop):
                if writing is None:
                    writing = Shard(request.to, group.shard)
                    before = planned.shards[group.shard][group.number - 1] if group.number else None
                    writing.go_on(outcome(journal, before)["end"] if before else 0)
                for name, data, _ in members:
                    writing.add(name, data)
                labels = [label for _, _, label in members]
                journal.add([{"id": group.id, "end": writing.flushed(), "labels": labels, "errors": errors}])
                if group.id == last[group.shard]:
                    _finish(writing, planned.shards[group.shard], journal)
                    writing = None
                done += len(group.samples)
                bar(done, total)
        finally:
            if writing is not None:
                writing.close()
    stop.gently = False
    if stop.signal is not None:
        raise stop.stopped()


def outcome(journal: Journal, group: Group) -> dict[str, Any]:
    """What the journal says of a group that was made."""
    with open(journal.path, "rb") as file:
        file.seek(journal.places[group.id])
        return json.loads(file.readline())


def devices(wanted: str, codec: str | None) -> list[str]:
    """The devices that processes are dealt to: all GPUs for `auto`, those of a list such as `cuda:0,1`.

    Raises ConfigError.
    """
    if codec is None:
        return ["cpu"]
    import torch

    from stentor.inference.load import pick_device

    if wanted == "auto" and torch.cuda.is_available():
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    first, *more = wanted.split(",")
    kind = first.partition(":")[0]
    names = [first, *(f"{kind}:{name}" if name.isdigit() else name for name in more)]
    return [str(pick_device(name)) for name in names]


def _left(shard: Sequence[Group], request: Request, journal: Journal) -> Sequence[Group]:
    """The groups of a shard that are still to be made; one whose groups are all made gets its files here."""
    files = Shard(request.to, shard[0].shard)
    if shard[-1].id in journal.places and files.tar.is_file() and files.labels.is_file():
        return []
    there, end, known = files.size(), 0, 0
    for group in shard:
        if group.id not in journal.places or (after := outcome(journal, group)["end"]) > there:
            break
        end, known = after, known + 1
    if known == len(shard):
        files.go_on(end)
        _finish(files, shard, journal)
    return shard[known:]


def _finish(files: Shard, shard: Sequence[Group], journal: Journal) -> None:
    files.finish([label for group in shard for label in outcome(journal, group)["labels"]])
