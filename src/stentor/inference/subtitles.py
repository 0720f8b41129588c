"""Subtitles of a transcript.

The rules are those that broadcasters share (the BBC's and Netflix' guidelines): at most two lines of 42 columns, one to
seven seconds each, slow enough to be read, cut where the speaker stops or the sentence does, with a short gap between
two, so that the eye sees them change. Wide characters (Chinese, Japanese, Korean) take two columns.

The text of a subtitle is a slice of the transcript, see `stentor.inference.timed_text`.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from stentor.inference.options import SubtitleOptions
from stentor.inference.timed_text import UNBREAKABLE, Part, columns, timed_parts

PAUSE = 1.0
"""Seconds of silence that always end a subtitle."""
FLOOR = 0.5
"""Seconds that a subtitle stays at least, where there is room: the gap between two gives way to it."""

SENTENCE_ENDS = frozenset(".?!…。？！．")
CLAUSE_ENDS = frozenset(",;:—–、，；：")
CLOSERS = "\"')]}»”’」』）】〉》"


@dataclass
class Cue:
    """One subtitle, in seconds."""

    start: float
    end: float
    parts: list[Part]
    speaker: str | None = None

    @property
    def text(self) -> str:
        """Its lines, separated by a line feed."""
        return "".join(("\n" if p.new_line else p.gap) + p.text for p in self.parts)


def cues(transcript: dict[str, Any], rules: SubtitleOptions | None = None) -> list[Cue]:
    """Subtitles in order of time.

    A subtitle begins with its first word. It stays until its last word ends, and on into the silence after it where it
    would be too short to be read. None overlap: what two speakers say at the same time shares a subtitle, a line each,
    or the time. With `rules.cues` "words" each word has its own, with the word's times, with "segments" each segment.
    Words without times share the time of their segment by their number of characters.
    """
    rules = rules or SubtitleOptions()
    parts = timed_parts(transcript)
    starts = sorted(p.start for p in parts)
    spoken: list[Cue] = []
    for name in dict.fromkeys(p.speaker for p in parts):
        own = [p for p in parts if p.speaker == name]
        others = sorted((p.start, p.end) for p in parts if p.speaker != name)
        for run in _runs(own, others, rules.cues):
            at = bisect_right(starts, run[-1].start)
            following = starts[at] if at < len(starts) else max(transcript["duration"], run[-1].end) + rules.cue_gap
            spans = _divide(run, following, rules) if rules.cues == "lines" else [(0, len(run))]
            spoken += [_cue(run[i:j], rules.max_line_width) for i, j in spans]
    return _timed(_apart(spoken, rules), transcript["duration"], rules)


def _runs(own: Sequence[Part], others: Sequence[tuple[float, float]], kind: str) -> Iterator[list[Part]]:
    """One speaker's parts, divided where a subtitle ends in any case."""

    def ends(a: Part, b: Part) -> bool:
        if kind != "lines":
            return kind == "words" or b.segment > a.segment
        at = bisect_left(others, (a.end, 0.0))
        other_turn = at < len(others) and others[at][1] <= b.start
        return b.start - a.end >= PAUSE or b.segment > a.segment + 1 or other_turn

    breaks = [i for i, (a, b) in enumerate(pairwise(own), 1) if ends(a, b)]
    for first, after in pairwise([0, *breaks, len(own)]):
        yield list(own[first:after])


def _divide(parts: Sequence[Part], following: float, rules: SubtitleOptions) -> list[tuple[int, int]]:
    """The cheapest way to make subtitles `parts[i:j]` of words without long pauses (dynamic programming).

    `following` is the time of the next word after these, or the end of the recording, in seconds.
    """
    best: list[tuple[float, int]] = [(0.0, 0)] + [(math.inf, 0)] * len(parts)
    for i in range(len(parts)):
        lines, column, total = 1, 0, 0  # when each line is filled as far as it goes
        inside = 0.0
        for j in range(i, len(parts)):
            part = parts[j]
            space = part.space if column else 0
            if column and column + space + part.width > rules.max_line_width:
                lines, column, space = lines + 1, 0, 0
            column += space + part.width
            total += space + part.width
            if j > i:  # two sentences or a pause in one subtitle
                if lines > rules.max_line_count or part.end - parts[i].start > rules.max_cue_duration:
                    break
                inside += 0.3 * (_closes(parts[j - 1].text) == 2) + 2 * max(0.0, part.start - parts[j - 1].end - 0.3)
            after = parts[j + 1].start if j + 1 < len(parts) else following
            cost = best[i][0] + inside + _cost(total, after - parts[i].start, rules)
            if j + 1 < len(parts):
                cost += _cost_of_break(part, parts[j + 1])
            if cost < best[j + 1][0]:
                best[j + 1] = (cost, i)
    spans = []
    end = len(parts)
    while end:
        start = best[end][1]
        spans.append((start, end))
        end = start
    return spans[::-1]


def _cost(width: int, until_next: float, rules: SubtitleOptions) -> float:
    """Cost of a subtitle, by its columns and the seconds until the next one: prefers few, even, readable ones."""
    room = min(max(until_next - rules.cue_gap, 0.0), rules.max_cue_duration)
    full = width / (rules.max_line_width * rules.max_line_count)
    short = 2 * max(0.0, rules.min_cue_duration - room) + 10 * max(0.0, min(FLOOR, rules.min_cue_duration) - room)
    return 0.5 + 0.5 * (1 - full) ** 2 + short + max(0.0, width / rules.reading_speed - room)


def _cost_of_break(a: Part, b: Part) -> float:
    """Cost of ending a subtitle between `a` and `b`: none after a sentence or in a pause of half a second."""
    if b.penalty >= UNBREAKABLE:
        return UNBREAKABLE
    pause = min(max(b.start - a.end, 0.0) / 0.5, 1.0)
    return ((2.0, 0.4, 0.0)[_closes(a.text)] + b.penalty) * (1 - pause)


def _closes(text: str) -> int:
    """2 when a word ends a sentence, 1 when it ends a clause, else 0."""
    bare = text.rstrip(CLOSERS)
    if not bare:
        return 0
    if bare[-1] == "." and len(bare) <= 4 and bare[:-1].istitle():  # Mr. Dr. Mrs.
        return 0
    return 2 if bare[-1] in SENTENCE_ENDS else 1 if bare[-1] in CLAUSE_ENDS else 0


def _cue(parts: list[Part], width: int) -> Cue:
    """A subtitle of these parts, on as few lines as it takes, cut after clauses or evenly."""
    parts[0] = replace(parts[0], gap="")
    count = len(parts)
    ends = list(accumulate((p.space + p.width for p in parts), initial=0))

    def long(first: int, after: int) -> int:
        return ends[after] - ends[first] - parts[first].space

    lines = [0] * (count + 1)  # that it takes from each part on
    for first in reversed(range(count)):
        fitting = (k for k in range(first + 2, count + 1) if long(first, k) > width)
        lines[first] = 1 + lines[next(fitting, count + 1) - 1]
    first = 0
    while lines[first] > 1:
        choices = []
        for k in range(first + 1, count):
            above, below = long(first, k), long(k, count) / (lines[first] - 1)
            if lines[k] < lines[first] and (above <= width or k == first + 1):
                cost = abs(above - below) / width + (0.5, 0.15, 0.0)[_closes(parts[k - 1].text)] + parts[k].penalty
                choices.append((cost + 0.1 * (above > below), k))  # a shorter line above hides less of the picture
        _, first = min(choices)
        parts[first].new_line = True
    return Cue(parts[0].start, parts[-1].end, parts, parts[0].speaker)


def _apart(spoken: list[Cue], rules: SubtitleOptions) -> list[Cue]:
    """Subtitles that do not overlap: what is said at the same time shares a subtitle or the time."""
    separate: list[Cue] = []
    for cue in sorted(spoken, key=lambda cue: cue.start):
        last = separate[-1] if separate else None
        if last is None or cue.start >= last.end:
            separate.append(cue)
        elif cue.speaker == last.speaker:
            last.end = cue.start
            separate.append(cue)
        elif rules.max_line_count > 1 and all(
            "\n" not in c.text and columns(c.text) + 2 <= rules.max_line_width for c in (last, cue)
        ):
            first, second = last.parts[0], cue.parts[0]
            last.parts[0] = replace(first, text=f"- {first.text}")
            last.parts += [replace(second, text=f"- {second.text}", gap=" ", new_line=True), *cue.parts[1:]]
            last.speaker, last.end = None, max(last.end, cue.end)
        else:
            end = max(last.end, cue.end)
            share = columns(last.text) / (columns(last.text) + columns(cue.text))
            last.end = cue.start = last.start + share * (end - last.start)
            cue.end = end
            separate.append(cue)
    return separate


def _timed(spoken: list[Cue], duration: float, rules: SubtitleOptions) -> list[Cue]:
    """The times they are shown at, in whole milliseconds."""
    for last, cue in pairwise(spoken):
        cue.start = max(cue.start, last.start + 0.002)  # words without length may begin together
    for cue, following in zip(spoken, [*spoken[1:], None], strict=False):
        end, until = cue.end, max(duration, cue.end) if following is None else following.start
        if rules.cues == "lines":
            if following is not None:
                least = min(FLOOR, rules.min_cue_duration)
                until -= min(rules.cue_gap, max(0.0, until - cue.start - least))
            read = columns(cue.text.replace("\n", " ")) / rules.reading_speed
            end = cue.start + min(max(rules.min_cue_duration, read, end - cue.start), rules.max_cue_duration)
        cue.start, cue.end = round(cue.start, 3), round(min(end, until), 3)
        cue.end = max(cue.end, round(cue.start + 0.001, 3))
    return spoken
