"""Word error rates of speaker-attributed transcripts: cpWER and tcpWER.

cpWER (Watanabe et al. 2020, CHiME-6) joins what each speaker says, in order of time, and takes the assignment of
speakers with the fewest word errors: it counts both wrong words and wrong speakers. tcpWER (von Neumann et al. 2023,
MeetEval) pairs words only where their times are at most a collar apart. Both are corpus-level: all errors over all
reference words. Errors and totals are those of the package meeteval; where several alignments have equally few errors,
the one with the fewest substitutions is counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from stentor.errors import DataError
from stentor.metrics.score import Score, rate_interval
from stentor.metrics.wer import count_errors
from stentor.text.normalize import DEFAULT, counted_in, normalize, words

PAUSE = 0.5
"""Seconds between two words of a speaker that begin a new segment, whose words are timed by their letters."""
COLLAR = 5.0
"""Seconds: meeteval's recommendation for times of segments, and CHiME's."""

Stream = list[tuple[str, float, float]]
"""Words of a speaker: (word, start, end) in order of segments, seconds."""
Measure = Callable[[Stream, Stream], tuple[int, int, int]]
"""(substitutions, deletions, insertions) between the words of a reference and of a hypothesis."""


@dataclass
class Attributed:
    """One recording: the reference by speaker, and a transcript with a speaker for each word."""

    id: str
    reference: Sequence[Mapping[str, Any]]
    """`{"speaker", "start", "end", "text"}`, seconds."""
    hypothesis: Mapping[str, Any]
    """A transcript (`stentor transcribe --diarizer ... --format json`): its `words`, or else its `segments`."""
    language: str | None = None


def cpwer(files: Sequence[Attributed], normalizer: str = DEFAULT, spelling: str | None = None) -> Score:
    """Concatenated minimum-permutation word error rate, after `normalizer` as for the plain word error rate.

    Details: `substitutions`, `deletions`, `insertions`; speakers of the reference (`scored_speakers`), those that the
    transcript lacks (`missed_speakers`) and those that it has in excess (`false_alarm_speakers`). `low` and `high` come
    from a bootstrap over recordings. A reference without words adds its insertions to the errors and nothing to the
    total. Raises DataError when a reference has no text or no speakers.
    """
    return _score(files, _errors, normalizer, spelling, {})


def tcpwer(
    files: Sequence[Attributed], collar: float = COLLAR, normalizer: str = DEFAULT, spelling: str | None = None
) -> Score:
    """Time-constrained `cpwer`: words are paired only when at most `collar` seconds lie between them. Words of a
    segment are placed by their letters, those of the transcript at the middle of their place, as meeteval does by
    default; words of the transcript that have times are joined into segments where a speaker pauses no longer than half
    a second."""
    return _score(files, partial(_timed_errors, collar=collar), normalizer, spelling, {"collar": collar})


def segments_of(transcript: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Segments by speaker, `{"speaker", "start", "end", "text"}`, of a transcript in the project's JSON. Of its `words`
    where it has them: words of one speaker in a row, until a pause or until another one speaks. Else its `segments`.
    Words and segments without a speaker belong to one of their own, without a name."""
    if not transcript.get("words"):
        return [{**s, "speaker": s.get("speaker") or ""} for s in transcript.get("segments") or ()]
    turns: list[dict[str, Any]] = []
    for word in transcript["words"]:
        speaker = word.get("speaker") or ""
        last = turns[-1] if turns else None
        if last and last["speaker"] == speaker and word["start"] - last["end"] <= PAUSE:
            last["text"] += f" {word['word']}"
            last["end"] = max(last["end"], word["end"])
        else:
            turns.append({"speaker": speaker, "start": word["start"], "end": word["end"], "text": word["word"]})
    return turns


def by_letters(units: Sequence[str], start: float, end: float) -> list[tuple[str, float, float]]:
    """(word, start, end) of words said between two times, each as long as it has letters."""
    ends = list(accumulate(map(len, units), initial=0))
    scale = (end - start) / max(ends[-1], 1)
    return [(unit, start + scale * a, start + scale * b) for unit, (a, b) in zip(units, pairwise(ends), strict=True)]


def _score(
    files: Sequence[Attributed], measure: Measure, normalizer: str, spelling: str | None, settings: dict[str, Any]
) -> Score:
    rows, likes = [], [" ".join(str(segment.get("text")) for segment in file.reference) for file in files]
    for file, like in zip(files, likes):
        reference = _streams(file, file.reference, normalizer, spelling, like)
        hypothesis = _streams(file, segments_of(file.hypothesis), normalizer, spelling, like)
        counts = _assigned(list(reference.values()), list(hypothesis.values()), measure)
        missed = len(reference) - len(hypothesis)
        total = sum(map(len, reference.values()))
        rows.append([sum(counts), total, *counts, len(reference), max(missed, 0), max(-missed, 0)])
    table = np.array(rows, dtype=np.int64).reshape(-1, 8)
    low, high = rate_interval(table[:, 0], table[:, 1], insertions=int(table[:, 4].sum()))
    names = (
        *("substitutions", "deletions", "insertions"),
        "scored_speakers",
        "missed_speakers",
        "false_alarm_speakers",
    )
    wrong, total, *sums = map(int, table.sum(0))
    details = {"items": len(rows), **dict(zip(names, sums, strict=True)), "normalizer": normalizer, **settings}
    details |= counted_in(likes, [file.language for file in files])
    return Score(wrong / max(total, 1), wrong, total, low, high, details)


def _assigned(reference: list[Any], hypothesis: list[Any], measure: Measure) -> tuple[int, int, int]:
    """The lowest counts of `measure` over assignments of speakers. Unassigned speakers count in full."""
    from scipy.optimize import linear_sum_assignment

    most = max(len(reference), len(hypothesis))
    reference, hypothesis = (side + [[]] * (most - len(side)) for side in (reference, hypothesis))
    counts = np.array([[measure(a, b) for b in hypothesis] for a in reference]).reshape(most, most, 3)
    rows, columns = linear_sum_assignment(counts.sum(2))
    substitutions, deletions, insertions = map(int, counts[rows, columns].sum(0))
    return substitutions, deletions, insertions


def _errors(reference: Stream, hypothesis: Stream) -> tuple[int, int, int]:
    sides = [word for word, *_ in reference], [word for word, *_ in hypothesis]
    substitutions, deletions, insertions, _ = map(int, count_errors([sides])[0])
    return substitutions, deletions, insertions


def _timed_errors(reference: Stream, hypothesis: Stream, collar: float) -> tuple[int, int, int]:
    """Levenshtein distance in which words are paired only where their times, the collar around them, overlap."""
    # Whole numbers of `error` are errors, and what is left are substitutions: they are fewest among the best.
    error = len(reference) + len(hypothesis) + 1
    insertions = error * np.arange(len(hypothesis) + 1)
    texts = np.array([word for word, *_ in hypothesis], dtype=object)
    middles = np.array([(start + end) / 2 for _, start, end in hypothesis])
    row = insertions
    for word, start, end in reference:
        near = (start < middles + collar) & (end > middles - collar)
        pair = np.where(near, np.where(texts == word, 0, error + 1), 2 * error + 1)
        row = np.concatenate([row[:1] + error, np.minimum(row[:-1] + pair, row[1:] + error)])
        row = np.minimum.accumulate(row - insertions) + insertions
    errors, substitutions = divmod(int(row[-1]), error)
    inserted = (errors - substitutions + len(hypothesis) - len(reference)) // 2
    return substitutions, errors - substitutions - inserted, inserted


def _streams(
    file: Attributed, segments: Sequence[Mapping[str, Any]], normalizer: str, spelling: str | None, like: str
) -> dict[str, Stream]:
    """The words of each speaker after the normaliser. Speakers without words are left out."""
    streams: dict[str, Stream] = {}
    for segment in sorted(segments, key=lambda s: s["start"]):
        if missing := next((key for key in ("speaker", "text") if segment.get(key) is None), None):
            raise DataError(
                f"{file.id}: the segment at {segment['start']:g} s has no {missing}; cpWER needs `segments` with "
                "`speaker` and `text`."
            )
        text = normalize(segment["text"], normalizer, file.language, spelling)
        if units := words(text, file.language, like):
            streams.setdefault(str(segment["speaker"]), []).extend(by_letters(units, segment["start"], segment["end"]))
    return streams


def confused(recordings: Iterable[Sequence[tuple[str | None, str | None]]]) -> Score:
    """Share of words with another speaker than in the reference: of each recording (speaker, speaker in the reference)
    of its words, where the names of one are those of the other that agree most. A word without a speaker in the
    reference is not counted."""
    from scipy.optimize import linear_sum_assignment

    wrong = total = 0
    for pairs in recordings:
        pairs = [pair for pair in pairs if pair[1] is not None]
        if not pairs:
            continue
        sides = [list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1)]
        counts = np.zeros([len(names) for names in sides], int)
        for a, b in pairs:
            counts[sides[0].index(a), sides[1].index(b)] += a is not None
        wrong += len(pairs) - int(counts[linear_sum_assignment(counts, maximize=True)].sum())
        total += len(pairs)
    return Score(wrong / max(total, 1), wrong, total)
