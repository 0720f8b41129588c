"""Processing of audio files: progress bar, output folder, failed files, and the work, locally or on a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from stentor.audio.io import probe
from stentor.data.storage import full_path
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.formats import file_names
from stentor.inference.recording import STDIN, Recording, expand, label, open_recording
from stentor.pipeline.executor import make_executor
from stentor.pipeline.options import AudioFiles
from stentor.pipeline.outputs import Outputs, identity
from stentor.pipeline.progress import Progress
from stentor.pipeline.runner import Stop
from stentor.pipeline.worker import Worker

GROUP_FILES = 16
"""Maximum number of files per group for a worker of a cluster."""

FileItem = tuple[str, str]
"""An audio file, and the name of its outputs without a suffix."""


def parse_formats(option: str, known: Iterable[str]) -> list[str]:
    """The formats of `--format`, which are separated by commas, or `all`. Raises ConfigError for an unknown one."""
    if option.strip().lower() == "all":
        return list(known)
    formats = list(dict.fromkeys(f.strip().lower() for f in option.split(",") if f.strip()))
    unknown = [f for f in formats if f not in known]
    if unknown or not formats:
        raise ConfigError(f"Unknown --format {', '.join(unknown) or '(empty)'}; known: {', '.join(known)}.")
    return formats


def require_folder(formats: Sequence[str], out: str | None) -> None:
    """Raises ConfigError for several formats without a folder."""
    if len(formats) > 1 and out is None:
        raise ConfigError("Several formats cannot share standard output: give a folder with --out.")


def check_failed(failed: Sequence[str], total: int, what: str, most: int | None = None) -> None:
    """Raises DataError when `what` could not be done of `total` files or lines; it names `most` of them, None: all."""
    if failed:
        named = [*failed[:most], *(["..."] if failed[most or len(failed) :] else [])]
        raise DataError(
            f"{len(failed)} of {total} {what}: {', '.join(named)}. "
            f"The reasons are above{'; the others are done' if len(failed) < total else ''}."
        )


class FileProgress(Progress):
    """Progress of a file in minutes, if its length is known (`seconds`), otherwise of files."""

    def __init__(self, files: int, doing: str, seconds: float | None = None):
        super().__init__(doing, "files" if seconds is None else "min of audio")
        self.files, self.length = files, seconds
        self.done, self.seconds, self.printed = 0, 0.0, set[str]()

    def add_seconds(self, seconds: float) -> None:
        """So many seconds of audio more are done."""
        self.seconds += seconds
        if self.length is not None:
            self.report(min(self.seconds, self.length) / 60, self.length / 60)
        else:
            self.unit = f"files, {self.seconds / 60:.1f} min of audio"
            self.report(self.done, self.files)

    def add_file(self) -> None:
        """A file more is done."""
        self.done += 1
        self.add_seconds(0.0)

    def warn(self, message: str) -> None:
        """A line on standard error, unless it was there before: each process warns of the model."""
        if message not in self.printed:
            self.printed.add(message)
            self.print(message, error=True)


class Files(FileProgress):
    """Audio files that a command goes through. `audio`: what they are called; `outputs`: where the outputs go, None for
    standard output; `failed`: files that could not be read or whose output could not be written.

    With `skip_existing`, files that have their outputs of these options are left out. Raises ConfigError as
    `Outputs.plan` and `stentor.inference.recording.expand` do.
    """

    def __init__(self, command: str, options: AudioFiles, doing: str, suffixes: Sequence[str]):
        inputs = expand(options.audio, lambda text: print(f"stentor: {text}", file=sys.stderr))
        skip = options.skip_existing
        if (skip or options.force) and options.out is None:
            raise ConfigError("--skip-existing and --force are for the folder of the outputs: give one with --out.")
        names = file_names([label(audio) for audio in inputs])
        facts = {
            name: {"source": full_path(label(audio)), "file": identity(audio)} for name, audio in zip(names, inputs)
        }
        if STDIN in inputs:  # another recording each time
            facts[names[inputs.index(STDIN)]]["source"] = f"standard input of {time.time_ns()}"
        self.outputs = None if options.out is None else Outputs(options.out, command, options, facts)
        todo = names if self.outputs is None else self.outputs.plan(suffixes, skip)
        self.items = [(audio, name) for audio, name in zip(inputs, names) if name in todo]
        self.audio, self.failed, length = [label(audio) for audio, _ in self.items], list[str](), None
        if len(self.items) == 1 and os.path.isfile(self.items[0][0]):
            with suppress(AudioError):  # reported when it is read
                length = probe(self.items[0][0]).duration
        super().__init__(len(self.audio), doing, length)
        if len(self.items) < len(inputs):
            done = len(inputs) - len(self.items)
            self.print(f"{done} of {len(inputs)} files have their outputs already.", error=True)

    def take(self, outcome: FileOutcome) -> None:
        """Write or print the outcome of the next file. If an output cannot be written, print the error and continue."""
        if outcome.error is None and self.outputs is not None:
            outcome.error = self.outputs.write(self.items[self.done][1], outcome.texts)
            outcome.messages += filter(None, [outcome.error])
        for message in outcome.messages:
            self.warn(message)
        if outcome.printed is not None:
            self.print(outcome.printed)
        if outcome.error is not None:
            self.failed.append(self.audio[self.done])
        self.add_file()

    def check(self, done: str) -> None:
        """Raises DataError when files were left out; `done` is the verb of the message, such as `transcribed`."""
        check_failed(self.failed, len(self.audio), f"files could not be {done}")


@dataclass
class FileOutcome:
    """Outcome of an audio file. `texts`: outputs by suffix; `printed`: text for standard output; `messages`: warnings
    and errors for standard error; `error`: the reason why it could not be read."""

    texts: dict[str, str] = field(default_factory=dict)
    printed: str | None = None
    messages: list[str] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0
    failed: list[dict[str, Any]] = field(default_factory=list)
    """Segments that failed the hallucination checks."""


class FilesWorker(Worker):
    """The work of a verb on audio files: subclasses load the model in `setup`, and say what `results` and outputs
    are."""

    options: AudioFiles
    rate: int
    """Hz of the model, known after `setup`."""

    @staticmethod
    def on_audio(seconds: float) -> None:
        """Called with the seconds of audio that are done."""

    def setup(self, device: str) -> None:
        raise NotImplementedError

    def results(self, recordings: Iterable[Recording], on_error: Callable[[str, AudioError], None]) -> Iterator[Any]:
        """Yield the result of each readable recording, in order."""
        raise NotImplementedError

    def outcome(self, result: Any, name: str) -> FileOutcome:
        """The outputs of a result; `name`: the file's in the folder of the outputs."""
        raise NotImplementedError

    def outcomes(self, items: Iterable[FileItem]) -> Iterator[FileOutcome]:
        """Yield the outcomes of files, in order. Files are opened one at a time, because each holds its audio."""
        names: deque[str] = deque()
        unread: deque[FileOutcome] = deque()

        def recordings() -> Iterator[Recording]:
            for source, name in items:
                names.append(name)
                yield open_recording(source, self.rate, selection=self.options.selection)

        def leave_out(name: str, error: AudioError) -> None:
            unread.append(FileOutcome(error=name, messages=[f"stentor: {error}"]))

        for result in self.results(recordings(), leave_out):
            while unread:
                names.popleft()
                yield unread.popleft()
            yield self.outcome(result, names.popleft())
        yield from unread

    def process(self, group: Sequence[FileItem]) -> list[FileOutcome]:
        return list(self.outcomes(group))

    def name(self, group: Sequence[FileItem]) -> str:
        return label(group[0][0])

    def crashed(self, group: Sequence[FileItem]) -> list[FileOutcome]:
        _, (reject,) = super().crashed(group)
        return [FileOutcome(error=reject.id, messages=[f"stentor: {reject.message}"])]


def work_on_files(files: Files, worker: FilesWorker, options: AudioFiles) -> Iterator[FileOutcome]:
    """Yield the outcomes of the files, in order: from this process, or from the workers of the cluster `options.ray`.
    Raises ConfigError, and `Stopped` after a signal when the files in progress are done."""
    items = files.items
    if options.ray is None:
        worker.setup(options.device)
        worker.on_audio = files.add_seconds  # type: ignore[method-assign]
        yield from worker.outcomes(items)
        return
    if files.outputs is None or STDIN in [source for source, _ in items]:
        raise ConfigError("--ray is for files, with a folder for their outputs: give one with --out.")
    size = min(GROUP_FILES, max(1, len(items) // 32))
    groups = [items[i : i + size] for i in range(0, len(items), size)]
    saved = f"the outputs of {{}} of {len(items):,} files are in {options.out}, and --skip-existing leaves these out"
    with Stop(lambda: saved.format(f"{files.done:,}"), gently=True) as stop:
        executor = make_executor(options, (options.device,))
        with closing(executor.map(worker, groups, lambda: stop.signal is not None)) as results:
            for outcome in (outcome for result in results for outcome in result):
                files.add_seconds(outcome.seconds)
                yield outcome
        if stop.signal is not None:
            raise stop.stopped()
