"""Checks of a loaded config: everything that can be known before data and weights are read. `stentor config check`,
`train --plan-only` and `train` make the same ones, so that what is wrong is found by the first of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from stentor.config.document import Mistake, Mistakes, Node
from stentor.config.schema import Config
from stentor.engine import interpolate
from stentor.engine.optim import choose_groups
from stentor.engine.steering import Steering
from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss, expanded
from stentor.models.pretrained.load import NotAtHand
from stentor.models.skeleton import skeleton
from stentor.section.schema_walk import split_key

_KEY = re.compile(r"[a-z_]+(?:\.\w+)*")


def losses_of(config: Config) -> dict[str, Loss]:
    """The loss terms of the section `losses`, or the usual ones."""
    return dict(config.losses if config.losses is not None else config.model.losses(config.task))


def _length(config: Config) -> None:
    for number, source in enumerate(config.data.train if config.train.steps is None else ()):
        with suppress(DataError):  # of data that is not here, only the listing can tell
            if source.streaming:
                problem = f"`data.train.{number}` is a stream of unknown length: set `train.steps`."
                raise ConfigError(f"train.steps: {problem}")


def _metrics(config: Config) -> None:
    Steering(config, losses_of(config))


def _callbacks(config: Config) -> None:
    for callback in config.callbacks:
        callback.check(config)


def _model(config: Config) -> None:
    """Loss terms, sizes, windows, adapters, frozen parts and parameter groups, on a model without weights."""
    bundle = skeleton(config.model, config.task.requirements(losses_of(config)))
    config.task.check_processor(bundle.processor)
    if dict(config.model).get("codec") is None:  # which would say how many codebooks there are
        expanded(losses_of(config), bundle.codebooks, bundle.traits.loss_parts)
    for callback in config.callbacks:
        callback.check_model(bundle.model)
    choose_groups(config.optim, [n for n, p in bundle.model.named_parameters() if p.requires_grad])


SECTIONS: tuple[Callable[[Config], None], ...] = (_length, _metrics, _callbacks, interpolate.check_section)
"""Checks of sections with one another. Each raises ConfigError, whose message begins with the key, for the first
problem of its kind."""


def check_sections(config: Config) -> None:
    """Raise ConfigError for the first problem of the sections; building the model shows the others."""
    for check in SECTIONS:
        check(config)


def require(configs: Sequence[Config], roots: Sequence[Node]) -> list[str]:
    """Make all checks of all stages, whose trees are `roots`. Returns what could not be checked on this machine. Raises
    `Mistakes` with all problems."""
    mistakes, unchecked = [], []
    for number, (config, root) in enumerate(zip(configs, roots, strict=True)):
        if number:  # it starts from the export of the stage before
            model = config.model.model_copy(update={"init": f"stage {number}"})
            config = config.model_copy(update={"model": model})
        for check in (*SECTIONS, _model):
            try:
                check(config)
            except NotAtHand as error:
                unchecked.append(str(error))
            except ConfigError as error:
                mistakes.append(_located(error, root))
    if mistakes:
        raise Mistakes(mistakes)
    return list(dict.fromkeys(unchecked))


def _located(error: ConfigError, root: Node) -> Mistake:
    """The problem at the place of its key, or of the innermost section of it that is written."""
    match = _KEY.match(str(error))
    return Mistake(root.at(split_key(match[0])) if match else root.place, str(error), match[0] if match else "")
