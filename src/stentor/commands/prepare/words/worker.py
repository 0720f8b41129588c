"""From cuts to outcomes, in this process or in several."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError, StentorError, Stopped

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.commands.prepare.words import Request
    from stentor.commands.prepare.words.journal import Journal
    from stentor.data.cut import UnusableRecord
    from stentor.inference.align.base import Aligned, Aligner, Clip

BATCH_SECONDS, BATCH_ITEMS = 60.0, 16
"""Most padded audio and most records that a worker is given at a time: what a kill can cost."""
SORTED = 128
"""Records that are sorted by length before they are put in batches."""
HELD = 60.0
"""Longer cuts are read from their file piece by piece."""


def solve_all(
    todo: Sequence[Cut | UnusableRecord], total: int, engine: str, request: Request, journal: Journal
) -> None:
    """Solve all that is left, in this process or in several."""
    from stentor.commands.prepare.corpus import progress

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


def batches(cuts: Sequence[Cut | UnusableRecord]) -> Iterator[list[Cut | UnusableRecord]]:
    """The cuts in lists of similar length, at most `BATCH_SECONDS` when padded (or one cut) and `BATCH_ITEMS`."""
    from stentor.data.cut import UnusableRecord

    for at in range(0, len(cuts), SORTED):
        group = cuts[at : at + SORTED]
        lost = [cut for cut in group if isinstance(cut, UnusableRecord)]
        if lost:
            yield list(lost)
        batch: list[Cut | UnusableRecord] = []
        longest = 0.0
        for cut in sorted((c for c in group if not isinstance(c, UnusableRecord)), key=lambda c: -c.duration):
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

    import torch

    from stentor.config.plugins import load_plugins
    from stentor.data.processes import end_with_parent, plain_signals

    plain_signals()
    torch.set_num_threads(1)
    end_with_parent()
    load_plugins(list(request.plugins))
    _worker = Worker(engine, request)


def _solve(batch: list[Cut | UnusableRecord]) -> list[dict[str, Any]]:
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
            self._aligner = open_aligner(self.request.model, self.engine, self.request.device, self.request.lag)
        return self._aligner

    def solve(self, batch: Sequence[Cut | UnusableRecord]) -> list[dict[str, Any]]:
        from stentor.data.cut import UnusableRecord, text_of

        outcomes, ready = [], []
        for cut in batch:
            if isinstance(cut, UnusableRecord):
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
        from stentor.data.cut import RATE, record_from_cut
        from stentor.data.load_audio import load_audio

        record = record_from_cut(cut)
        if record["audio_path"] is None:
            from stentor.audio.io import write

            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in cut.id)
            audio = self.home / self.request.to.stem / f"{name}.flac"
            write(audio, load_audio(cut, RATE), RATE)
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
    from stentor.metrics.wer import rate, word_errors
    from stentor.text.normalize import normalize

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
    from stentor.data.cut import audio_path, language_of, text_of
    from stentor.data.load_audio import load_audio
    from stentor.inference.align import clip_of
    from stentor.inference.recording import ArrayRecording, Recording

    path = audio_path(cut)
    recording: Recording
    if path is not None and cut.duration > HELD:
        recording = Piece(path, rate, cut.start, cut.duration)
    else:
        recording = ArrayRecording(load_audio(cut, rate), rate, rate, cut.id)
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
            self.path,
            rate=self.rate,
            start=self.start + start / self.rate,
            duration=(end - start) / self.rate,
            check_silence=False,
        )
