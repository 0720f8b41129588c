"""Lists of a folder of shards: data.lst, errors.jsonl and summary.json, written when all shards are there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.journal import Journal, write_json, write_jsonl, write_lines
from stentor.commands.prepare.pipeline import format_table, refuse_rejects
from stentor.commands.prepare.tokens.shards import Shard
from stentor.data.cut import UnusableRecord
from stentor.errors import ConfigError, DataError

if TYPE_CHECKING:
    from stentor.cli.prepare import TokensOptions
    from stentor.commands.prepare.tokens.plan import SampleGroup, ShardPlan

ShardFacts = dict[str, Any]
"""Of a shard: `shard` (its number), `samples`, `seconds`, `tokens` and `errors`."""


def machine_summary(options: TokensOptions, machine: int) -> Path:
    """The file that a machine leaves when its shards are done: the summary, or one of several machines its own."""
    if options.num_machines == 1:
        return options.to / "summary.json"
    return options.to / f"machine-{machine}-of-{options.num_machines}.json"


def conclude(plan: ShardPlan, options: TokensOptions, journal: Journal, settings: dict[str, Any]) -> None:
    """Write what this machine has made and, when no other is missing, the lists; count on the screen. Raises DataError
    when nothing could be kept or over 1 % of the records cannot be used."""
    shards = [_facts(shard, journal) for shard in plan.of_machine(options)]
    if options.num_machines > 1:
        facts = {"settings": settings, "shards": shards}
        write_json(machine_summary(options, options.machine_index), facts, indent=None)
        merge(plan, options)
    else:
        _write_lists(plan, options, shards)
    journal.path.unlink()
    _report(shards, _rejects(plan.rejects if options.machine_index == 0 else [], shards), options)


def merge(plan: ShardPlan, options: TokensOptions) -> None:
    """Write the lists of what all machines have made; nothing as long as one is missing. Raises ConfigError for
    machines whose settings differ."""
    paths = [machine_summary(options, machine) for machine in range(options.num_machines)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        print(f"{options.to / 'data.lst'} follows when the other machines are done: {', '.join(missing)}.", flush=True)
        return
    summaries = [json.loads(path.read_text("utf-8")) for path in paths]
    for path, summary in zip(paths, summaries):
        if summary["settings"] != summaries[0]["settings"]:
            raise ConfigError(f"{path} was made with other settings, or another codec, than {paths[0].name}.")
    shards = chain.from_iterable(summary["shards"] for summary in summaries)
    _write_lists(plan, options, sorted(shards, key=lambda shard: shard["shard"]))


def _facts(shard: Sequence[SampleGroup], journal: Journal) -> ShardFacts:
    outcomes = list(journal.lines(group.id for group in shard))
    labels = [label for outcome in outcomes for label in outcome["labels"]]
    return {
        "shard": shard[0].shard,
        "samples": len(labels),
        "seconds": round(sum(label["audio_duration"] for label in labels), 3),
        "tokens": sum(label.get("num_tokens", 0) for label in labels),
        "errors": [error for outcome in outcomes for error in outcome["errors"]],
    }


def _rejects(planned: Iterable[UnusableRecord], shards: Iterable[ShardFacts]) -> list[UnusableRecord]:
    return [*planned, *(UnusableRecord(**error) for shard in shards for error in shard["errors"])]


def _write_lists(plan: ShardPlan, options: TokensOptions, shards: Sequence[ShardFacts]) -> None:
    lines = []
    for facts in shards:
        shard = Shard(options.to.absolute(), facts["shard"])
        if facts["samples"]:
            lines.append(f"{shard.tar} {shard.labels} {facts['samples']} {facts['seconds']:.3f}\n")
    rejects = _rejects(plan.rejects, shards)
    summary = {
        "data": options.data,
        "codec": options.codec,
        "records": plan.records,
        "shards": len(lines),
        "samples": sum(facts["samples"] for facts in shards),
        "hours": round(sum(facts["seconds"] for facts in shards) / 3600, 4),
        "tokens": sum(facts["tokens"] for facts in shards),
        "dropped": dict(Counter(reject.reason for reject in rejects).most_common()),
    }
    write_lines(options.to / "data.lst", lines)
    write_jsonl(options.to / "errors.jsonl", [vars(reject) for reject in rejects])
    write_json(options.to / "summary.json", summary)


def _report(shards: Sequence[ShardFacts], rejects: Sequence[UnusableRecord], options: TokensOptions) -> None:
    """Print what became of the records of this machine. Raises DataError."""
    samples = sum(facts["samples"] for facts in shards)
    hours = sum(facts["seconds"] for facts in shards) / 3600
    rows = [("kept", samples, f"{hours:.2f} hours in {sum(facts['samples'] > 0 for facts in shards):,} shards")]
    rows += [(f"dropped: {reason}", n, "") for reason, n in Counter(r.reason for r in rejects).most_common()]
    print(format_table(rows), flush=True)
    if (options.to / "data.lst").is_file():
        print(f"written: {options.to / 'data.lst'} and {options.to / 'errors.jsonl'}", flush=True)
    limits = {"too_short": options.min_seconds, "too_long": options.max_seconds}
    unusable = [reject.message for reject in rejects if limits.get(reject.reason) is None]
    refuse_rejects(unusable, samples + len(rejects))
    if not samples and (rejects or options.num_machines == 1):
        raise DataError(f"No record could be used; {options.to / 'errors.jsonl'} says why.")
