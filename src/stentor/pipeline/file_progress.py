"""Processing of audio files: progress bar, output folder, failed files, and the work, locally or on a cluster."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.formats import file_names
from stentor.inference.recording import STDIN, Recording, expand, label, open_recording
from stentor.pipeline.executor import make_executor
from stentor.pipeline.options import AudioFiles
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


def make_folder(out: str | Path) -> Path:
    """The folder of `--out`. Raises ConfigError when it cannot be made or written to, before any work is done."""
    folder, verb = Path(out), "made"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        verb = "written to"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"The folder {folder} of --out cannot be {verb} ({error.strerror})"
        raise ConfigError(f"{problem}: check the path and its permissions.") from error
    return folder


def check_failed(failed: Sequence[str], total: int, what: str, most: int | None = None) -> None:
    """Raises DataError when `what` could not be done of `total` files or lines; it names `most` of them, None: all."""
    if failed:
        named = [*failed[:most], *(["..."] if failed[most or len(failed) :] else [])]
        raise DataError(
            f"{len(failed)} of {total} {what}: {', '.join(named)}. "
            f"The reasons are above{'; the others are done' if len(failed) < total else ''}."
        )


class FileProgress:
    """A bar on standard error when that is a terminal; otherwise nothing."""

    def __init__(self, files: int, doing: str):
        self.bar: Any = None
        self.seconds, self.printed = 0.0, set[str]()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            done = TextColumn("{task.fields[minutes]:.1f} min of audio")
            columns = [TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("files"), done]
            self.bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=files, minutes=0.0)

    def __enter__(self) -> FileProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def add_seconds(self, seconds: float) -> None:
        """So many seconds of audio more are done."""
        self.seconds += seconds
        if self.bar:
            self.bar.update(self.task, minutes=self.seconds / 60)

    def add_file(self) -> None:
        """A file more is done."""
        if self.bar:
            self.bar.advance(self.task)

    def print(self, text: str, error: bool = False) -> None:
        """A line on standard output, or with `error` on standard error, that leaves the bar intact."""
        if self.bar and (error or sys.stdout.isatty()):
            # Above the bar, not through it.
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True) if error else self._above(text)
        else:
            print(text, file=sys.stderr if error else sys.stdout, flush=True)

    def warn(self, message: str) -> None:
        """A line on standard error, unless it was there before: each process warns of the model."""
        if message not in self.printed:
            self.printed.add(message)
            self.print(message, error=True)

    def _above(self, text: str) -> None:
        self.bar.stop()
        print(text, flush=True)
        self.bar.start()


def has_outputs(folder: Path, name: str, suffixes: Sequence[str]) -> bool:
    """Whether the outputs of a file are there, of all suffixes."""
    return all((folder / f"{name}.{suffix}").is_file() for suffix in suffixes)


def write_outputs(folder: Path, name: str, texts: Mapping[str, str]) -> str | None:
    """Write the outputs of a file, by suffix. Returns a message if one cannot be written. Raises OSError if the disk is
    full."""
    for suffix, text in texts.items():
        # The temporary name is short: the name of an output may be as long as names can be.
        path, part = folder / f"{name}.{suffix}", folder / f".{os.getpid()}.part"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return f"stentor: {path} cannot be written: {error.strerror}."
    return None


class Files(FileProgress):
    """Audio files that a command goes through. `audio`: what they are called; `folder`: where the outputs go, None for
    standard output; `failed`: files that could not be read or whose output could not be written.

    With `existing`, suffixes of outputs, files that have them all are left out. Raises ConfigError when the folder
    `out` cannot be made or written to, and as `stentor.inference.recording.expand` does.
    """

    def __init__(self, audio: Sequence[str], out: str | None, doing: str, existing: Sequence[str] = ()):
        inputs = expand(audio)
        self.folder = None if out is None else make_folder(out)
        if existing and self.folder is None:
            raise ConfigError("--skip-existing looks into the folder of the outputs: give one with --out.")
        names = file_names([label(name) for name in inputs])
        todo = [
            (source, name)
            for source, name in zip(inputs, names, strict=True)
            if not (existing and has_outputs(Path(out or ""), name, existing))
        ]
        self.inputs, self.names = [source for source, _ in todo], [name for _, name in todo]
        self.audio, self.failed, self.done = [label(name) for name in self.inputs], list[str](), 0
        super().__init__(len(self.audio), doing)
        if len(todo) < len(inputs):
            self.print(f"{len(inputs) - len(todo)} of {len(inputs)} files have their outputs already.", error=True)

    def add_file(self) -> None:
        super().add_file()
        self.done += 1

    def take(self, outcome: FileOutcome) -> None:
        """Write or print the outcome of the next file."""
        for message in outcome.messages:
            self.warn(message)
        if outcome.error is not None:
            self.failed.append(self.audio[self.done])
            self.add_file()
        elif self.folder is not None:
            self.write(outcome.texts)
        else:
            if outcome.printed is not None:
                self.print(outcome.printed)
            self.add_file()

    def write(self, texts: Mapping[str, str]) -> None:
        """Write the outputs of the next file, by suffix. If one cannot be written, print the error and continue."""
        assert self.folder is not None
        if (problem := write_outputs(self.folder, self.names[self.done], texts)) is not None:
            self.print(problem, error=True)
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
                yield open_recording(source, self.rate, channel=self.options.channel)

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
    items = list(zip(files.inputs, files.names))
    if options.ray is None:
        worker.setup(options.device)
        worker.on_audio = files.add_seconds  # type: ignore[method-assign]
        yield from worker.outcomes(items)
        return
    if files.folder is None or STDIN in files.inputs:
        raise ConfigError("--ray is for files, with a folder for their outputs: give one with --out.")
    size = min(GROUP_FILES, max(1, len(items) // 32))
    groups = [items[i : i + size] for i in range(0, len(items), size)]
    saved = f"the outputs of {{}} of {len(items):,} files are in {files.folder}, and --skip-existing leaves these out"
    with Stop(lambda: saved.format(f"{files.done:,}"), gently=True) as stop:
        executor = make_executor(options, (options.device,))
        with closing(executor.map(worker, groups, lambda: stop.signal is not None)) as results:
            for outcome in (outcome for result in results for outcome in result):
                files.add_seconds(outcome.seconds)
                yield outcome
        if stop.signal is not None:
            raise stop.stopped()
