"""`stentor prepare words`: word times for a transcribed corpus, as a manifest with `words`.

Outcomes are appended to MANIFEST.part as they come, so that the same command resumes after a kill; at the end they are
put in the order of the data and renamed to the manifest. Beside it MANIFEST.summary.json says what was kept and what
was dropped and why.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lhotse.cut import Cut, MixedCut, PaddingCut

from stentor.audio.io import encode, read
from stentor.audio.selection import WHOLE, Selection
from stentor.audio.synth import say
from stentor.commands.prepare_options import WordsOptions
from stentor.config.load import parse_source
from stentor.data.cut import (
    RATE,
    UnusableRecord,
    audio_path,
    divided,
    is_spoken,
    language_of,
    record_from_cut,
    text_of,
    words_of,
)
from stentor.data.fields import channel_of
from stentor.data.load_audio import load_audio
from stentor.data.record_table import RecordTable
from stentor.data.word_times import in_order
from stentor.errors import AudioError, ConfigError, DataError, require
from stentor.inference.align.base import Aligned, Aligner, Clip
from stentor.inference.align.engines import clip_of, engine_of, open_aligner
from stentor.inference.align.written import align_written
from stentor.inference.recording import ArrayRecording, Recording
from stentor.metrics.wer import rate, text_errors
from stentor.pipeline.executor import make_executor
from stentor.pipeline.journal import Fingerprint, remove_journal, write_json, write_jsonl
from stentor.pipeline.runner import (
    Record,
    RecordsInJournal,
    RecordWithFiles,
    Results,
    format_table,
    refuse_rejects,
    reject,
    summarize,
)
from stentor.pipeline.worker import Worker
from stentor.sources.base import source_notes

BATCH_SECONDS, BATCH_ITEMS = 60.0, 16
"""Most padded audio and most records that a worker takes at a time: what a kill can cost."""
SORT_WINDOW = 128
"""Records that are sorted by length before they are put in batches."""
BLOCK = 60.0
"""Longer cuts are read from their file in blocks of so many seconds."""
REASONS = {
    "empty_text": "no text",
    "no_words": "nothing in the text is spoken",
    "too_long_text": "more text than the audio can hold",
    "mismatch": "too little of the text is in the model's own transcript to divide it into windows",
    "wer": "free transcription differs more than --max-wer",
    "not_voice": "not spoken by the built-in voice",
}
"""Meanings of reasons; other reasons are about audio files."""
COLUMNS = ("alignment_cost", "alignment_wer", "alignment_warning")
"""Keys of a record about its word times: the cost of the text in the measure of the engine, the word error rate of the
model's own transcript (with `--max-wer`), and `mismatch` where the cost is above the engine's threshold."""
UNLIKELY = "kept: the model finds the text unlikely"


def prepare_words(options: WordsOptions) -> None:
    """Write the manifest, or resume where a killed command stopped. Raises ConfigError for options that do not go
    together, `Stopped` at a signal, and DataError when nothing could be kept or over 1 % of the audio cannot be used
    (the manifest is written all the same)."""
    engine = _engine(options)
    digest = Fingerprint(_description)
    source = parse_source(options.data)
    cuts = RecordTable(digest.through(source.cuts()))
    for note in source_notes(source, "data"):
        print(note, file=sys.stderr, flush=True)
    settings = {"data": options.data, "engine": engine, "model": options.model, "max_wer": options.max_wer}
    settings |= {"lag": options.lag, "records": str(digest)}
    summary_path = options.to.with_suffix(".summary.json")
    complete = options.to.is_file() and summary_path.is_file()
    if complete and json.loads(summary_path.read_text("utf-8")).get("settings") == settings:
        print(f"{options.to} is complete; delete it to make it again.", flush=True)
        return
    worker = WordsWorker(options.model, engine, options.lag, options.to, options.max_wer)
    groups = [cuts.select(batch) for batch in batches(cuts)]
    executor = make_executor(options, (options.device,))
    journal = RecordsInJournal(options.to, settings, "aligning").run(worker, executor, groups)
    summary = WordsSummary()
    write_jsonl(options.to, summary.counted(journal.lines(cut.id for cut in cuts)))
    write_json(summary_path, {"manifest": options.to.name, **summary.as_dict(), "settings": settings})
    remove_journal(journal.path)
    print(summary.table())
    summary.warn(summary_path, options.max_wer)
    print(f"written: {options.to} and {summary_path}", flush=True)
    summary.check(summary_path)


def _engine(options: WordsOptions) -> str:
    if options.to.suffix != ".jsonl":
        raise ConfigError(f"--to {options.to}: the manifest's name must end in .jsonl.")
    if options.engine == "voice":
        require("voice", "--engine voice")
        if options.model is not None:
            raise ConfigError("--engine voice asks the built-in voice itself: leave out --model.")
        if options.max_wer is not None:
            raise ConfigError("--engine voice knows what was said: leave out --max-wer.")
        return "voice"
    if options.model is None:
        raise ConfigError(
            "Word times need --model: a transducer, CTC or Whisper model (a folder or Hub id), or a run or export "
            "of ours with a CTC head or for the task words. Speech of the built-in voice needs --engine voice alone."
        )
    return engine_of(options.model, options.engine)[1]


def _description(cut: Cut | UnusableRecord) -> list[Any]:
    """Settings that the word times of a record depend on."""
    if isinstance(cut, UnusableRecord):
        return [cut.id]
    return [cut.id, cut.start, cut.duration, audio_path(cut), text_of(cut)]


class WordsSummary:
    """Counts of what became of the records."""

    def __init__(self) -> None:
        self.num_timed = self.words = 0
        self.seconds = 0.0
        self.rejects: list[UnusableRecord] = []
        self.warned: list[UnusableRecord] = []
        """Records that were kept with a warning."""

    def counted(self, outcomes: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The records among lines of the journal; all lines are counted."""
        for outcome in outcomes:
            if "record" not in outcome:
                self.rejects.append(UnusableRecord(outcome["id"], outcome["dropped"], outcome["message"]))
                continue
            record = outcome["record"]
            self.num_timed += 1
            self.words += len(record["words"])
            self.seconds += record["duration"]
            if (warning := record.get("alignment_warning")) is not None:
                message = f"{record['id']}: cost {record['alignment_cost']:.2f}: {_shortened(record['text'])}"
                self.warned.append(UnusableRecord(record["id"], warning, message))
            yield record

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self.num_timed + len(self.rejects),
            "kept": self.num_timed,
            "words": self.words,
            "hours": round(self.seconds / 3600, 4),
            "warnings": summarize(self.warned),
            "dropped": {
                reason: {**group, "meaning": REASONS.get(reason, "audio that cannot be used")}
                for reason, group in summarize(self.rejects).items()
            },
        }

    def table(self) -> str:
        rows = [("kept", self.num_timed, f"{self.words:,} words, {self.seconds / 3600:.2f} hours")]
        rows += [("warned: mismatch", len(self.warned), UNLIKELY)] if self.warned else []
        dropped = self.as_dict()["dropped"]
        return format_table([*rows, *((f"dropped: {r}", d["count"], d["meaning"]) for r, d in dropped.items())])

    def warn(self, summary_path: Path, max_wer: float | None) -> None:
        if self.warned:
            names = ", ".join(record.id for record in self.warned[:3]) + (", ..." if len(self.warned) > 3 else "")
            advice = " To drop records by the model's own transcript, give --max-wer 0.3." if max_wer is None else ""
            print(
                f"stentor: warning: the model finds the text of {len(self.warned):,} of {self.num_timed:,} kept "
                f"records unlikely, so their times may be wrong ({names}; more in {summary_path}).{advice} To train "
                "without them, set `exclude: {alignment_warning: mismatch}` on the source.",
                file=sys.stderr,
            )

    def check(self, summary_path: Path) -> None:
        """Raise DataError when over 1 % of the audio cannot be used, or nothing was kept."""
        unusable = [reject.message for reject in self.rejects if reject.reason not in REASONS]
        refuse_rejects(unusable, self.num_timed + len(self.rejects))
        if not self.num_timed:
            raise DataError(f"No record got word times; {summary_path} says why.")


def batches(cuts: Sequence[Cut | UnusableRecord]) -> Iterator[list[int]]:
    """The numbers of the cuts in lists of similar length, at most `BATCH_SECONDS` when padded (or one cut) and
    `BATCH_ITEMS`."""
    for start in range(0, len(cuts), SORT_WINDOW):
        window = cuts[start : start + SORT_WINDOW]
        seconds = {i: None if isinstance(c, UnusableRecord) else c.duration for i, c in enumerate(window, start)}
        if unusable := [number for number, length in seconds.items() if length is None]:
            yield unusable
        batch: list[int] = []
        longest = 0.0
        lengths = [(number, length) for number, length in seconds.items() if length is not None]
        for number, length in sorted(lengths, key=lambda item: -item[1]):
            if batch and (longest * (len(batch) + 1) > BATCH_SECONDS or len(batch) == BATCH_ITEMS):
                yield batch
                batch = []
            longest = longest if batch else length
            batch.append(number)
        if batch:
            yield batch


class WordsWorker(Worker):
    """Batches of cuts to manifest records with `words`. `manifest`: where they will be; audio that is in no file of its
    own is written beside it. `engine`: as `engine_of` gives it, or `voice`."""

    def __init__(self, model: str | None, engine: str, lag: float | None, manifest: Path, max_wer: float | None = None):
        self.model, self.engine, self.lag, self.max_wer = model, engine, lag, max_wer
        self.manifest, self.reading = manifest.absolute(), (False, False)

    def setup(self, device: str) -> None:
        if self.engine != "voice":
            assert self.model is not None
            self.aligner: Aligner = open_aligner(self.model, self.engine, device, self.lag)

    def process(self, group: Sequence[Cut | UnusableRecord]) -> Results:
        results: list[Record | UnusableRecord] = []
        clips: list[tuple[Cut, Clip]] = []
        for cut in group:
            if isinstance(cut, UnusableRecord):
                results.append(cut)
            elif not (text_of(cut) or "").strip():
                results.append(UnusableRecord(cut.id, "empty_text", f"{cut.id} has no text."))
            elif self.engine == "voice":
                results.append(self._voice_record(cut))
            else:
                try:
                    clips.append((cut, _clip(cut, self.aligner.rate)))
                except AudioError as error:
                    results.append(reject(cut, error))
        aligned = self._align([clip for _, clip in clips]) if clips else []
        results += [self._aligned_record(cut, clip, result) for (cut, clip), result in zip(clips, aligned)]
        return divided(results)

    def _align(self, clips: Sequence[Clip]) -> list[Aligned | AudioError]:
        """All at once; when some audio turns out unreadable, one by one."""
        try:
            return list(align_written(self.aligner, clips, *self.reading, self.max_wer is not None))
        except AudioError as error:
            if len(clips) == 1:
                return [error]
            return [self._align([clip])[0] for clip in clips]

    def _aligned_record(self, cut: Cut, clip: Clip, aligned: Aligned | AudioError) -> Record | UnusableRecord:
        if isinstance(aligned, AudioError):
            return reject(cut, aligned)
        if not aligned.words:
            return UnusableRecord(
                cut.id, str(aligned.reason), f"{cut.id} ({cut.duration:.2f} s): {_shortened(clip.text)}"
            )
        facts: dict[str, Any] = {} if aligned.cost is None else {"alignment_cost": round(aligned.cost, 4)}
        if self.max_wer is not None:
            hypothesis = aligned.hypothesis or ""
            wer = rate(text_errors(clip.text, hypothesis, clip.language))
            if wer > self.max_wer:
                message = f"{cut.id}: WER {wer:.0%}: {_shortened(clip.text)} / heard: {_shortened(hypothesis)}"
                return UnusableRecord(cut.id, "wer", message)
            facts["alignment_wer"] = round(wer, 4)
        if aligned.reason is not None:
            facts["alignment_warning"] = aligned.reason
        return self._record(cut, in_order([word.as_dict() for word in aligned.words], cut.duration), **facts)

    def _voice_record(self, cut: Cut) -> Record | UnusableRecord:
        """The times that the built-in voice itself knows."""
        words = words_of(cut)
        voice = None if isinstance(cut, MixedCut) else (cut.custom or {}).get("voice")
        if voice and not words:
            words = say(**voice).words
        if not words or not (voice or _all_spoken(cut)):
            return UnusableRecord(cut.id, "not_voice", f"{cut.id} was not spoken by the built-in voice.")
        return self._record(cut, words)

    def _record(self, cut: Cut, words: list[dict[str, Any]], **facts: Any) -> Record:
        """The manifest record with its words and `facts` about them. Audio that is not a file becomes one, beside the
        manifest."""
        record = {key: value for key, value in record_from_cut(cut).items() if key not in COLUMNS}
        audio = None
        if record["audio_path"] is None:
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in cut.id)
            audio = self.manifest.with_suffix("") / f"{name}.flac"
            record["audio_path"] = str(audio)
            record = {key: value for key, value in record.items() if key not in ("start", "channel")}
        path = Path(record["audio_path"])
        record["audio_path"] = str(
            path.relative_to(self.manifest.parent) if path.is_relative_to(self.manifest.parent) else path
        )
        record = {**record, **facts, "words": words}
        return (
            record if audio is None else RecordWithFiles(record, {audio: encode(load_audio(cut, RATE), RATE, cut.id)})
        )


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _all_spoken(cut: Cut) -> bool:
    """Whether every part of the cut that sounds is an utterance of the built-in voice."""
    if not isinstance(cut, MixedCut):
        return is_spoken(cut)
    return all(_all_spoken(t.cut) for t in cut.tracks if not isinstance(t.cut, PaddingCut))


def _clip(cut: Cut, rate: int) -> Clip:
    """The cut's audio with its text; the audio of a long piece of a file is not loaded. Raises AudioError."""
    path = audio_path(cut)
    recording: Recording
    if path is not None and cut.duration > BLOCK:
        recording = FilePiece(path, rate, cut.start, cut.duration, Selection(channel_of(cut.custom)))
    else:
        recording = ArrayRecording(load_audio(cut, rate), rate, rate, cut.id)
    return clip_of(recording, text_of(cut) or "", language_of(cut), cut.id)


class FilePiece:
    """A long piece of an audio file, read again whenever it is needed; see `stentor.inference.recording.Recording`."""

    notes: tuple[str, ...] = ()

    def __init__(self, path: str, rate: int, start: float, duration: float, selection: Selection = WHOLE):
        self.path, self.name, self.rate, self.selection = path, path, rate, selection
        self.start, self.duration = start, duration

    def blocks(self) -> Iterator[np.ndarray]:
        for i in range(math.ceil(self.duration / BLOCK)):
            end = min((i + 1) * BLOCK, self.duration)
            yield self.read(round(i * BLOCK * self.rate), round(end * self.rate))

    def read(self, start: int, end: int) -> np.ndarray:
        place = self.start + start / self.rate, (end - start) / self.rate
        return read(self.path, self.rate, *place, check_silence=False, selection=self.selection)

    def at(self, rate: int) -> "FilePiece":
        return FilePiece(self.path, rate, self.start, self.duration, self.selection)
