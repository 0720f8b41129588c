"""`stentor prepare words`: word times for a transcribed corpus, as a manifest with `words`.

Outcomes are appended to MANIFEST.part as they come, so that the same command goes on after a kill; at the end they are
put in the order of the data and renamed to the manifest. Beside it MANIFEST.summary.json says what was kept and what
was dropped and why.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError, ConfigError, DataError, StentorError, Stopped

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.data.cut import Unusable
    from stentor.inference.aligned import Aligned, Aligner, Clip

BATCH_SECONDS, BATCH_ITEMS = 60.0, 16
"""Most padded audio and most records that a worker is given at a time: what a kill can cost."""
SORTED = 128
"""Records that are sorted by length before they are put in batches."""
NAMED = 20
"""Records of each reason that the summary names."""
HELD = 60.0
"""Longer cuts are read from their file piece by piece."""

REASONS = {
    "empty_text": "no text",
    "no_words": "nothing in the text is spoken",
    "too_long_text": "more text than the audio can hold",
    "mismatch": "the text is not what is said",
    "wer": "free transcription differs more than --max-wer",
    "not_voice": "not spoken by the built-in voice",
}
"""What reasons mean; other reasons are about audio files."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str
    to: Path
    engine: str | None = None
    model: str | None = None
    jobs: int = 1
    max_wer: float | None = None
    device: str = "auto"
    plugins: tuple[Path, ...] = ()


@dataclass
class Summary:
    """What became of the records."""

    records: int = 0
    kept: int = 0
    words: int = 0
    seconds: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: dict[str, Any]) -> None:
        self.records += 1
        if "record" in outcome:
            self.kept += 1
            self.words += len(outcome["record"]["words"])
            self.seconds += outcome["record"]["duration"]
            return
        reason = outcome["dropped"]
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        named = self.named.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(outcome["message"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self.records, "kept": self.kept, "words": self.words, "hours": round(self.seconds / 3600, 4),
            "dropped": {
                reason: {"count": count, "meaning": REASONS.get(reason, "audio that cannot be used"),
                         "first": self.named[reason]}
                for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1])
            },
        }  # fmt: skip

    def table(self) -> str:
        """For the console."""
        rows = [("kept", self.kept, f"{self.words:,} words, {self.seconds / 3600:.2f} hours")]
        rows += [
            (f"dropped: {reason}", about["count"], about["meaning"])
            for reason, about in self.as_dict()["dropped"].items()
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:{width}}  {count:>8,}  {note}" for name, count, note in rows)


def prepare_words(request: Request) -> None:
    """Write the manifest, or go on where a killed command stopped.

    Raises ConfigError for options that do not go together, `Stopped` at a signal, and DataError when nothing could be
    kept or over 1 % of the audio cannot be used (the manifest is written all the same).
    """
    from stentor.config.load import parse_source
    from stentor.data.check import MAX_BAD

    engine = _engine(request)
    cuts = list(parse_source(request.data).cuts())
    settings = {
        "data": request.data, "engine": engine, "model": request.model, "max_wer": request.max_wer,
        "records": _fingerprint(cuts),
    }  # fmt: skip
    summary_file = request.to.with_suffix(".summary.json")
    if request.to.is_file() and summary_file.is_file():
        before = json.loads(summary_file.read_text("utf-8"))
        if before.get("settings") == settings:
            print(f"{request.to} is complete; delete it to make it anew.", flush=True)
            return
    request.to.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(request.to.with_name(request.to.name + ".part"), settings)
    todo = [cut for cut in cuts if cut.id not in journal.places]
    if len(todo) < len(cuts):
        print(f"Going on: {len(cuts) - len(todo):,} of {len(cuts):,} records were done before.", flush=True)
    with journal:
        _all(todo, len(cuts), engine, request, journal)
    summary = journal.write([cut.id for cut in cuts], request.to)
    facts = {"manifest": request.to.name, **summary.as_dict(), "settings": settings}
    _replace(summary_file, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    journal.path.unlink()
    print(summary.table())
    print(f"written: {request.to} and {summary_file}", flush=True)
    unusable = {r: n for r, n in summary.dropped.items() if r not in REASONS}
    if sum(unusable.values()) > MAX_BAD * summary.records:
        first = [message for reason in unusable for message in summary.named[reason]][:NAMED]
        raise DataError(
            f"{sum(unusable.values()):,} of {summary.records:,} records have audio that cannot be used. The first are:"
            "\n  " + "\n  ".join(first)
        )
    if not summary.kept:
        raise DataError(f"No record got word times; {summary_file} says why.")


def _engine(request: Request) -> str:
    if request.to.suffix != ".jsonl":
        raise ConfigError(f"--to {request.to}: the manifest's name must end in .jsonl.")
    if request.engine == "voice":
        if request.model is not None:
            raise ConfigError("--engine voice asks the built-in voice itself: leave out --model.")
        if request.max_wer is not None:
            raise ConfigError("--engine voice knows what was said: leave out --max-wer.")
        return "voice"
    if request.model is None:
        raise ConfigError(
            "Word times need --model: a CTC or Whisper model (a folder or Hub id), or a run or export of ours with a "
            "CTC head or for the task words. Speech of the built-in voice needs --engine voice alone."
        )
    from stentor.inference.align import engine_of

    return engine_of(request.model, request.engine)[1]


def _fingerprint(cuts: Sequence[Cut | Unusable]) -> str:
    """Changes when a record is added, taken away, or says something else."""
    from stentor.data.cut import Unusable, audio_path, text_of

    digest = hashlib.sha256()
    for cut in cuts:
        facts = [cut.id] if isinstance(cut, Unusable) else [cut.id, cut.start, cut.duration, audio_path(cut), text_of(cut)]
        digest.update(json.dumps(facts).encode())
    return f"{len(cuts)}:{digest.hexdigest()[:16]}"


class Journal:
    """The outcomes so far: JSON lines, the first with the settings of the command that they belong to.

    Raises ConfigError when the file belongs to a command with other settings. A line that a kill cut short is taken
    off.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        self.places: dict[str, int] = {}
        """Where each record's outcome begins, in bytes."""
        head = json.dumps({"settings": settings}, ensure_ascii=False).encode() + b"\n"
        if not path.exists() or not path.read_bytes()[: len(head)].endswith(b"\n"):
            if path.exists() and b"\n" in path.read_bytes():
                self._refuse(settings)
            path.write_bytes(head)
            return
        with open(path, "rb+") as file:
            if file.readline() != head:
                self._refuse(settings)
            at = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.places[json.loads(line)["id"]] = at
                at += len(line)
            file.truncate(at)

    def _refuse(self, settings: dict[str, Any]) -> None:
        with open(self.path, encoding="utf-8") as file:
            try:
                before = json.loads(file.readline())["settings"]
            except (ValueError, KeyError):
                before = {}
        other = [f"{k} was {before.get(k)!r} and is {v!r}" for k, v in settings.items() if before.get(k) != v]
        raise ConfigError(
            f"{self.path} was left by a command with other settings ({'; '.join(other)}). Run that command again to go "
            "on, or delete the file to start anew."
        )

    def __enter__(self) -> Journal:
        self.file = open(self.path, "ab")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, outcomes: Sequence[dict[str, Any]]) -> None:
        for outcome in outcomes:
            self.places[outcome["id"]] = self.file.tell()
            self.file.write(json.dumps(outcome, ensure_ascii=False).encode() + b"\n")
        self.file.flush()

    def write(self, order: Sequence[str], to: Path) -> Summary:
        """The records that were kept, in order, as a manifest under its final name."""
        summary = Summary()
        part = to.with_name(f".{to.name}.{os.getpid()}.part")
        try:
            with open(self.path, "rb") as done, open(part, "w", encoding="utf-8") as out:
                for name in order:
                    done.seek(self.places[name])
                    outcome = json.loads(done.readline())
                    summary.add(outcome)
                    if "record" in outcome:
                        out.write(json.dumps(outcome["record"], ensure_ascii=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)
        return summary


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


# The work -----------------------------------------------------------------------------------------------------------


def _all(todo: Sequence[Cut | Unusable], total: int, engine: str, request: Request, journal: Journal) -> None:
    """Solve all that is left, in this process or in several."""
    from stentor.prepare import progress

    def stop(number: int, _frame: object) -> None:
        raise Stopped(
            f"Stopped by {signal.Signals(number).name}; {len(journal.places):,} of {total:,} records are in "
            f"{journal.path}. Run the same command to go on."
        )

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    solved = _in_processes if request.jobs > 1 else _here
    try:
        with progress("aligning", "records") as bar:
            bar(len(journal.places), total)
            for outcomes in solved(batches(todo), engine, request):
                journal.add(outcomes)
                bar(len(journal.places), total)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def batches(cuts: Sequence[Cut | Unusable]) -> Iterator[list[Cut | Unusable]]:
    """The cuts in lists of similar length, at most `BATCH_SECONDS` when padded (or one cut) and `BATCH_ITEMS`."""
    from stentor.data.cut import Unusable

    for at in range(0, len(cuts), SORTED):
        group = cuts[at : at + SORTED]
        lost = [cut for cut in group if isinstance(cut, Unusable)]
        if lost:
            yield list(lost)
        batch: list[Cut | Unusable] = []
        longest = 0.0
        for cut in sorted((c for c in group if not isinstance(c, Unusable)), key=lambda c: -c.duration):
            if batch and (longest * (len(batch) + 1) > BATCH_SECONDS or len(batch) == BATCH_ITEMS):
                yield batch
                batch = []
            longest = longest if batch else cut.duration
            batch.append(cut)
        if batch:
            yield batch


def _here(todo: Iterator[list[Any]], engine: str, request: Request) -> Iterator[list[dict[str, Any]]]:
    worker = Worker(engine, request)
    for batch in todo:
        yield worker.solve(batch)


def _in_processes(todo: Iterator[list[Any]], engine: str, request: Request) -> Iterator[list[dict[str, Any]]]:
    """Batches dealt to `jobs` fresh processes of one thread each, a few ahead; outcomes as they come."""
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool
    from itertools import islice

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(request.jobs, context, initializer=_start, initargs=(engine, request)) as pool:
        running = {pool.submit(_solve, batch) for batch in islice(todo, 2 * request.jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                running |= {pool.submit(_solve, batch) for batch in islice(todo, len(done))}
        except BrokenProcessPool:
            raise StentorError(
                f"One of the {request.jobs} processes died, perhaps for want of memory: run the same command again to "
                "go on, with fewer --jobs."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: Worker | None = None


def _start(engine: str, request: Request) -> None:
    """In a fresh process: one thread, and an end when the parent ends, however it does."""
    global _worker
    import multiprocessing
    import threading

    import torch

    from stentor.config.plugins import load_plugins
    from stentor.data.spoken import plain_signals

    plain_signals()
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    load_plugins(list(request.plugins))
    _worker = Worker(engine, request)


def _solve(batch: list[Cut | Unusable]) -> list[dict[str, Any]]:
    assert _worker is not None
    return _worker.solve(batch)


class Worker:
    """Cuts to outcomes: `{"id", "record"}` of what is kept, `{"id", "dropped", "message"}` of what is not."""

    def __init__(self, engine: str, request: Request):
        self.engine, self.request = engine, request
        self.home = request.to.parent.absolute()
        self._aligner: Aligner | None = None

    @property
    def aligner(self) -> Aligner:
        """Loaded when it is first needed: here its errors are told, in a process's start they are not."""
        if self._aligner is None:
            from stentor.inference.align import open_aligner

            assert self.request.model is not None
            self._aligner = open_aligner(self.request.model, self.engine, self.request.device)
        return self._aligner

    def solve(self, batch: Sequence[Cut | Unusable]) -> list[dict[str, Any]]:
        from stentor.data.cut import Unusable, text_of

        outcomes, ready = [], []
        for cut in batch:
            if isinstance(cut, Unusable):
                outcomes.append(_dropped(cut.id, cut.reason, cut.message))
            elif not (text_of(cut) or "").strip():
                outcomes.append(_dropped(cut.id, "empty_text", f"{cut.id} has no text."))
            elif self.engine == "voice":
                outcomes.append(self._spoken(cut))
            else:
                try:
                    ready.append((cut, _clip(cut, self.aligner.rate)))
                except AudioError as error:
                    outcomes.append(_dropped(cut.id, error.reason, f"{cut.id}: {error}"))
        if ready:
            found = self._align(ready)
            outcomes += [self._outcome(cut, clip, one) for (cut, clip), one in zip(ready, found)]
        return outcomes

    def _align(self, ready: Sequence[tuple[Cut, Clip]]) -> list[Aligned | AudioError]:
        """All at once; when some audio turns out unreadable, one by one."""
        transcribe = self.request.max_wer is not None
        try:
            return list(self.aligner.align([clip for _, clip in ready], transcribe))
        except AudioError as error:
            if len(ready) == 1:
                return [error]
            return [self._align([one])[0] for one in ready]

    def _outcome(self, cut: Cut, clip: Clip, found: Aligned | AudioError) -> dict[str, Any]:
        if isinstance(found, AudioError):
            return _dropped(cut.id, found.reason, f"{cut.id}: {found}")
        if found.reason is not None:
            return _dropped(cut.id, found.reason, f"{cut.id} ({cut.duration:.2f} s): {_short(clip.text)}")
        if self.request.max_wer is not None:
            wer = _wer(clip.text, found.heard or "", clip.language)
            if wer > self.request.max_wer:
                message = f"{cut.id}: WER {wer:.0%}: {_short(clip.text)} / heard: {_short(found.heard or '')}"
                return _dropped(cut.id, "wer", message)
        return {"id": cut.id, "record": self._record(cut, [w.as_dict() for w in found.words])}

    def _spoken(self, cut: Cut) -> dict[str, Any]:
        """The times that the built-in voice itself knows."""
        from stentor.data.cut import words_of

        words = words_of(cut)
        voice = (cut.custom or {}).get("voice") if hasattr(cut, "custom") else None
        if voice and not words:
            from stentor.audio.synth import say

            words = say(**voice).words
        if not words or not (voice or _all_spoken(cut)):
            return _dropped(cut.id, "not_voice", f"{cut.id} was not spoken by the built-in voice.")
        return {"id": cut.id, "record": self._record(cut, words)}

    def _record(self, cut: Cut, words: list[dict[str, Any]]) -> dict[str, Any]:
        """The manifest record with its words. Audio that is not a file becomes one, beside the manifest."""
        from stentor.data.cut import RATE, load, record_from_cut

        record = record_from_cut(cut)
        if record["audio_path"] is None:
            from stentor.audio.io import write

            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in cut.id)
            audio = self.home / self.request.to.stem / f"{name}.flac"
            write(audio, load(cut, RATE), RATE)
            record["audio_path"] = str(audio)
            record.pop("start", None)
        path = Path(record["audio_path"])
        record["audio_path"] = str(path.relative_to(self.home) if path.is_relative_to(self.home) else path)
        return {**record, "words": words}


def _dropped(name: str, reason: str, message: str) -> dict[str, Any]:
    return {"id": name, "dropped": reason, "message": message}


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _wer(reference: str, heard: str, language: str | None) -> float:
    from stentor.metrics.text import normalize
    from stentor.metrics.wer import rate, word_errors

    pair = normalize(reference, "whisper_basic", language), normalize(heard, "whisper_basic", language)
    return rate(word_errors([pair], language))


def _all_spoken(cut: Cut) -> bool:
    """Whether every part of the cut that sounds is an utterance of the built-in voice."""
    from lhotse.cut import MixedCut, PaddingCut

    from stentor.data.cut import is_spoken

    if not isinstance(cut, MixedCut):
        return is_spoken(cut)
    return all(_all_spoken(t.cut) for t in cut.tracks if not isinstance(t.cut, PaddingCut))


def _clip(cut: Cut, rate: int) -> Clip:
    """The cut's audio with its text. Of a long piece of a file nothing is held. Raises AudioError."""
    from stentor.data.cut import audio_path, language_of, load, text_of
    from stentor.inference.align import clip_of
    from stentor.inference.recording import ArrayRecording, Recording

    path = audio_path(cut)
    recording: Recording
    if path is not None and cut.duration > HELD:
        recording = Piece(path, rate, cut.start, cut.duration)
    else:
        recording = ArrayRecording(load(cut, rate), rate, rate, cut.id)
    return clip_of(recording, text_of(cut) or "", language_of(cut), cut.id)


class Piece:
    """A long piece of an audio file, read again whenever it is needed; see `stentor.inference.recording.Recording`."""

    def __init__(self, path: str, rate: int, start: float, duration: float):
        self.path, self.name, self.rate = path, path, rate
        self.start, self.duration = start, duration

    def blocks(self) -> Iterator[np.ndarray]:
        count = math.ceil(self.duration / HELD)
        for i in range(count):
            end = min((i + 1) * HELD, self.duration)
            yield self.read(round(i * HELD * self.rate), round(end * self.rate))

    def read(self, start: int, end: int) -> np.ndarray:
        from stentor.audio.io import read

        return read(
            self.path, rate=self.rate, start=self.start + start / self.rate, duration=(end - start) / self.rate,
            check_silence=False,
        )  # fmt: skip
