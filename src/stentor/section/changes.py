"""Changed settings: what differs between a config that was trained with and one to train with."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stentor.errors import without_secrets
from stentor.section.full_paths import full_path_of
from stentor.section.section import Effect, Section

SHOWN = 8
"""Number of changes that a sentence names."""


@dataclass(frozen=True)
class Change:
    """One setting with its values before and now; None where there was or is none."""

    key: str
    before: Any
    now: Any
    effect: Effect | None
    """None: on the trained weights."""

    def __str__(self) -> str:
        return f"{self.key}: {_text(self.before)} -> {_text(self.now)}"


def changes(before: Mapping[str, Any], now: Section) -> list[Change]:
    """Return the changed settings that affect any result. `before` is the earlier config as plain data; settings that
    it does not have, because an earlier version wrote it, were the defaults."""
    try:
        earlier: Any = type(now).model_validate(dict(before), by_alias=True, by_name=False)
    except ValidationError:  # it needs a plug-in that is not loaded, or has keys of another version
        earlier = before
    old, new = (dict(_leaves(config, "", None)) for config in (earlier, now))
    runs = [full_path_of(str(config.get("output", ""))) for config in (before, dict(now))]
    differences = []
    for key in dict.fromkeys([*old, *new]):
        (was, effect_before), (value, effect) = old.get(key, (None, None)), new.get(key, (None, None))
        if not _is_same(was, value, *runs) and "none" not in (effect, effect_before):
            differences.append(Change(key, was, value, effect if key in new else effect_before))
    return differences


def _is_same(was: Any, now: Any, runs_before: str, runs: str) -> bool:
    """Return whether two values are the same, or paths of the same file, which was perhaps moved with the runs."""
    if was == now or not (isinstance(was, str) and isinstance(now, str)) or "://" in runs_before + runs + was + now:
        return bool(was == now)
    old, new = full_path_of(was), full_path_of(now)
    return old == new or (os.path.isabs(was) and os.path.relpath(old, runs_before) == os.path.relpath(new, runs))


def affecting_weights(differences: Sequence[Change]) -> list[Change]:
    return [change for change in differences if change.effect in (None, "fixed")]


def listed(differences: Sequence[Change]) -> str:
    """Return changes as part of a sentence, the first `SHOWN` of them."""
    more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return "; ".join(map(str, differences[:SHOWN])) + more


def _leaves(value: Any, key: str, effect: Effect | None) -> Iterator[tuple[str, tuple[Any, Effect | None]]]:
    """Yield each setting below a value by its dotted key, as plain data and with its effect."""
    start = f"{key}." if key else ""
    if isinstance(value, Section):
        effects = type(value).effects
        for name, inner in value:
            alias = type(value).model_fields[name].alias or name
            yield from _leaves(inner, start + alias, effect or effects.get("*") or effects.get(alias))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{start}{name}", effect)
    elif isinstance(value, (list, tuple)):
        # Entries without effect are left out, so that they do not change the numbers of the others.
        effective = [v for v in value if not (isinstance(v, Section) and type(v).effects.get("*") == "none")]
        for number, inner in enumerate(effective):
            yield from _leaves(inner, f"{start}{number}", effect)
    else:
        plain = value if value is None or isinstance(value, (bool, int, float)) else without_secrets(str(value))
        yield key, (plain, effect)


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
