"""Registry: the models that are served, by the names that clients ask for."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stentor.data.storage import as_path, is_remote
from stentor.errors import ConfigError
from stentor.inference.align.base import Aligner
from stentor.inference.align.engines import aligner_of
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.inference.recording import Recording
from stentor.serve.scheduler import JobQueue, Policy, Worker
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe
from stentor.tasks.who_said_what import WhoSaidWhat

T = TypeVar("T")

PURPOSES = {"transcribe": Transcribe, "speak": Speak, "diarize": Diarize, "align": Transcribe}
"""The task of models that do it."""
BATCH = 120.0
"""Seconds of audio in a batch where nothing else is asked for, as in `stentor transcribe`."""


@dataclass
class ServedModel:
    """A model with the queue of what is asked of it, and a thread on each device that answers."""

    name: str
    queue: JobQueue
    workers: Sequence[Worker]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def first(self) -> Worker:
        """The one that also does what does not go through the queue."""
        return self.workers[0]

    @property
    def model(self) -> Model:
        return self.first.model

    def can(self, purpose: str) -> bool:
        """Whether it was trained for one of `PURPOSES`."""
        return isinstance(self.model.task, PURPOSES[purpose])

    @property
    def says_who(self) -> bool:
        """Whether its transcripts have speakers of their own."""
        return isinstance(self.model.task, WhoSaidWhat)

    @cached_property
    def aligner(self) -> Aligner:
        """Whisper's and CTC models of transformers are loaded a second time, when they are first asked for."""
        from stentor.inference.align.whisper import WhisperAligner

        aligner, known = aligner_of(self.model), dict[str, list[Any]]()
        if isinstance(aligner, WhisperAligner):
            share_weights(self.model.bundle.model, known)
            share_weights(aligner.model, known)
        return aligner

    def diarizer(self) -> Callable[[Recording], list[dict[str, Any]]]:
        """The function from a recording to its speakers' segments, for a `Transcriber`."""
        return self.taking_turns(self.model.speaker_segments())

    def taking_turns(self, work: Callable[[Any], T]) -> Callable[[Recording], T]:
        """Work on a recording that touches the model, for another thread than the worker's. It takes turns with others,
        and lets them have the model each time that it reads audio."""

        def in_turns(recording: Recording) -> T:
            with self.first.turn:
                return work(_InTurns(recording, self.first.turn))

        return in_turns


class _InTurns:
    """A recording that lets others have the model while its next block is read."""

    def __init__(self, recording: Recording, turn: threading.Lock):
        self.recording, self.turn = recording, turn
        self.name, self.rate, self.selection = recording.name, recording.rate, recording.selection

    @property
    def notes(self) -> tuple[str, ...]:
        return self.recording.notes

    def blocks(self) -> Iterator[np.ndarray]:
        blocks = iter(self.recording.blocks())
        while True:
            with self._left():
                block = next(blocks, None)
            if block is None:
                return
            yield block

    def read(self, start: int, end: int) -> np.ndarray:
        with self._left():
            return self.recording.read(start, end)

    @contextmanager
    def _left(self) -> Iterator[None]:
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()

    def at(self, rate: int) -> _InTurns:
        return _InTurns(self.recording.at(rate), self.turn)


class Registry:
    """The served models. None is a default: clients name what they ask for."""

    def __init__(self, models: Sequence[ServedModel], aliases: dict[str, str], diarizer: ServedModel | None = None):
        """`aliases`: further names of models. `diarizer`: the one of `models` that tells transcripts who speaks."""
        self.models = {served.name: served for served in models}
        self.names = {**{name: name for name in self.models}, **aliases}
        self.diarizer = diarizer

    @property
    def workers(self) -> list[Worker]:
        return [worker for served in self.models.values() for worker in served.workers]


def load_models(
    runs: Sequence[str],
    names: Sequence[str] = (),
    diarizer: str | None = None,
    devices: Iterable[str] = ("auto",),
    batch_seconds: float | None = None,
    policy: Policy = "fair",
) -> Registry:
    """Load each run, export folder or Hub id, on each device. `names` are `ALIAS=RUN`. Weights that several models on a
    device have in common are held once. Raises ConfigError."""
    aliases = [_alias(entry) for entry in names]
    # A diarizer that is only there under an alias has no other name.
    paths = [*runs, *([diarizer] if diarizer is not None and diarizer not in dict(aliases).values() else [])]
    by_name: dict[str, str] = {}
    for name, path in [*((_name(path), path) for path in paths), *aliases]:
        if by_name.setdefault(name, path) != path:
            raise ConfigError(
                f"Two of the models are called {name}: give them other names with --name ALIAS=RUN, and leave them out "
                "of the list."
            )
    if not by_name:
        raise ConfigError("There is nothing to serve: name a run, an export folder or a Hub id.")
    models, weights = dict[str, ServedModel](), dict[str, list[Any]]()
    for name, path in by_name.items():
        if path in models:
            continue
        copies = _copies(path, [*devices], weights)
        # On a CPU a batch takes seconds: short requests have a worker that no long one holds.
        spare = len(copies) > 1 and _device(copies[0]).type == "cpu" and policy == "fair"
        queue = JobQueue(batch_seconds or BATCH, policy, len(copies) - 1 if spare else math.inf)
        models[path] = ServedModel(name, queue, [Worker(name, model, queue, str(_device(model))) for model in copies])
    if diarizer is not None:
        models[diarizer].diarizer()  # the error of a model that tells no speakers apart
    for served in models.values():
        if served.can("speak"):
            served.model.for_speech()  # the error of a model without its codec
    names_of = {name: models[path].name for name, path in by_name.items()}
    return Registry(list(models.values()), names_of, models[diarizer] if diarizer is not None else None)


def _copies(path: str, devices: list[str], weights: dict[str, list[Any]]) -> list[Model]:
    """The model on each device; twice on a CPU by default, for what goes through the queue."""
    copies: list[Model] = []
    for device in devices:
        copies.append(load(path, device))
        share_weights(copies[-1].bundle.model, weights)
    if devices == ["auto"] and _device(copies[0]).type == "cpu" and not isinstance(copies[0].task, Diarize):
        copies += _copies(path, ["cpu"], weights)
    return copies


def _device(model: Model) -> Any:
    return next(model.bundle.model.parameters()).device


def share_weights(model: Any, known: dict[str, list[Any]]) -> None:
    """Let a model use those of the `known` weights that equal its own of one name, as adapters over one base do; adds
    the others."""
    import torch

    for name, parameter in model.named_parameters():
        for other in known.setdefault(name, []):
            alike = (other.shape, other.dtype, other.device) == (parameter.shape, parameter.dtype, parameter.device)
            if alike and torch.equal(other, parameter):
                parameter.data = other.data
                break
        else:
            known[name].append(parameter)


def _name(path: str) -> str:
    """Name of a model for clients: the run's folder, a Hub id as it is."""
    folder = as_path(path)
    if not is_remote(folder):
        if not folder.exists():
            return path
        folder = Path(os.path.abspath(path))  # a link has its own name
    return folder.parent.name if folder.name == "export" else folder.name


def _alias(entry: str) -> tuple[str, str]:
    alias, equals, run = entry.partition("=")
    if not (alias.strip() and equals and run.strip()):
        raise ConfigError(f"--name {entry}: write ALIAS=RUN, such as whisper-1=runs/words.")
    return alias.strip(), run.strip()
