"""Lists of a folder of shards: data.lst, errors.jsonl and summary.json, written when all shards are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.tokens.shards import Shard
from stentor.data.cut import UnusableRecord
from stentor.errors import DataError
from stentor.pipeline.journal import Journal, remove_journal, write_json, write_jsonl, write_lines
from stentor.pipeline.runner import format_table, refuse_rejects
from stentor.text.languages import known_code

if TYPE_CHECKING:
    from stentor.commands.prepare.tokens.plan import SampleGroup, ShardPlan
    from stentor.commands.prepare_options import TokensOptions

ShardFacts = dict[str, Any]
"""Of a shard: `shard` (its number), `samples`, `seconds`, `tokens`, `languages` (seconds of each) and `errors`."""


def conclude(plan: ShardPlan, options: TokensOptions, journal: Journal) -> None:
    """Write the lists and count on the screen. Raises DataError when nothing could be kept or over 1 % of the records
    cannot be used."""
    shards = [_facts(shard, journal) for shard in plan.shards]
    rejects = _rejects(plan.rejects, shards)
    _write_lists(plan, options, shards, rejects)
    remove_journal(journal.path)
    _report(shards, rejects, options)


def _facts(shard: Sequence[SampleGroup], journal: Journal) -> ShardFacts:
    outcomes = list(journal.lines(group.id for group in shard))
    labels = [label for outcome in outcomes for label in outcome["labels"]]
    return {
        "shard": shard[0].shard,
        "samples": len(labels),
        "seconds": round(sum(label["audio_duration"] for label in labels), 3),
        "tokens": sum(label.get("num_tokens", 0) for label in labels),
        "languages": _seconds_by_language(labels),
        "errors": [error for outcome in outcomes for error in outcome["errors"]],
    }


def _seconds_by_language(labels: Iterable[dict[str, Any]]) -> Counter[str]:
    """Seconds of each language; "" of labels that name none."""
    seconds: Counter[str] = Counter()
    for label in labels:
        language = label.get("language")
        seconds[known_code(language) if language else ""] += label["audio_duration"]
    return seconds


def _rejects(planned: Iterable[UnusableRecord], shards: Iterable[ShardFacts]) -> list[UnusableRecord]:
    return [*planned, *(UnusableRecord(**error) for shard in shards for error in shard["errors"])]


def _write_lists(
    plan: ShardPlan, options: TokensOptions, shards: Sequence[ShardFacts], rejects: Sequence[UnusableRecord]
) -> None:
    lines = []
    for facts in shards:
        shard = Shard(options.to.absolute(), facts["shard"])
        if facts["samples"]:
            lines.append(f"{shard.tar} {shard.labels} {facts['samples']} {facts['seconds']:.3f}\n")
    seconds: Counter[str] = sum((facts["languages"] for facts in shards), Counter())
    summary = {
        "data": options.data,
        "codec": options.codec,
        "records": plan.records,
        "shards": len(lines),
        "samples": sum(facts["samples"] for facts in shards),
        "hours": round(sum(facts["seconds"] for facts in shards) / 3600, 4),
        "languages": {language: round(amount / 3600, 6) for language, amount in seconds.most_common()},
        "tokens": sum(facts["tokens"] for facts in shards),
        "dropped": dict(Counter(reject.reason for reject in rejects).most_common()),
    }
    write_lines(options.to / "data.lst", lines)
    write_jsonl(options.to / "errors.jsonl", [vars(reject) for reject in rejects])
    write_json(options.to / "summary.json", summary)  # the last one: with it the folder is complete


def _report(shards: Sequence[ShardFacts], rejects: Sequence[UnusableRecord], options: TokensOptions) -> None:
    """Print what became of the records. Raises DataError."""
    samples = sum(facts["samples"] for facts in shards)
    hours = sum(facts["seconds"] for facts in shards) / 3600
    rows = [("kept", samples, f"{hours:.2f} hours in {sum(facts['samples'] > 0 for facts in shards):,} shards")]
    rows += [(f"dropped: {reason}", n, "") for reason, n in Counter(r.reason for r in rejects).most_common()]
    print(format_table(rows), flush=True)
    print(f"written: {options.to / 'data.lst'} and {options.to / 'errors.jsonl'}", flush=True)
    limits = {"too_short": options.min_seconds, "too_long": options.max_seconds}
    unusable = [reject.message for reject in rejects if limits.get(reject.reason) is None]
    refuse_rejects(unusable, samples + len(rejects))
    if not samples:
        raise DataError(f"No record could be used; {options.to / 'errors.jsonl'} says why.")
