"""Subtitles of a transcript.

The rules are those that broadcasters share (the BBC's and Netflix' guidelines): at most two lines of 42 columns, one to
seven seconds each, slow enough to be read, cut where the speaker stops or the sentence does, with a short gap between
two, so that the eye sees them change. Wide characters (Chinese, Japanese, Korean) take two columns.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unicodedata import category, combining, east_asian_width

from stentor.text.languages import language_code
from stentor.text.normalize import SPACELESS

LINE = 42
"""Columns per line."""
LINES = 2
"""Lines per subtitle."""
SHORTEST = 1.0
"""Seconds that a subtitle stays at least, where the following silence allows."""
LONGEST = 7.0
"""Seconds that a subtitle stays at most."""
SPEED = 17.0
"""Columns per second that are read with ease; a subtitle stays longer for it, where the following silence allows."""
GAP = 0.083
"""Seconds between two subtitles: two frames at 24 frames per second."""
PAUSE = 1.0
"""Seconds of silence that always end a subtitle."""

SENTENCE_ENDS = frozenset(".?!…。？！．")
CLAUSE_ENDS = frozenset(",;:—–、，；：")
CLOSERS = "\"')]}»”’」』）】〉》"
OPENERS = ("Ps", "Pi")
"""Unicode categories of opening brackets and quotation marks."""
NOT_FIRST = frozenset(",.;:!?…)]}»”’、。，．・：；？！）］｝」』】〉》ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョๆฯ")
"""Characters that no line begins with."""


@dataclass
class Cue:
    """One subtitle, in seconds; its lines are apart by a line feed."""

    start: float
    end: float
    text: str
    speaker: str | None = None


def cues(transcript: dict[str, Any], kind: str = "lines") -> list[Cue]:
    """Subtitles in order of time.

    A subtitle begins with its first word. It stays until its last word ends, and on into the silence after it where it
    would be too short to be read. None overlap: what two speakers say at the same time shares a subtitle, a line each,
    or the time. `kind` "words" gives each word its own, with the word's times. Words without times share the time of
    their segment by their number of characters.
    """
    words = _words_as_written(transcript)
    spaceless = _spaceless(transcript)
    spoken: list[Cue] = []
    for name in dict.fromkeys(w.get("speaker") for w in words):
        units = _units([w for w in words if w.get("speaker") == name], spaceless)
        others = sorted((w["start"], w["end"]) for w in words if w.get("speaker") != name)
        spoken += _spoken(units, others, name, kind)
    return _timed(_apart(spoken), transcript["duration"], kind)


def columns(text: str) -> int:
    """The width of a text on the screen: two for wide characters, none for marks that stand above others."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


# Words as they are written --------------------------------------------------------------------------------------------


def _words_as_written(transcript: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the words with their times, as written: separate punctuation ("!", "«", "。") joins the next word."""
    queues: dict[str | None, deque[dict[str, Any]]] = {}
    for word in transcript.get("words", []):
        queues.setdefault(word.get("speaker"), deque()).append(word)
    words: list[dict[str, Any]] = []
    for segment in transcript["segments"]:
        timed = "no_room" not in segment.get("failed", [])  # such an answer has no word times, see the task `words`
        queue = queues.get(segment.get("speaker")) if timed else None
        words += _written(segment["text"], queue) if queue else _shared(segment, _spaceless(transcript))
    if any(queues.values()):  # words that are not those of the segments, as in a transcript from elsewhere
        return list(transcript["words"])
    return words


def _written(text: str, queue: deque[dict[str, Any]]) -> list[dict[str, Any]]:
    """The words that the text begins with, taken from the queue, with what stands between them in the text."""
    words: list[dict[str, Any]] = []
    end = 0
    while queue and (start := text.find(queue[0]["word"], end)) >= 0:
        word = dict(queue.popleft())
        between, end = text[end:start], start + len(word["word"])
        opening = len(between)
        while opening and (not words or between[opening - 1].isspace() or category(between[opening - 1]) in OPENERS):
            opening -= 1
        word["word"] = between[opening:].lstrip() + word["word"]
        if words:
            words[-1]["word"] += between[:opening].rstrip()
        words.append(word)
    if words:
        words[-1]["word"] += text[end:].rstrip()
    return words


def _shared(segment: dict[str, Any], spaceless: bool) -> list[dict[str, Any]]:
    """The words of a segment without word times, which share its time by their number of characters."""
    text = segment["text"]
    pieces = list("".join(text.split())) if spaceless else text.split()
    seconds = (segment["end"] - segment["start"]) / max(1, sum(map(len, pieces)))
    speaker = {k: v for k, v in segment.items() if k == "speaker"}
    words, start = [], segment["start"]
    for piece in pieces:
        end = start + seconds * len(piece)
        words.append({"word": piece, "start": start, "end": end, **speaker})
        start = end
    return words


def _spaceless(transcript: dict[str, Any]) -> bool:
    """Whether words are written without spaces; where the language is not known, as the text is."""
    if language := language_code(transcript["language"]):
        return language in SPACELESS
    return len(transcript.get("words", [])) > 1 and len(transcript["text"].split()) == 1


# Words to subtitles ---------------------------------------------------------------------------------------------------


@dataclass
class _Unit:
    """An indivisible unit: a word, or the part of a very long word that fits on a line."""

    text: str
    start: float
    end: float
    space: bool  # whether a space separates it from the one before
    starts_word: bool  # whether it begins a word
    width: int

    @property
    def breakable(self) -> bool:
        """Whether a line may begin with it."""
        return self.starts_word and self.text[0] not in NOT_FIRST


def _units(words: Sequence[dict[str, Any]], spaceless: bool) -> list[_Unit]:
    units: list[_Unit] = []
    for word in words:
        pieces = _pieces_by_width(" ".join(word["word"].split()))
        seconds = (word["end"] - word["start"]) / max(len(pieces), 1)
        for i, piece in enumerate(pieces):
            # Foreign words and numbers keep their spaces in a text without.
            glued = spaceless and units and not (_latin(units[-1].text[-1]) and _latin(piece[0]))
            start = word["start"] + i * seconds
            units.append(_Unit(piece, start, start + seconds, i == 0 and not glued, i == 0, columns(piece)))
    return units


def _latin(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _pieces_by_width(word: str) -> list[str]:
    pieces: list[str] = []
    for c in word:
        if pieces and columns(pieces[-1] + c) <= LINE:
            pieces[-1] += c
        else:
            pieces.append(c)
    return pieces


def _spoken(units: list[_Unit], others: list[tuple[float, float]], speaker: str | None, kind: str) -> Iterator[Cue]:
    """One speaker's subtitles, each from the beginning of its first word to the end of its last."""
    if kind == "words":
        yield from (Cue(u.start, u.end, u.text, speaker) for u in units)
        return
    breaks = [
        i + 1
        for i, (a, b) in enumerate(pairwise(units))
        if b.start - a.end >= PAUSE or _other_turn(others, a.end, b.start)
    ]
    for first, after in pairwise([0, *breaks, len(units)]):
        part = units[first:after]
        following = units[after].start if after < len(units) else math.inf
        yield from (
            Cue(part[i].start, part[j - 1].end, _laid_out(part[i:j]), speaker) for i, j in _divide(part, following)
        )


def _other_turn(others: list[tuple[float, float]], start: float, end: float) -> bool:
    """Return whether someone else says a word between two words."""
    at = bisect_left(others, (start, 0.0))
    return at < len(others) and others[at][1] <= end


def _divide(units: list[_Unit], following: float) -> list[tuple[int, int]]:
    """The cheapest way to make subtitles `units[i:j]` of words without long pauses (dynamic programming).

    `following` is the time at which the same speaker continues after these words, in seconds.
    """
    best: list[tuple[float, int]] = [(0.0, 0)] + [(math.inf, 0)] * len(units)
    for i in range(len(units)):
        first = second = 0  # columns of the two lines when the first is filled as far as it goes
        inside = 0.0
        for j in range(i, len(units)):
            unit = units[j]
            added = unit.width + (unit.space and j > i)
            if not second and first + added <= LINE:
                first += added
            else:
                second += added if second else unit.width
            if j > i:
                if second > LINE or unit.end - units[i].start > LONGEST:
                    break
                inside += _cost_inside(units[j - 1], unit)
            after = units[j + 1].start if j + 1 < len(units) else following
            cost = best[i][0] + inside + _cost(first + second, after - units[i].start)
            if j + 1 < len(units):
                cost += _cost_of_break(unit, units[j + 1])
            if cost < best[j + 1][0]:
                best[j + 1] = (cost, i)
    spans = []
    end = len(units)
    while end:
        start = best[end][1]
        spans.append((start, end))
        end = start
    return spans[::-1]


def _cost(width: int, until_next: float) -> float:
    """Cost of a subtitle, by its columns and the seconds until the next one: prefers few, even, readable ones."""
    room = min(max(until_next - GAP, 0.0), LONGEST)
    unread = max(0.0, width / SPEED - room)
    return 0.5 + 0.5 * (1 - width / (LINES * LINE)) ** 2 + 2 * max(0.0, SHORTEST - room) + unread


def _cost_inside(a: _Unit, b: _Unit) -> float:
    """Cost of having `a` and `b` in one subtitle."""
    return 0.3 * (_closes(a.text) == 2) + 2 * max(0.0, b.start - a.end - 0.3)


def _cost_of_break(a: _Unit, b: _Unit) -> float:
    """Cost of ending a subtitle between `a` and `b`: none after a sentence or in a pause of half a second."""
    if not b.breakable:
        return 20.0
    pause = min(max(b.start - a.end, 0.0) / 0.5, 1.0)
    return (2.0, 0.4, 0.0)[_closes(a.text)] * (1 - pause)


def _closes(text: str) -> int:
    """2 when a word ends a sentence, 1 when it ends a clause, else 0."""
    bare = text.rstrip(CLOSERS)
    if not bare:
        return 0
    if bare[-1] == "." and len(bare) <= 4 and bare[:-1].istitle():  # Mr. Dr. Mrs.
        return 0
    return 2 if bare[-1] in SENTENCE_ENDS else 1 if bare[-1] in CLAUSE_ENDS else 0


def _laid_out(units: list[_Unit]) -> str:
    """On one line, or on two, cut after a clause or near the middle."""
    text = _joined(units)
    if columns(text) <= LINE:
        return text
    choices = []
    for k in range(1, len(units)):
        above, below = columns(_joined(units[:k])), columns(_joined(units[k:]))
        if above <= LINE and below <= LINE:
            cost = abs(above - below) / LINE + (0.5, 0.15, 0.0)[_closes(units[k - 1].text)]
            # A shorter line above hides less of the picture.
            choices.append((cost + 0.1 * (above > below) + 20 * (not units[k].breakable), k))
    _, k = min(choices)
    return f"{_joined(units[:k])}\n{_joined(units[k:])}"


def _joined(units: list[_Unit]) -> str:
    return "".join(" " * (unit.space and i > 0) + unit.text for i, unit in enumerate(units))


def _apart(spoken: list[Cue]) -> list[Cue]:
    """Subtitles that do not overlap: what is said at the same time shares a subtitle or the time."""
    separate: list[Cue] = []
    for cue in sorted(spoken, key=lambda cue: (cue.start, cue.end)):
        last = separate[-1] if separate else None
        if last is None or cue.start >= last.end:
            separate.append(cue)
        elif cue.speaker == last.speaker:
            last.end = cue.start
            separate.append(cue)
        elif max(columns(last.text), columns(cue.text)) + 2 <= LINE and "\n" not in last.text + cue.text:
            last.text = f"- {last.text}\n- {cue.text}"
            last.speaker = None
            last.end = max(last.end, cue.end)
        else:
            end = max(last.end, cue.end)
            share = columns(last.text) / (columns(last.text) + columns(cue.text))
            last.end = cue.start = last.start + share * (end - last.start)
            cue.end = end
            separate.append(cue)
    return separate


def _timed(spoken: list[Cue], duration: float, kind: str) -> list[Cue]:
    """The times they are shown at, in whole milliseconds."""
    for last, cue in pairwise(spoken):
        cue.start = max(cue.start, last.start + 0.002)  # words without length may begin together
    for cue, following in zip(spoken, [*spoken[1:], None], strict=False):
        end, until = cue.end, math.inf if following is None else following.start
        if kind == "lines":
            if following is None:
                until = max(duration, end)
            else:
                until -= min(GAP, (until - cue.start) / 2)
            read = columns(cue.text.replace("\n", " ")) / SPEED
            end = min(max(end, cue.start + SHORTEST, cue.start + read), cue.start + LONGEST)
        cue.start, cue.end = round(cue.start, 3), round(min(end, until), 3)
        cue.end = max(cue.end, round(cue.start + 0.001, 3))
    return spoken
