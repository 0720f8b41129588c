"""Word error rates of speaker-attributed transcripts: cpWER and tcpWER, by meeteval.

cpWER (Watanabe et al. 2020, CHiME-6) joins what each speaker says, in order of time, and takes the assignment of
speakers with the fewest word errors: it counts wrong words and wrong speakers alike. tcpWER (von Neumann et al. 2023,
MeetEval) pairs words only where their times are at most a collar apart. Both are corpus-level: all errors over all
reference words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stentor.errors import ConfigError, DataError
from stentor.metrics.score import Score
from stentor.metrics.wer import rate_interval
from stentor.text.normalize import normalize, words

PAUSE = 0.5
"""Seconds between two words of a speaker that begin a new segment, whose words are timed by their letters."""
MOST_SPEAKERS = 20
"""meeteval refuses more on either side."""
COLLAR = 5.0
"""Seconds: meeteval's recommendation for times of segments, and CHiME's."""


@dataclass
class Attributed:
    """One recording: the reference by speaker, and a transcript with a speaker for each word."""

    id: str
    reference: Sequence[Mapping[str, Any]]
    """`{"speaker", "start", "end", "text"}`, seconds."""
    hypothesis: Mapping[str, Any]
    """A transcript (`stentor transcribe --diarizer ... --format json`): its `words`, or else its `segments`."""
    language: str | None = None


def cpwer(files: Sequence[Attributed], normalizer: str = "whisper_basic", spelling: str | None = None) -> Score:
    """Concatenated minimum-permutation word error rate, after `normalizer` as for the plain word error rate.

    Details: `substitutions`, `deletions`, `insertions`; speakers that are matched (`scored_speakers`), that have no
    counterpart in the transcript (`missed_speakers`) or in the reference (`false_alarm_speakers`). `low` and `high`
    come from a bootstrap over recordings. A reference without words adds its insertions to the errors and nothing to
    the total. Raises ConfigError when meeteval is not installed, DataError when a reference has no text or no speakers
    or there are more than 20 of them.
    """
    wer = _meeteval()
    return _score(files, wer.cp_word_error_rate, normalizer, spelling, {})


def tcpwer(
    files: Sequence[Attributed], collar: float = COLLAR, normalizer: str = "whisper_basic", spelling: str | None = None
) -> Score:
    """Time-constrained `cpwer`: words are paired only when at most `collar` seconds lie between them. Words of a
    segment are placed by their letters, as meeteval does by default; words of the transcript that have times are joined
    into segments where a speaker pauses no longer than half a second."""
    wer = _meeteval()
    measure = partial(wer.time_constrained_minimum_permutation_word_error_rate, collar=collar)
    return _score(files, measure, normalizer, spelling, {"collar": collar})


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


def _score(files: Sequence[Attributed], measure: Any, normalizer: str, spelling: str | None, settings: dict) -> Score:
    from meeteval.io import SegLST

    kinds = ("substitutions", "deletions", "insertions", "scored_speaker", "missed_speaker", "falarm_speaker")
    rows = []
    for file in files:
        reference = list(_seglst(file, file.reference, normalizer, spelling))
        hypothesis = list(_seglst(file, segments_of(file.hypothesis), normalizer, spelling))
        for side, segments in (("reference", reference), ("transcript", hypothesis)):
            speakers = len({s["speaker"] for s in segments})
            if speakers > MOST_SPEAKERS:
                raise DataError(f"{file.id}: the {side} has {speakers} speakers; cpWER takes up to {MOST_SPEAKERS}.")
        if reference or hypothesis:
            result = measure(SegLST(reference), SegLST(hypothesis))
            rows.append([result.errors, result.length, *(getattr(result, kind) for kind in kinds)])
        else:
            rows.append([0] * (2 + len(kinds)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 2 + len(kinds))
    low, high = rate_interval(table[:, 0], table[:, 1])
    names = (*kinds[:3], "scored_speakers", "missed_speakers", "false_alarm_speakers")
    wrong, total, *sums = map(int, table.sum(0))
    details = {"items": len(rows), **dict(zip(names, sums)), "normalizer": normalizer, **settings}
    return Score(wrong / max(total, 1), wrong, total, low, high, details)


def _seglst(
    file: Attributed, segments: Sequence[Mapping[str, Any]], normalizer: str, spelling: str | None
) -> Iterator[dict[str, Any]]:
    """Segments as meeteval takes them, those that are empty after the normaliser left out."""
    for segment in segments:
        if missing := next((key for key in ("speaker", "text") if segment.get(key) is None), None):
            raise DataError(
                f"{file.id}: the segment at {segment['start']:g} s has no {missing}; cpWER needs `segments` with "
                "`speaker` and `text`."
            )
        if units := words(normalize(segment["text"], normalizer, file.language, spelling), file.language):
            yield {
                "session_id": file.id,
                "speaker": str(segment["speaker"]),
                "words": " ".join(units),
                "start_time": segment["start"],
                "end_time": segment["end"],
            }


def _meeteval() -> Any:
    try:
        from meeteval import wer
    except ImportError:
        why = "cpWER and tcpWER need meeteval, which is not installed: `pip install 'stentor[meeting]'`."
        raise ConfigError(why) from None
    return wer
