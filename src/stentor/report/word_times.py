"""Word times in the report: how large the errors are, and examples drawn over their spectrograms."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from stentor.metrics.format import figure
from stentor.metrics.word_match import Match, Matches, has_times, match
from stentor.metrics.word_time import TOLERANCES
from stentor.report.sounds import RATE, SoundBudget, data_url, samples_of, wav
from stentor.report.svg import SIZE, Span, Tick, span

STRETCH = 6.0
"""Seconds that a drawing shows at most."""
NEAR = 50.0
"""Milliseconds; words with both boundaries so near are drawn as right."""
WORST = 4
TYPICAL = 4
INSIDE = 0.95
"""Share of the errors that the histogram shows; it ends at the next of `ENDS`."""
ENDS = (20, 50, 100, 200)
"""Milliseconds."""
BARS = 40
"""Bins of the histogram."""


Item = tuple[Mapping[str, Any], Matches]
"""A prediction with its matched words."""


@dataclass
class Drawing:
    """A stretch of a recording with the words of the reference above it and those of the model below."""

    begin: float
    """Seconds in the recording, of the stretch."""
    end: float
    ticks: list[Tick]
    id: str = ""
    speaker: str | None = None
    complete: bool = False
    """Whether the stretch is all of the recording."""
    mean: str = ""
    verdict: str = ""
    far: int = 0
    references: list[Span] = field(default_factory=list)
    """Words, of the kind right or other."""
    outputs: list[Span] = field(default_factory=list)
    """Words, of the kind right, near (matched, both boundaries within `NEAR`), far (matched) or other (not matched)."""
    reference_lines: str = ""
    """SVG path of the boundaries, in the upper half of a unit box."""
    output_lines: str = ""
    """The same in the lower half: where they agree, the two make one line."""
    picture: str = ""
    """Data URL of the spectrogram; empty when the sound cannot be had."""
    sound: str = ""
    """Data URL of the stretch."""


@dataclass
class Histogram:
    """Signed errors of starts and of ends."""

    starts: str
    """SVG path of the bars."""
    ends: str
    xticks: list[Tick]
    yticks: list[Tick]
    outside: str
    bias: str
    summary: str


@dataclass
class Calibration:
    """Confidence against the share of words that are right."""

    bars: str
    """SVG path of the shares."""
    dots: str
    """Mean confidence and share of each bin."""
    ece: str
    summary: str


@dataclass
class WordTimes:
    """One evaluation set's word times."""

    name: str
    rows: list[tuple[str, str, str]]
    """Boundary; median and mean of its absolute error."""
    shares: list[tuple[str, str, str]]
    """Tolerance; boundaries within it, F1 with it as collar."""
    facts: str
    histogram: Histogram | None
    calibration: Calibration | None
    worst: list[Drawing] = field(default_factory=list)
    typical: list[Drawing] = field(default_factory=list)


def word_times(
    name: str, scores: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], budget: SoundBudget
) -> WordTimes:
    """Word times of an evaluation set. `scores` are those of `stentor.metrics.word_time.score` as dicts, `rows` the
    predictions."""
    details = scores["word_time_mean_ms"]["details"]

    def value(metric: str) -> str:
        return figure(metric, scores[metric]["value"])

    view = WordTimes(
        name=name,
        rows=[
            (label, value(f"{key}_median_ms"), value(f"{key}_mean_ms"))
            for label, key in (("starts", "word_start"), ("ends", "word_end"), ("both", "word_time"))
        ],
        shares=[(f"{t} ms", value(f"within_{t}ms"), value(f"word_f1_{t}ms")) for t in TOLERANCES],
        facts=f"{details['boundaries']:,} boundaries of {details['matched_words']:,} matched words; "
        f"{value('words_matched')} of the {details['reference_words']:,} reference words are matched",
        histogram=None,
        calibration=calibration(scores["ece"]) if scores["ece"]["value"] is not None else None,
    )
    items = [(row, _matched(row, details["normalizer"])) for row in rows]
    starts, ends = ([e for _, m in items for e in m.errors(slot)] for slot in ("start", "end"))
    if starts or ends:
        view.histogram = histogram(starts, ends)
    worst, typical = _choose(items)
    # In turns, so that both kinds get pictures when the budget ends early.
    for i in range(max(len(worst), len(typical))):
        for chosen, drawn, focused in ((worst, view.worst, True), (typical, view.typical, False)):
            if i < len(chosen):
                drawn.append(draw(*chosen[i], focused, budget))
    return view


# Figures --------------------------------------------------------------------------------------------------------------


def histogram(starts: Sequence[float], ends: Sequence[float]) -> Histogram:
    """Histogram of signed errors in ms, over the middle range that holds nearly all of them."""
    errors = {"start": starts, "end": ends}
    total = len(starts) + len(ends)
    limit = next((end for end in ENDS if sum(-end <= e < end for e in (*starts, *ends)) >= INSIDE * total), ENDS[-1])
    counts = {slot: [0] * BARS for slot in errors}
    for slot, values in errors.items():
        for e in values:
            if -limit <= e < limit:
                counts[slot][int((e + limit) * BARS / (2 * limit))] += 1
    top = _round_up(max(map(max, counts.values())) or 1)
    step = SIZE / BARS

    def bars(slot: str, shift: float) -> str:
        return "".join(
            f"M{(i + shift) * step:.1f} {SIZE}v{-SIZE * n / top:.1f}h{0.42 * step:.1f}V{SIZE}z"
            for i, n in enumerate(counts[slot])
            if n
        )

    out = {slot: len(values) - sum(counts[slot]) for slot, values in errors.items()}
    lost = f"starts beyond ±{limit} ms: {out['start']:,}, ends: {out['end']:,}"
    bias = "; ".join(
        f"{slot}s are {abs(median(values)):.1f} ms {'late' if median(values) > 0 else 'early'} in the median"
        for slot, values in errors.items()
        if values
    )
    ticks = [round(-limit + i * limit / 2) for i in range(5)]
    return Histogram(
        starts=bars("start", 0.06),
        ends=bars("end", 0.52),
        xticks=[Tick(50 + 50 * t / limit, f"{'+' if t > 0 else '−' if t < 0 else ''}{abs(t)}") for t in ticks],
        yticks=[Tick(100 * share, f"{round(top * share):,}") for share in (0, 0.5, 1)],
        outside=lost if sum(out.values()) else "",
        bias=bias,
        summary=f"Histogram of signed errors from −{limit} to +{limit} ms. {bias}. {lost}.",
    )


def calibration(score: Mapping[str, Any]) -> Calibration:
    """Shares of right words by confidence, from the bins of `stentor.metrics.word_time`."""
    bins = [b for b in score["details"]["bins"] if b["words"]]
    width = SIZE / len(score["details"]["bins"])
    bars = "".join(
        f"M{SIZE * b['low'] + 6:.0f} {SIZE}v{-SIZE * b['accuracy']:.1f}h{width - 12:.0f}V{SIZE}z" for b in bins
    )
    dots = "".join(f"M{SIZE * b['confidence']:.1f} {SIZE - SIZE * b['accuracy']:.1f}h0" for b in bins)
    sentence = "; ".join(f"{100 * b['confidence']:.0f} %: {100 * b['accuracy']:.0f} %" for b in bins)
    return Calibration(bars, dots, figure("ece", score["value"]), f"Confidence and share of right words: {sentence}.")


def _round_up(count: int) -> int:
    """The next even number of at most two digits and zeros."""
    scale = 10 ** max(0, len(str(count)) - 2)
    top = -(-count // scale) * scale
    return top + scale * (top // scale % 2)


# Drawings -------------------------------------------------------------------------------------------------------------


def draw(row: Mapping[str, Any], matches: Matches, focused: bool, budget: SoundBudget) -> Drawing:
    """One prediction; `focused` on its largest error, else from its first word."""
    begin, end = _stretch(float(row["seconds"]), matches, focused)
    length = end - begin
    of_reference = {id(w): m for m in matches.pairs for w in m.reference}
    of_output = {id(w): m for m in matches.pairs for w in m.hypothesis}

    def boxed(word: Mapping[str, Any], kind: str, note: str) -> Span:
        title = f"{word['word']}: {word['start']:.3f}–{word['end']:.3f} s{note}"
        box = span(word["start"], word["end"], (begin, end), title, kind, word["word"])
        return replace(
            box, start=max(box.start, begin) - begin, end=min(box.end, end) - begin
        )  # its sound is the stretch

    def shown(words: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [w for w in words if has_times(w) and w["start"] < end and w["end"] > begin]

    references = [boxed(w, "right" if id(w) in of_reference else "other", "") for w in shown(matches.reference)]
    outputs = [boxed(w, *_judged(w, of_output.get(id(w)))) for w in shown(matches.hypothesis)]
    errors = [abs(e) for e in matches.errors()]
    far = sum(e > NEAR for e in errors)
    missed = len(matches.reference) - sum(len(m.reference) for m in matches.pairs)
    verdict = f"all {len(errors)} boundaries within {NEAR:.0f} ms"
    if far:
        verdict = f"{far} of {len(errors)} boundaries more than {NEAR:.0f} ms off"
    if missed:
        verdict += f", {missed} word{'s' if missed > 1 else ''} not found"
    tick = 0.5 if length > 2 else 0.2
    drawing = Drawing(
        id=str(row["id"]),
        speaker=(row.get("record") or {}).get("speaker"),
        begin=begin,
        end=end,
        complete=length >= float(row["seconds"]) - 1e-3,
        mean=figure("mean_ms", sum(errors) / len(errors)),
        verdict=verdict,
        far=far + missed,
        references=references,
        outputs=outputs,
        reference_lines=lines(references, 0, SIZE // 2),
        output_lines=lines(outputs, SIZE // 2, SIZE),
        ticks=[Tick(100 * i * tick / length, f"{begin + i * tick:.1f}") for i in range(int(length / tick) + 1)],
    )
    recording = samples_of(row.get("record") or {})
    samples = None if recording is None else recording[round(begin * RATE) : round(end * RATE)]
    if samples is not None and len(samples):
        from stentor.report.spectrogram import png, spectrogram

        picture, sound = png(spectrogram(samples, RATE)), wav(samples)
        if budget.take(picture, sound):
            drawing.picture, drawing.sound = data_url("image/png", picture), data_url("audio/wav", sound)
    return drawing


def lines(boxes: Sequence[Span], top: int, bottom: int) -> str:
    """SVG path of the boundaries of words, from `top` to `bottom` of a box of `SIZE`."""
    edges = sorted({round(x, 1) for b in boxes for x in (b.left, b.left + b.width)})
    return "".join(f"M{x:g} {top}V{bottom}" for x in edges)


def _choose(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """The items with the largest mean error (worst first), and others drawn by a hash of their ids."""
    timed = [(sum(map(abs, errors)) / len(errors), row, m) for row, m in items if (errors := m.errors())]
    timed.sort(key=lambda item: (-item[0], str(item[1]["id"])))
    worst, rest = timed[:WORST], timed[WORST:]
    rest.sort(key=lambda item: hashlib.blake2b(str(item[1]["id"]).encode()).digest())
    return [item[1:] for item in worst], [item[1:] for item in rest[:TYPICAL]]


def _matched(row: Mapping[str, Any], normalizer: str) -> Matches:
    reference = row["reference"]
    return match(reference["words"], row["output"]["words"], normalizer, reference.get("language"))


def _stretch(seconds: float, matches: Matches, focused: bool) -> tuple[float, float]:
    """Begin and end in seconds of what is drawn."""
    if seconds <= STRETCH:
        return 0.0, seconds
    if focused:
        worst = max((m for m in matches.pairs if m.worst), key=lambda m: m.worst, default=matches.pairs[0])
        words = [w for w in (*worst.reference, *worst.hypothesis) if has_times(w)]
        middle = (min(w["start"] for w in words) + max(w["end"] for w in words)) / 2 if words else 0.0
        begin = middle - STRETCH / 2
    else:
        begin = min((w["start"] for w in matches.reference if has_times(w)), default=0.0) - 0.3
    begin = min(max(begin, 0.0), seconds - STRETCH)
    return begin, begin + STRETCH


def _judged(word: Mapping[str, Any], match: Match | None) -> tuple[str, str]:
    """Kind of an output word and what its title says about it."""
    sure = f", confidence {word['confidence']:.2f}" if "confidence" in word else ""
    if match is None:
        return "other", f", not in the reference{sure}"
    if match.start_error is None or match.end_error is None:
        return "right", f", reference without time{sure}"
    errors = f", start {match.start_error:+.0f} ms, end {match.end_error:+.0f} ms"
    return "near" if match.within(NEAR) else "far", errors + sure
