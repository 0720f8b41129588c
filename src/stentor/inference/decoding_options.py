"""Decoding options of one call: beams, temperature, prompt and hotwords, as far as the model's family can do them."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from stentor.data.storage import as_path
from stentor.errors import ConfigError
from stentor.models.base import Family
from stentor.tasks.transcribe import Transcribe


def with_search(
    task: Transcribe, family: Family, beams: int | None, temperature: float | Sequence[float] | None
) -> Transcribe:
    """The task with other beams and sampling temperatures: one in the place of the lowest, or all that are tried in
    turn. None: the task's own. Raises ConfigError for what cannot be, or what the family cannot do."""
    if temperature is None:
        temperatures = task.checks.temperatures
    elif isinstance(temperature, (int, float)):
        temperatures = [temperature, *(t for t in task.checks.temperatures if t > temperature)]
    else:
        temperatures = list(temperature)
    rising = all(a < b for a, b in pairwise(temperatures))
    if not temperatures or not rising or not all(math.isfinite(t) and t >= 0 for t in temperatures):
        raise ConfigError(f"The temperature must be 0 or more, several of them in rising order, not {temperature}.")
    if beams is not None and beams < 1:
        raise ConfigError(f"The number of beams must be 1 or more, not {beams}.")
    for name, wanted in (("beams", (beams or 1) > 1), ("temperature", temperature is not None and temperatures[0] > 0)):
        if wanted and name not in family.decoding_options():
            raise ConfigError(f"A model of the family {family.type} decodes greedily: leave out the {name}.")
    if (beams or 1) > 1 and temperatures[0] > 0:
        raise ConfigError("Beams search for the most probable text, a temperature samples: leave out one of them.")
    checks = task.checks.model_copy(update={"temperatures": temperatures})
    return task.model_copy(update={"checks": checks, "beams": task.beams if beams is None else beams})


def with_language_model(task: Transcribe, family: Family, texts: str | Path | None, weight: float | None) -> Transcribe:
    """The task with other texts, or another weight, of its language model. None: the task's own. Raises ConfigError
    where the family cannot listen to one, or there is none to weigh."""
    if weight is not None and not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"The weight of a language model must be above 0, not {weight}.")
    if weight is not None and not (texts or task.language_model):
        raise ConfigError("A weight of the language model needs its texts: name a file, or leave the weight out.")
    update = {"language_model": None if texts is None else as_path(texts), "language_model_weight": weight}
    task = task.model_copy(update={k: v for k, v in update.items() if v is not None})
    if conflict := task.incompatible_with(family):
        raise ConfigError("{}: {}.".format(*conflict))
    return task


def with_translation(task: Transcribe, family: Family, translate: bool | None) -> Transcribe:
    """The task that translates, or does not; None: as it was trained. Raises ConfigError where the model cannot."""
    task = task if translate is None else task.model_copy(update={"translate": translate})
    if conflict := task.incompatible_with(family):
        raise ConfigError("{}: {}.".format(*conflict))
    return task


def with_hotwords(
    task: Transcribe, family: Family, hotwords: str | Sequence[str] | None, strength: float | None
) -> tuple[Transcribe, str]:
    """The task that favours hotwords by their tokens, and those that are said to the model instead, where the family
    has a place for them and no `strength` is asked for. Raises ConfigError where the family can do neither."""
    names = hotwords.split(",") if isinstance(hotwords, str) else hotwords or ()
    names = [name.strip() for name in names if name.strip()]
    if not names and strength is None:
        return task, ""
    options = family.decoding_options()
    if strength is None and options & {"context", "prompt"}:
        return task, ", ".join(names)
    if "hotwords" not in options:
        raise ConfigError(
            f"A model of the family {family.type} takes no hotwords, as nothing can be said to it: leave them out."
        )
    if strength is not None and not (math.isfinite(strength) and strength > 0):
        raise ConfigError(f"The strength of hotwords must be above 0, not {strength}.")
    if not (names or task.hotwords):
        raise ConfigError("A strength of hotwords needs hotwords: name some, or leave the strength out.")
    update = {"hotwords": names or task.hotwords, "hotword_strength": strength or task.hotword_strength}
    return task.model_copy(update=update), ""


def hints(
    family: Family, context: str | None, prompt: str | None, names: str, warn: Callable[[str], None]
) -> tuple[str | None, str | None]:
    """The context and the prompt that examples get, hotwords (`names`) being put into the one that the family has.

    Raises ConfigError for a prompt where it has no place for one; warns of a context without a place.
    """
    places = family.decoding_options() & {"context", "prompt"}
    if prompt and "prompt" not in places:
        fix = "give it as the context" if "context" in places else "leave it out"
        raise ConfigError(f"A model of the family {family.type} takes no prompt: {fix}.")
    if context and "context" not in places:
        fix = "give it as the prompt" if "prompt" in places else "it is not used"
        warn(f"This model of the family {family.type} has no place for a context: {fix}.")
    if "prompt" in places:
        return context, " ".join(filter(None, [names, prompt])) or None
    return ". ".join(filter(None, [context, names])) or None, None
