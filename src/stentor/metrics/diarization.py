"""Diarization metrics against a reference: diarization error rate, Jaccard error rate, number of speakers, frame F1.

The definitions are those of pyannote.metrics (Bredin 2017, "pyannote.metrics: a toolkit for reproducible evaluation,
diagnostic, and error analysis of speaker diarization systems"), with which the tests compare. Segments of one speaker
that overlap or touch are merged first, on both sides. Only what lies in the UEM is scored.

A rate is corpus-level: all wrong seconds over all seconds of reference speech. A file without reference speech adds its
false alarms to the errors and nothing to the total. When a whole set has none, rates of errors are 0 if nothing was
raised falsely and 1 if anything was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stentor.metrics.score import Direction, Score, bootstrap, rate_interval

DIRECTIONS: dict[str, Direction] = {
    "der": "min",
    "der_collar": "min",
    "der_no_overlap": "min",
    "jer": "min",
    "speaker_count": "max",
    "frame_f1": "max",
}
"""Metrics of `scores`, the main one first."""
OF_SPEAKERS = ("der_no_overlap", "jer", "speaker_count")
"""Metrics that only labels of speakers have."""
COLLAR = 0.25
"""Seconds to either side of a boundary that `der_collar` leaves out: NIST's."""
SHORTEST = 1e-6
"""Seconds of speech that make a speaker: less is rounding."""
WORST = 20
"""Files that are listed as the worst."""
KINDS = ("missed", "false alarm", "confused")
"""Kinds of errors."""


@dataclass(frozen=True)
class DiarizedRecording:
    """One recording with reference and hypothesis; times are seconds from its start."""

    id: str
    reference: Sequence[Mapping[str, Any]]
    """`{"speaker", "start", "end"}`; other keys are ignored."""
    hypothesis: Sequence[Mapping[str, Any]]
    uem: Sequence[Sequence[float]] | None = None
    """The parts that are scored, [start, end] each; None for all of it."""
    duration: float = 0.0
    """Length of the recording."""
    _errors: dict[tuple[float, bool, bool], Errors] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def compared(self) -> Comparison:
        """Reference and hypothesis, all of the UEM scored."""
        return compare(self.reference, self.hypothesis, self.uem, self.duration)

    @cached_property
    def speakers(self) -> tuple[int, int]:
        """Number of speakers of reference and hypothesis, within what is scored."""
        lengths = self.compared.scored * np.diff(self.compared.edges)
        reference, hypothesis = (
            int((active @ lengths > SHORTEST).sum()) for active in (self.compared.active, self.compared.output_active)
        )
        return reference, hypothesis

    def errors(self, collar: float, skip_overlap: bool, speaker_labels: bool) -> Errors:
        """See the function `errors`."""
        key = (collar, skip_overlap, speaker_labels)
        if key not in self._errors:
            result = compare(self.reference, self.hypothesis, self.uem, self.duration, *key)
            missed, false_alarm, confused = (result.seconds(kind) for kind in KINDS)
            correct = result.total - missed - confused
            self._errors[key] = Errors(self.id, result.total, missed, false_alarm, confused, correct, self.speakers[0])
        return self._errors[key]


@dataclass
class Comparison:
    """Active speakers between neighbouring boundaries, and the errors there."""

    edges: np.ndarray
    """All times at which something begins or ends, float64 [E + 1]."""
    names: list[str]
    output_names: list[str]
    pairs: dict[str, str]
    """Name in the reference by name in the answer, of those that are matched."""
    active: np.ndarray
    """Active speakers of the reference, bool [R, E]."""
    output_active: np.ndarray
    """Active speakers of the answer, bool [K, E]."""
    wrong: dict[str, np.ndarray]
    """Number of missed, falsely raised and confused speakers, int64 [E], 0 beyond the UEM."""
    scored: np.ndarray
    """bool [E]."""

    def seconds(self, kind: str, begin: float = -np.inf, end: float = np.inf) -> float:
        """Speaker seconds of one of `KINDS` between two times."""
        lengths = np.clip(self.edges[1:], begin, end) - np.clip(self.edges[:-1], begin, end)
        return float(self.wrong[kind] @ lengths)

    def errors(self, begin: float = -np.inf, end: float = np.inf) -> float:
        return sum(self.seconds(kind, begin, end) for kind in KINDS)

    @property
    def total(self) -> float:
        """Seconds of speech in the reference, each speaker's counted."""
        return float((self.active.sum(0) * self.scored) @ np.diff(self.edges))

    def jaccard_errors(self) -> list[float]:
        """1 minus the Jaccard index of each speaker of the reference who is scored."""
        lengths = self.scored * np.diff(self.edges)
        of = {name: self.output_active[self.output_names.index(other)] for other, name in self.pairs.items()}
        nothing = np.zeros(len(lengths), bool)
        return [
            1 - float(((row & of.get(name, nothing)) @ lengths) / ((row | of.get(name, nothing)) @ lengths))
            for name, row in zip(self.names, self.active, strict=True)
            if row @ lengths > SHORTEST
        ]


def compare(
    reference: Sequence[Mapping[str, Any]],
    output: Sequence[Mapping[str, Any]],
    uem: Sequence[Sequence[float]] | None,
    seconds: float,
    collar: float = 0.0,
    skip_overlap: bool = False,
    speaker_labels: bool = True,
) -> Comparison:
    """Match the speakers and find what is wrong, and where; the other parameters are those of `der`."""
    names, output_names = ([*dict.fromkeys(str(s["speaker"]) for s in side)] for side in (reference, output))
    times = {0.0, float(seconds), *(float(t) for s in (*reference, *output) for t in (s["start"], s["end"]))}
    edges = np.array(sorted(times | {float(t) for span in uem or () for t in span}))

    def rows(side: Sequence[Mapping[str, Any]], speakers: Sequence[str]) -> np.ndarray:
        active = [
            _covered(edges, ((s["start"], s["end"]) for s in side if str(s["speaker"]) == name)) for name in speakers
        ]
        return np.array(active, bool).reshape(len(speakers), len(edges) - 1)

    active, output_active = rows(reference, names), rows(output, output_names)
    scored = np.ones(len(edges) - 1, bool) if uem is None else _covered(edges, uem)
    if collar:
        boundaries = edges[np.diff(active.astype(np.int8), axis=1, prepend=0, append=0).any(0)]
        around = np.clip(np.stack([boundaries - collar, boundaries + collar], 1), edges[0], edges[-1])
        finer = np.union1d(edges, around)
        cells = np.searchsorted(edges, finer[:-1], side="right") - 1
        edges, active, output_active = finer, active[:, cells], output_active[:, cells]
        scored = scored[cells] & ~_covered(edges, around)
    if skip_overlap:
        scored &= active.sum(0) < 2
    matched = _matched((active * scored * np.diff(edges)) @ output_active.T, names, output_names, speaker_labels)
    right = sum((active[i] & output_active[j] for i, j in matched), np.zeros(len(edges) - 1, np.int64))
    count, output_count = active.sum(0), output_active.sum(0)
    wrong = {
        "missed": np.maximum(count - output_count, 0) * scored,
        "false alarm": np.maximum(output_count - count, 0) * scored,
        "confused": (np.minimum(count, output_count) - right) * scored,
    }
    pairs = {output_names[j]: names[i] for i, j in matched}
    return Comparison(edges, names, output_names, pairs, active, output_active, wrong, scored)


def _covered(edges: np.ndarray, spans: Iterable[Sequence[float]]) -> np.ndarray:
    """Mask of the cells between the edges that lie in one of the spans, whose ends are edges."""
    change = np.zeros(len(edges), np.int64)
    for start, end in spans:
        change[np.searchsorted(edges, start)] += 1
        change[np.searchsorted(edges, end)] -= 1
    return np.cumsum(change)[:-1] > 0


def _matched(
    common: np.ndarray, names: Sequence[str], output_names: Sequence[str], speaker_labels: bool
) -> list[tuple[int, int]]:
    """Pairs of rows: those with most seconds in common, or those of the same name."""
    if not speaker_labels:
        return [(names.index(name), j) for j, name in enumerate(output_names) if name in names]
    from scipy.optimize import linear_sum_assignment

    pairs = zip(*linear_sum_assignment(common, maximize=True), strict=True)
    return [(int(i), int(j)) for i, j in pairs if common[i, j] > 0]


@dataclass
class Errors:
    """Components of the diarization error rate of one recording: seconds of speech, each speaker's counted."""

    id: str
    total: float
    """In the reference."""
    miss: float
    """Not detected at all."""
    false_alarm: float
    """Regions where the reference has no speaker, or fewer."""
    confusion: float
    """Attributed to another speaker."""
    correct: float
    speakers: int = 0
    """Speakers of the reference who are scored."""

    @property
    def wrong(self) -> float:
        return self.miss + self.false_alarm + self.confusion

    @property
    def parts(self) -> dict[str, float]:
        """Components of the rate, by their names in the details of a score."""
        return {"miss": self.miss, "false_alarm": self.false_alarm, "confusion": self.confusion, "total": self.total}


def scores(files: Sequence[DiarizedRecording], speaker_labels: bool = True) -> dict[str, Score]:
    """All metrics of a set; the first is the main one.

    * `der`: diarization error rate, no collar, overlap scored; `der_collar`: with 0.25 s left out to either side of
      each boundary of the reference; `der_no_overlap`: without what several say at once, no collar.
    * `jer`: Jaccard error rate, in which each speaker weighs the same.
    * `speaker_count`: share of recordings in which the number of speakers is right.
    * `frame_f1`: F1 of each speaker's activity, see `frame_f1`.

    With `speaker_labels` false the labels are no speakers but say what they mean (`speech`, `overlap`): they are
    compared by name, and what is about speakers is left out (`der_no_overlap`, `jer`, `speaker_count`). `low` and
    `high` are percentiles of a bootstrap over recordings with a fixed seed.
    """
    collars = {"der": 0.0, "der_collar": COLLAR}
    results = {name: der(files, collar, speaker_labels=speaker_labels) for name, collar in collars.items()}
    if speaker_labels:
        results["der_no_overlap"] = der(files, skip_overlap=True)
        results["jer"] = jer(files)
        results["speaker_count"] = speaker_count(files)
    return results | {"frame_f1": frame_f1(files, speaker_labels)}


def errors(
    files: Sequence[DiarizedRecording], collar: float = 0.0, skip_overlap: bool = False, speaker_labels: bool = True
) -> list[Errors]:
    """The seconds that `der` is made of, of each recording."""
    return [f.errors(collar, skip_overlap, speaker_labels) for f in files]


def der(
    files: Sequence[DiarizedRecording], collar: float = 0.0, skip_overlap: bool = False, speaker_labels: bool = True
) -> Score:
    """Diarization error rate: missed, falsely raised and confused seconds over seconds of reference speech.

    Speakers are matched one to one, in each recording, so that most seconds are right. `collar` seconds to either side
    of each boundary of the reference are left out (pyannote's collar is twice as much: the width of the gap), with
    `skip_overlap` also where the reference has several speakers. Details, in seconds: `miss`, `false_alarm`,
    `confusion`, `total`; the same as shares of the total: `miss_rate`, `false_alarm_rate`, `confusion_rate`; by number
    of speakers of the reference; the worst recordings.
    """
    rows = errors(files, collar, skip_overlap, speaker_labels)
    score = _ratio([e.wrong for e in rows], [e.total for e in rows])
    sums = {part: sum(e.parts[part] for e in rows) for part in ("miss", "false_alarm", "confusion", "total")}
    score.details = {
        "items": len(rows),
        "collar": collar,
        "overlap": not skip_overlap,
        **{part: round(seconds, 3) for part, seconds in sums.items()},
        **{
            f"{part}_rate": seconds / sums["total"]
            for part, seconds in sums.items()
            if part != "total" and sums["total"]
        },
    }
    groups = sorted({e.speakers for e in rows})
    if speaker_labels and len(groups) > 1:
        score.details["by_speakers"] = {
            str(speakers): {"value": _value(sum(e.wrong for e in part), sum(e.total for e in part)), "items": len(part)}
            for speakers in groups
            for part in ([e for e in rows if e.speakers == speakers],)
        }
    worst = sorted((e for e in rows if e.wrong), key=lambda e: (-e.wrong, e.id))[:WORST]
    score.details["worst"] = [
        {"id": e.id, "value": _value(e.wrong, e.total), **{part: round(s, 3) for part, s in e.parts.items()}}
        for e in worst
    ]
    return score


def jer(files: Sequence[DiarizedRecording]) -> Score:
    """Jaccard error rate (Ryant et al. 2019, second DIHARD challenge): the mean over all speakers of the set of 1 minus
    the Jaccard index of when they speak and when their counterpart does. No collar, overlap scored."""
    parts = [f.compared.jaccard_errors() for f in files]
    above, below = [sum(part) for part in parts], [len(part) for part in parts]
    if not sum(below):  # no speaker in the reference: nothing is wrong unless the hypothesis has some
        above = [float(f.speakers[1] > 0) for f in files]
    score = _ratio(above, below)
    score.details = {"items": len(parts), "speakers": int(sum(below))}
    return score


def speaker_count(files: Sequence[DiarizedRecording]) -> Score:
    """Share of recordings whose number of speakers is right, within the UEM. Details: `mean_error`, the mean distance
    from the right number, and how often which number was given for which."""
    counts = [f.speakers for f in files]
    right = [reference == hypothesis for reference, hypothesis in counts]
    score = _ratio(right, [1] * len(counts))
    if not counts:
        score.value = math.nan
    score.errors, score.total = len(counts) - sum(right), len(counts)
    score.details = {
        "mean_error": sum(abs(reference - hypothesis) for reference, hypothesis in counts) / max(len(counts), 1),
        "counts": [
            {"reference": reference, "hypothesis": hypothesis, "items": counts.count((reference, hypothesis))}
            for reference, hypothesis in sorted(set(counts))
        ],
    }
    return score


def frame_f1(files: Sequence[DiarizedRecording], speaker_labels: bool = True) -> Score:
    """F1 of each speaker's activity in frames, of no length: twice the right seconds over those of both sides. Speakers
    are matched as for `der`, no collar, overlap scored. 1 when there is no speech on either side."""
    rows = errors(files, speaker_labels=speaker_labels)
    both = [e.total + e.correct + e.confusion + e.false_alarm for e in rows]
    score = _ratio([2 * e.correct for e in rows], both)
    if not sum(both):
        score.value = score.low = score.high = 1.0
    hypothesis = sum(e.correct + e.confusion + e.false_alarm for e in rows)
    right, total = sum(e.correct for e in rows), sum(e.total for e in rows)
    score.details = {
        "items": len(rows),
        "precision": right / hypothesis if hypothesis else 1.0,
        "recall": right / total if total else 1.0,
    }
    return score


def relative_change(before: Sequence[DiarizedRecording], after: Sequence[DiarizedRecording]) -> Score | None:
    """Relative change of `der` between two systems on the same recordings in the same order: -0.25 is a quarter less.
    The interval resamples recordings with both systems' errors together (paired bootstrap). None when `before` makes no
    error."""
    first, second = (np.array([e.wrong for e in errors(files)]) for files in (before, after))
    if not first.sum():
        return None
    low, high = bootstrap(second - first, first, ratio=_ratios)
    return Score(float((second - first).sum() / first.sum()), low=low, high=high, details={"items": len(first)})


def _value(above: float, below: float) -> float:
    return above / below if below else float(above > 0)


def _ratio(above: Sequence[float], below: Sequence[float]) -> Score:
    """`sum(above) / sum(below)` with its interval; one of each per recording."""
    sums = np.asarray(above, np.float64), np.asarray(below, np.float64)
    low, high = rate_interval(*sums, trials=len(above), ratio=_ratios)
    return Score(_value(float(sum(above)), float(sum(below))), low=low, high=high)


def _ratios(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """`above / below`, which may be any real numbers; where `below` is 0: 0 or, with anything above it, 1."""
    return np.where(below > 0, above / np.where(below > 0, below, 1), above > 0)
