"""Advice for a lack of memory: overrides that halve the batches of every stage and keep what a step learns from."""

from collections.abc import Iterator
from contextlib import contextmanager

from stentor.config.document import Node
from stentor.config.load import Loaded, stage_configs
from stentor.errors import BatchTooLarge


@contextmanager
def advised(loaded: Loaded) -> Iterator[None]:
    """Raise `BatchTooLarge` again with the overrides that help."""
    try:
        yield
    except BatchTooLarge as error:
        overrides = halved(loaded)
        where = "all stages" if loaded.stages else "the run"
        raise BatchTooLarge(f"{error} For {where}, add to the command: `{' '.join(overrides)}`.") from None


def halved(loaded: Loaded) -> list[str]:
    """Overrides for half of the batch and twice `train.accumulate`, in each stage that has values of its own."""
    stages = loaded.root.entry("stages")
    sections = [("", loaded.root, loaded.config)]
    if stages is not None:
        own = enumerate(zip(stages.value, stage_configs(loaded)))
        sections += [(f"stages.{i}.", node, config) for i, (node, config) in own]
    overrides = []
    for prefix, node, config in sections:
        values = {"data.batch_tokens": max(1, config.data.batch_tokens // 2)}
        if config.data.max_items is not None:
            values["data.max_items"] = max(1, config.data.max_items // 2)
        values["train.accumulate"] = 2 * config.train.accumulate
        overrides += [f"{prefix}{key}={value}" for key, value in values.items() if not prefix or _sets(node, key)]
    return overrides


def _sets(stage: Node, key: str) -> bool:
    """Whether a stage has a key, nested or dotted."""
    section, _, name = key.partition(".")
    values = stage.plain()
    return key in values or name in (values.get(section) or {})
