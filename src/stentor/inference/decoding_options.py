"""Decoding options of one call: beams, temperature, prompt and hotwords, as far as the model's family supports them."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from stentor.data.jsonl import open_text
from stentor.data.storage import as_path
from stentor.errors import ConfigError
from stentor.models.base import Family
from stentor.tasks.transcribe import Transcribe

WEIGHTED = re.compile(r"(.*?)\s*(?:\t|:(?! +[^-+.\d ]))\s*([^\t:]*)")
"""A hotword with a weight, unlike `Star Wars: Andor`."""


def with_search(
    task: Transcribe, family: Family, beams: int | None, temperature: float | Sequence[float] | None
) -> Transcribe:
    """Return the task with other beams and sampling temperatures. One temperature replaces the lowest, a list replaces
    all; None keeps the task's. Raises ConfigError for invalid values or if the family does not support them."""
    if temperature is None:
        temperatures = task.checks.temperatures
    elif isinstance(temperature, (int, float)):
        temperatures = [temperature, *(t for t in task.checks.temperatures if t > temperature)]
    else:
        temperatures = list(temperature)
    rising = all(a < b for a, b in pairwise(temperatures))
    if not temperatures or not rising or not all(math.isfinite(t) and t >= 0 for t in temperatures):
        raise ConfigError(f"The temperature must be 0 or more, or a list in ascending order, not {temperature}.")
    if beams is not None and beams < 1:
        raise ConfigError(f"The number of beams must be 1 or more, not {beams}.")
    for name, wanted in (("beams", (beams or 1) > 1), ("temperature", temperature is not None and temperatures[0] > 0)):
        if wanted and name not in family.decoding_options():
            raise ConfigError(f"A model of the family {family.type} only supports greedy search: leave out the {name}.")
    if (beams or 1) > 1 and temperatures[0] > 0:
        raise ConfigError("Beam search and sampling at a temperature exclude each other: leave out one of them.")
    checks = task.checks.model_copy(update={"temperatures": temperatures})
    return task.model_copy(update={"checks": checks, "beams": task.beams if beams is None else beams})


def with_language_model(task: Transcribe, family: Family, texts: str | Path | None, weight: float | None) -> Transcribe:
    """Return the task with another language model or another weight of it; None keeps the task's. Raises ConfigError if
    the family does not support one, or a weight is given without a language model."""
    if weight is not None and not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"The weight of a language model must be above 0, not {weight}.")
    if weight is not None and not (texts or task.language_model):
        raise ConfigError("The weight of a language model requires its text file: give one, or leave the weight out.")
    update = {"language_model": None if texts is None else as_path(texts), "language_model_weight": weight}
    task = task.model_copy(update={k: v for k, v in update.items() if v is not None})
    if conflict := task.incompatible_with(family):
        raise ConfigError("{}: {}.".format(*conflict))
    return task


def with_translation(task: Transcribe, family: Family, translate: bool | None) -> Transcribe:
    """Return the task with or without translation; None: as trained. Raises ConfigError if it is not supported."""
    task = task if translate is None else task.model_copy(update={"translate": translate})
    if conflict := task.incompatible_with(family):
        raise ConfigError("{}: {}.".format(*conflict))
    return task


def with_hotwords(
    task: Transcribe, family: Family, hotwords: str | Sequence[str] | None, strength: float | None
) -> tuple[Transcribe, str]:
    """Return the task with a bonus for hotwords, and the hotwords to put into the context or prompt instead. The latter
    is used if the family takes one and neither a `strength` nor a weight is given. Raises ConfigError if the family
    supports neither."""
    if isinstance(hotwords, str):
        hotwords = read_hotwords(hotwords[1:]) if hotwords.startswith("@") else hotwords.split(",")
    names = hotwords or ()
    names = [name.strip() for name in names if name.strip()]
    for name, tab, weight in (name.partition("\t") for name in names):
        _check_weight("Hotwords", name, weight if tab else None)
    if not names and strength is None:
        return task, ""
    options = family.decoding_options()
    if strength is None and not any("\t" in name for name in names) and options & {"context", "prompt"}:
        return task, ", ".join(names)
    if "hotwords" not in options:
        raise ConfigError(f"A model of the family {family.type} does not support hotwords: leave them out.")
    if strength is not None and not (math.isfinite(strength) and strength > 0):
        raise ConfigError(f"The strength of hotwords must be above 0, not {strength}.")
    if not (names or task.hotwords):
        raise ConfigError("A strength of hotwords requires hotwords: give some, or leave the strength out.")
    update = {"hotwords": names or task.hotwords, "hotword_strength": strength or task.hotword_strength}
    return task.model_copy(update=update), ""


def read_hotwords(file: str) -> list[str]:
    """Return the hotwords of a text file, one per line, with a tab before the weight of those that have one (behind a
    tab or, as in sherpa-onnx, a colon). Raises ConfigError with the line of a wrong weight, and DataError."""
    hotwords = []
    with open_text(as_path(file)) as lines:
        for line in map(str.strip, lines):
            match = None if line.startswith("#") else WEIGHTED.fullmatch(line)
            _check_weight(f"{file}:{lines.number}", *(match.groups() if match else ("", None)))
            hotwords += ["\t".join(match.groups()) if match else line] if line and line[0] != "#" else []
    if not hotwords:
        raise ConfigError(f"{file} holds no hotwords: write one per line.")
    return hotwords


def _check_weight(place: str, hotword: str, weight: str | None) -> None:
    """Raise ConfigError for a weight that is not a number above 0."""
    if weight is not None and not re.fullmatch(r"(?=.*[1-9])\d*\.?\d*", weight.strip()):
        raise ConfigError(f"{place}: the weight {weight} of '{hotword}' must be a number above 0.")


def hints(family: Family, context: str | None, prompt: str | None, names: str) -> tuple[str | None, str | None]:
    """Return the context and the prompt of the examples, with the hotwords (`names`) in the one that the family takes.
    Raises ConfigError for one that the family does not take."""
    places = family.decoding_options() & {"context", "prompt"}
    for name, text, other in (("context", context, "prompt"), ("prompt", prompt, "context")):
        if text and name not in places:
            fix = f"give it as the {other}" if other in places else "leave it out"
            raise ConfigError(f"A model of the family {family.type} takes no {name}: {fix}.")
    if "prompt" in places:
        return context, " ".join(filter(None, [names, prompt])) or None
    return ". ".join(filter(None, [context, names])) or None, None
