"""Kinds of plug-ins that tests load."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stentor.section.section import Choice


@contextmanager
def kinds_kept() -> Iterator[None]:
    """What is registered inside is forgotten at the end, so that other tests of the process see Stentor's kinds alone;
    `stentor.` modules that are imported inside stay."""
    known, modules = {base: dict(base._choices) for base in Choice.__subclasses__()}, set(sys.modules)
    yield
    for base in Choice.__subclasses__():
        before = known.get(base, {})
        for name, kind in list(base._choices.items()):
            if not kind.__module__.startswith("stentor.") and kind is not before.get(name):
                del base._choices[name]
                if kind.__module__ not in modules:  # the next test that loads it runs it again
                    sys.modules.pop(kind.__module__, None)
        base._choices.update(before)
