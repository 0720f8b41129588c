"""Checks of a loaded config: everything that can be known before data and weights are read. `stentor config check`,
`train --plan-only` and `train` make the same ones, so that what is wrong is found by the first of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from stentor.config.document import Mistake, Mistakes, Node, Place, split_key
from stentor.config.schema import Config
from stentor.engine import interpolate
from stentor.engine.optim import choose_groups
from stentor.engine.steering import Steering
from stentor.errors import ConfigError, DataError
from stentor.losses.base import Loss
from stentor.models.pretrained.load import NotAtHand
from stentor.models.skeleton import skeleton

_KEY = re.compile(r"`?([a-z_]+(?:\.\w+)*)")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config."""

    key: str
    """Dotted key of the value that is wrong."""
    text: str
    """The problem, with its key, and what to do."""

    @classmethod
    def of(cls, error: ConfigError) -> Problem:
        """The problem that an error describes, whose message begins with the key."""
        match = _KEY.match(str(error))
        return cls(match[1] if match else "", str(error))


@dataclass(frozen=True)
class Findings:
    """Results of all checks of a config."""

    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """Reasons why some checks were not possible on this machine."""


def losses_of(config: Config) -> dict[str, Loss]:
    """The loss terms of the section `losses`, or the usual ones."""
    return dict(config.losses if config.losses is not None else config.model.losses(config.task))


def _length(config: Config) -> None:
    for number, source in enumerate(config.data.train if config.train.steps is None else ()):
        with suppress(DataError):  # of data that is not here, only the listing can tell
            if source.streaming:
                raise ConfigError(
                    f"train.steps: `data.train.{number}` is a stream of unknown length: set `train.steps`."
                )


def _metrics(config: Config) -> None:
    Steering(config, losses_of(config))


def _callbacks(config: Config) -> None:
    for callback in config.callbacks:
        callback.check(config)


def _interpolation(config: Config) -> None:
    interpolate.check_section(config)


def _augmentation(config: Config) -> None:
    config.data.augment.check()


def _model(config: Config) -> None:
    """Loss terms, sizes, windows, adapters, frozen parts and parameter groups, on a model without weights."""
    bundle = skeleton(config.model, config.task.requirements(losses_of(config)))
    if bundle is not None:
        config.task.check_processor(bundle.processor)
        for callback in config.callbacks:
            callback.check_model(bundle.model)
        choose_groups(config.optim, [n for n, p in bundle.model.named_parameters() if p.requires_grad])


SECTIONS: tuple[Callable[[Config], None], ...] = (_length, _metrics, _callbacks, _interpolation, _augmentation)
"""Checks of sections with one another. Each raises ConfigError for the first problem of its kind."""


def check_sections(config: Config) -> None:
    """Raise ConfigError for the first problem of the sections; building the model shows the others."""
    for check in SECTIONS:
        check(config)


def findings(config: Config) -> Findings:
    """Make all checks of one stage."""
    found = Findings()
    for check in (*SECTIONS, _model):
        try:
            check(config)
        except NotAtHand as error:
            found.unchecked.append(str(error))
        except ConfigError as error:
            found.problems.append(Problem.of(error))
    return found


def require(configs: Sequence[Config], roots: Sequence[Node] = ()) -> list[str]:
    """Make all checks of all stages. Returns what could not be checked here. Raises ConfigError with all problems, each
    with its place in `roots`, the trees of the stages, where these are given."""
    found = [findings(_as_stage(config, number)) for number, config in enumerate(configs)]
    mistakes = [
        Mistake(
            _place(roots[number], problem.key) if roots else Place(0, 0, f"stage {number + 1}"),
            problem.text,
            problem.key,
        )
        for number, stage in enumerate(found)
        for problem in stage.problems
    ]
    if mistakes and not roots:
        raise ConfigError("\n".join(dict.fromkeys(m.text for m in mistakes)))
    if mistakes:
        raise Mistakes(mistakes)
    return list(dict.fromkeys(line for stage in found for line in stage.unchecked))


def _as_stage(config: Config, number: int) -> Config:
    """The config of a stage as it will run: from the second on, it starts from the export of the one before."""
    if not number:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"init": f"stage {number}"})})


def _place(root: Node, key: str) -> Place:
    """The place of a key, or of the innermost section that is written of it."""
    node = root
    for part in split_key(key) if key else ():
        inner = node.entry(part)
        if inner is None:
            break
        node = inner
    return node.place
