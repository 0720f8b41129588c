"""What is written when all shards are there: data.lst, errors.jsonl and summary.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.tokens.make import outcome
from stentor.commands.prepare.tokens.shards import Shard
from stentor.commands.prepare.words.journal import Journal, replace
from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from stentor.commands.prepare.tokens import Request
    from stentor.commands.prepare.tokens.plan import Plan

NAMED = 20
"""Unusable records that an error names."""
Made = list[dict[str, Any]]
"""Of each shard, in order: `shard` (its number), `samples`, `seconds`, `tokens` and `errors`."""


def share_file(request: Request, machine: int) -> Path:
    """What a machine leaves when its shards are done: the summary, or one of several machines a file of its own."""
    if request.machines == 1:
        return request.to / "summary.json"
    return request.to / f"machine-{machine}-of-{request.machines}.json"


def conclude(planned: Plan, request: Request, settings: dict[str, Any]) -> None:
    """Write what this machine has made and, when no other is missing, the lists; count on the screen.

    Raises DataError when nothing could be kept or over 1 % of the records cannot be used.
    """
    journal = Journal(request.journal, settings)
    mine = [_made(shard, journal) for shard in planned.of_machine(request)]
    if request.machines > 1:
        facts = json.dumps({"settings": settings, "shards": mine}, ensure_ascii=False)
        replace(share_file(request, request.machine), facts + "\n")
        merge(planned, request)
    else:
        _write_lists(planned, request, mine)
    journal.path.unlink()
    errors = [*(planned.errors if request.machine == 0 else []), *(e for shard in mine for e in shard["errors"])]
    _tell(mine, errors, request)


def merge(planned: Plan, request: Request) -> None:
    """The lists of what all machines have made; nothing as long as one is missing. Raises ConfigError for machines
    whose settings differ."""
    files = [share_file(request, machine) for machine in range(request.machines)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        print(f"{request.to / 'data.lst'} follows when the other machines are done: {', '.join(missing)}.", flush=True)
        return
    shares = [json.loads(file.read_text("utf-8")) for file in files]
    for file, share in zip(files, shares):
        if share["settings"] != shares[0]["settings"]:
            raise ConfigError(f"{file} was made with other settings, or another codec, than {files[0].name}.")
    _write_lists(planned, request, sorted((s for share in shares for s in share["shards"]), key=lambda s: s["shard"]))


def _made(shard: Sequence[Any], journal: Journal) -> dict[str, Any]:
    found = [outcome(journal, group) for group in shard]
    labels = [label for one in found for label in one["labels"]]
    return {
        "shard": shard[0].shard,
        "samples": len(labels),
        "seconds": round(sum(label["audio_duration"] for label in labels), 3),
        "tokens": sum(label.get("num_tokens", 0) for label in labels),
        "errors": [error for one in found for error in one["errors"]],
    }


def _write_lists(planned: Plan, request: Request, made: Made) -> None:
    lines = []
    for one in made:
        shard = Shard(request.to.absolute(), one["shard"])
        if one["samples"]:
            lines.append(f"{shard.tar} {shard.labels} {one['samples']} {one['seconds']:.3f}\n")
    errors = [*planned.errors, *(error for one in made for error in one["errors"])]
    dropped = Counter(error["reason"] for error in errors)
    summary = {
        "data": request.data,
        "codec": request.codec,
        "records": planned.records,
        "shards": len(lines),
        "samples": sum(one["samples"] for one in made),
        "hours": round(sum(one["seconds"] for one in made) / 3600, 4),
        "tokens": sum(one["tokens"] for one in made),
        "dropped": dict(dropped.most_common()),
    }
    replace(request.to / "data.lst", "".join(lines))
    replace(request.to / "errors.jsonl", "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in errors))
    replace(request.to / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def _tell(made: Made, errors: Sequence[dict[str, Any]], request: Request) -> None:
    """What became of the records of this machine, on the screen. Raises DataError."""
    from stentor.data.dataset_report import MAX_BAD

    kept = sum(one["samples"] for one in made)
    hours, shards = sum(one["seconds"] for one in made) / 3600, sum(one["samples"] > 0 for one in made)
    rows = [("kept", kept, f"{hours:.2f} hours in {shards:,} shards")]
    rows += [(f"dropped: {why}", n, "") for why, n in Counter(e["reason"] for e in errors).most_common()]
    width = max(len(name) for name, _, _ in rows)
    print("\n".join(f"{name:{width}}  {count:>8,}  {note}".rstrip() for name, count, note in rows), flush=True)
    if (request.to / "data.lst").is_file():
        print(f"written: {request.to / 'data.lst'} and {request.to / 'errors.jsonl'}", flush=True)
    asked = {"too_short": request.min_seconds, "too_long": request.max_seconds}
    bad = [error["message"] for error in errors if asked.get(error["reason"]) is None]
    if len(bad) > MAX_BAD * (kept + len(errors)):
        more = f"\n  ... and {len(bad) - NAMED:,} more" if len(bad) > NAMED else ""
        raise DataError(
            f"{len(bad):,} of {kept + len(errors):,} records cannot be used. The first are:\n  "
            + "\n  ".join(bad[:NAMED])
            + more
        )
    if not kept and (errors or request.machines == 1):
        raise DataError(f"No record could be used; {request.to / 'errors.jsonl'} says why.")
