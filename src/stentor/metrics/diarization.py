"""Diarization metrics against a reference: diarization error rate, Jaccard error rate, number of speakers, frame F1.

pyannote.metrics does the arithmetic (Bredin 2017, "pyannote.metrics: a toolkit for reproducible evaluation, diagnostic,
and error analysis of speaker diarization systems"). Segments of one speaker that overlap or touch are merged first, on
both sides: without that, somebody talking over himself would count twice. Only what lies in the UEM is scored.

A rate is corpus-level: all wrong seconds over all seconds of reference speech. A file without reference speech adds its
false alarms to the errors and nothing to the total. When a whole set has none, rates of errors are 0 if nothing was
raised falsely and 1 if anything was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.metrics.score import Score, bootstrap, rate_interval

if TYPE_CHECKING:
    from pyannote.core import Annotation, Timeline

COLLAR = 0.25
"""Seconds to either side of a boundary that `der_collar` leaves out: NIST's."""
WORST = 20
"""Files that are listed as the worst."""


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
    def annotations(self) -> tuple[Annotation, Annotation]:
        """Reference and hypothesis as pyannote.core holds them."""
        from pyannote.core import Annotation, Segment

        def annotation(segments: Sequence[Mapping[str, Any]]) -> Annotation:
            result = Annotation(uri=self.id)
            for track, segment in enumerate(segments):
                result[Segment(segment["start"], segment["end"]), track] = str(segment["speaker"])
            return result.support()  # merges what one speaker says at the same time

        return annotation(self.reference), annotation(self.hypothesis)

    @cached_property
    def scored(self) -> Timeline:
        """The parts that are scored."""
        from pyannote.core import Segment, Timeline

        spans = self.uem
        if spans is None:
            times = [(s["start"], s["end"]) for s in (*self.reference, *self.hypothesis)]
            spans = [[min([0.0, *(a for a, _ in times)]), max([self.duration, *(b for _, b in times)])]]
        return Timeline([Segment(a, b) for a, b in spans]).support()

    @cached_property
    def speakers(self) -> tuple[int, int]:
        """Number of speakers of reference and hypothesis, within what is scored."""
        reference, hypothesis = (len(a.crop(self.scored).labels()) for a in self.annotations)
        return reference, hypothesis

    def errors(self, collar: float, skip_overlap: bool, speaker_labels: bool) -> Errors:
        """See the function `errors`."""
        from pyannote.metrics.diarization import DiarizationErrorRate
        from pyannote.metrics.identification import IdentificationErrorRate

        key = (collar, skip_overlap, speaker_labels)
        if key not in self._errors:
            metric_class = DiarizationErrorRate if speaker_labels else IdentificationErrorRate
            metric = metric_class(collar=2 * collar, skip_overlap=skip_overlap)
            seconds = metric.compute_components(*self.annotations, uem=self.scored)
            total, miss, false_alarm = seconds["total"], seconds["missed detection"], seconds["false alarm"]
            confusion, correct = seconds["confusion"], seconds["correct"]
            self._errors[key] = Errors(self.id, total, miss, false_alarm, confusion, correct, self.speakers[0])
        return self._errors[key]


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
    from pyannote.metrics.diarization import JaccardErrorRate

    metric = JaccardErrorRate()
    parts = [metric.compute_components(*f.annotations, uem=f.scored) for f in files]
    above, below = [part["speaker error"] for part in parts], [part["speaker count"] for part in parts]
    if not sum(below):  # no speaker in the reference: nothing is wrong unless the hypothesis has some
        above = [float(bool(f.annotations[1].crop(f.scored))) for f in files]
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
