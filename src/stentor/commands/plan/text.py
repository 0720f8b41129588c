"""The plan of a run as text."""

from typing import Any

from stentor.engine.memory_estimate import gib


def text(plan: dict[str, Any]) -> str:
    """The plan of one stage (see `stentor.commands.plan.plan`) for a person."""
    lines = [*plan["said"], f"Run '{plan['name']}': task {plan['task']}, model {plan['model']}"]
    for title, part in (
        ("Parameters", _parameters(plan["parameters"])),
        ("Data", _data(plan["data"])),
        ("Dropped", _dropped(plan["data"])),
        ("Learning rate and epochs to start from", _suggestion(plan["suggestion"])),
        ("Memory", _memory(plan["memory"])),
        ("Time", _time(plan["time"], plan["data"]["steps"], plan["memory"]["not_tried"])),
    ):
        if part:
            lines += ["", title, *(f"  {line}" for line in part)]
    return "\n".join(lines)


def _parameters(rows: list[dict[str, Any]]) -> list[str]:
    width = max(5, *(len(row["part"]) for row in rows))
    total = {"part": "total", **{key: sum(row[key] for row in rows) for key in ("total", "trained", "adapters")}}
    lines = []
    for row in [*rows, total]:
        note = ""
        if row["adapters"]:
            note = " (adapters)" if row["adapters"] == row["trained"] else f" ({row['adapters']:,} of them in adapters)"
        lines.append(f"{row['part']:<{width}}  {row['total']:>15,}  trained {row['trained']:>15,}{note}")
    return lines


def _data(data: dict[str, Any]) -> list[str]:
    lines = []
    if "records" not in data:
        lines.append("a stream of unknown length")
    else:
        lines.append(f"{data['records']:,} records, {data['hours']:.2f} h; {data['hours_per_epoch']:.2f} h an epoch")
        lines.append(
            f"{data['batches']:,.0f} batches an epoch ({data['layout']}, up to {data['budget']:,} positions), "
            f"{data['items_per_batch']:.1f} items each, {data['fill']:.1%} filled"
        )
        lines.append(
            f"{data['steps']:,} steps of {data['batches_per_step']} batches, {data['steps_per_epoch']:,} an epoch: "
            f"{data['epochs']:.1f} epochs"
        )
    for name, facts in data["held_out"].items():
        dropped = sum(drop["count"] for drop in facts["dropped"].values())
        note = f" ({dropped:,} dropped)" if dropped else ""
        lines.append(f"{name}: {facts['records']:,.0f} records, {facts['hours']:.2f} h{note}")
    return lines


def _dropped(data: dict[str, Any]) -> list[str]:
    groups = {"": data["dropped"], **{f"{name}: ": facts["dropped"] for name, facts in data["held_out"].items()}}
    lines = []
    for group, dropped in groups.items():
        for reason, facts in dropped.items():
            named = ", ".join(message.rstrip(".") for message in facts["named"])
            lines.append(f"{group}{facts['count']:,} {reason}: {named}{' ...' if facts['count'] > 3 else ''}")
    return lines or ["nothing"]


def _suggestion(suggestion: dict[str, Any] | None) -> list[str]:
    if suggestion is None:
        return []
    config = suggestion["config"]
    return [
        f"optim.lr {suggestion['lr']:g} (here {config['lr']:g}), for {suggestion['method']}: {suggestion['lr_origin']}",
        f"epochs {suggestion['epochs']} (here {config['epochs']:.1f}): {suggestion['epochs_origin']}",
        "A starting point, not an optimum: let `early_stop` watch the error rate of held-out speakers.",
        *(f"Note: {note}" for note in suggestion["notes"]),
    ]


def _memory(memory: dict[str, Any]) -> list[str]:
    shared = f", sharded over {memory['processes']}" if memory["sharded"] and memory["processes"] > 1 else ""
    lines = [
        f"GiB per process, estimated for {memory['precision']} on {memory['device']}{shared}; the largest batch has "
        f"{memory['items']} items, {memory['slots']:,} positions, {memory['seconds']:.0f} s of audio",
        f"{'':<12}{'weights':>10}{'gradients':>11}{'optimizer':>11}{'activations':>13}{'in all':>10}",
    ]
    for row in memory["methods"]:
        held = "?" if row["activations"] is None else gib(row["activations"])
        lines.append(
            f"{row['name']:<12}{gib(row['weights']):>10}{gib(row['gradients']):>11}{gib(row['optimizer']):>11}"
            f"{held:>13}{gib(row['total']):>10}{'  <- this run' if row['chosen'] else ''}"
        )
    if not memory["methods"][0]["together"]:
        lines.append("Gradients come while activations go: the larger of the two counts.")
    if memory["why_no_activations"]:
        lines.append(f"Activations are not known: {memory['why_no_activations']}.")
    if memory["not_tried"]:
        lines.append(f"Largest batch not tried here ({gib(memory['free'])} GiB free): {memory['not_tried']}.")
    elif "measured" in memory:
        ours = next((m for m in memory["methods"] if m["chosen"]), memory["methods"][0])
        grown = "" if memory["grown"] is None else f" (the process grew by {gib(memory['grown'])})"
        lines.append(
            f"Dry run of the largest batch: {gib(memory['measured'])} GiB measured{grown}, "
            f"{gib(ours['total'] - ours['optimizer'])} estimated; the optimizer adds {gib(ours['optimizer'])} from "
            "step 1 on."
        )
    return lines


def _time(time: dict[str, Any], steps: int | None, not_tried: str | None) -> list[str]:
    if time["seconds"] is None:
        return [f"not estimated: {'a stream' if not steps else not_tried or 'no batch could be read'}"]
    return [
        f"about {time['seconds'] / 60:.1f} minutes ({time['seconds_per_step']:.2f} s a step, tried on a middling batch)"
    ]
