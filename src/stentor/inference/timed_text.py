"""The text of a transcript in parts with times, for subtitles.

Parts are slices of the text by their offsets: what stands between two, a space or nothing, is never made up, and the
language does not matter. Words with times are looked up in the text.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from unicodedata import combining, east_asian_width

import regex

from stentor.text.written_words import joined_windows

WORD = 42
"""Columns of the longest word that is never divided."""
UNBREAKABLE = 20.0
"""Cost of a line break before a part that must not begin a line."""
IN_WORD = 3.0
"""Cost of a line break between two letters that probably belong to one word."""
_LINE_ENDS = dict.fromkeys(map(ord, "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")
_SPACE = r"[[\s\u200b]--[\u00a0\u2007\u202f]]"
_UNSPACED = (
    r"[[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3001-\u303f"
    r"\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]--\p{Nd}]"
)
"""Letters and punctuation of scripts without spaces between words."""
_NUMBER = r"[\p{Nd}\p{Nl}\p{No}零一二两三四五六七八九十百千万萬億亿兆]"
_NOT_FIRST = (
    r"[,.;:!?…)}\]»”’%‰°℃、。，．・：；？！％）］｝」』】〉》ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ"
    r"ะาำๅๆฯະາຳໆຯៈៗ។៕၊။་།]"
)
"""Characters that no line begins with."""
_NOT_LAST = r"[\p{Ps}\p{Pi}เแโใไເແໂໃໄ\u17d2\u1039]"
"""Opening signs, vowels of Thai and Lao before their consonant, and the signs of Khmer and Burmese that join two."""
_BREAK = (
    rf"(?<!{_NOT_LAST})(?!{_NOT_FIRST})(?:(?<!{_NUMBER}|[，．])|(?!{_NUMBER}))"
    rf"(?:(?<={_UNSPACED})|(?={_UNSPACED})|(?<=[་།]))"
)
"""Where a line may end without a space."""
_SILENT = r"[^\p{L}\p{M}\p{N}\s]"
_PARTS = regex.compile(
    rf"(?V1)(?:{_SILENT}+{_SPACE}+){{0,3}}(?!{_SPACE})\X(?:(?!{_SPACE}|{_BREAK})\X)*"
    rf"(?:{_SPACE}+(?![\p{{Ps}}\p{{Pi}}]){_SILENT}+(?={_SPACE}|$)){{0,3}}"
)
"""Words between spaces, and letters of scripts without spaces. What is not spoken, as "!" or "–", joins the word before
it; at the beginning, and as an opening sign, the next one."""
_PIECES = regex.compile(r"\X{0,20}[^\p{L}\p{M}\p{N}]|\X{1,21}")
_CORE = regex.compile(r"[\p{L}\p{M}\p{N}](?:.*[\p{L}\p{M}\p{N}])?")
"""A word without the punctuation around it."""
_PHRASES = regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{2}|\w\p{Hiragana}")
"""Two letters that a line break should not divide: of a script with spaces between phrases, or before a particle."""
_FIRST = regex.compile(_NOT_FIRST)


@dataclass
class Part:
    """A part of the text that no line break divides, with its time in seconds."""

    text: str
    gap: str
    """Space or nothing between it and the part before."""
    start: float
    end: float
    penalty: float
    """Cost of a line break before it."""
    speaker: str | None
    segment: int
    new_line: bool = False
    """Whether a line of a subtitle begins with it."""

    def __post_init__(self) -> None:
        self.width, self.space = columns(self.text), columns(self.gap)


def columns(text: str) -> int:
    """The width of a text on the screen: two for wide characters, none for marks that stand above others."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def timed_parts(transcript: dict[str, Any]) -> list[Part]:
    """The text of the transcript in parts, in its order, with times."""
    text, begins = _located(transcript)
    places = [0, *begins[1:], len(text)]
    letters = list(accumulate((not c.isspace() for c in text), initial=0))  # before each place in the text
    queues: dict[str | None, deque[dict[str, Any]]] = {}
    for word in (word for word in transcript.get("words", []) if word["start"] is not None):
        queues.setdefault(word.get("speaker"), deque()).append(word)
    parts: list[Part] = []
    last, latest = 0, dict[str | None, float]()
    for number, segment in enumerate(transcript["segments"]):
        begin, end, speaker = places[number], places[number + 1], segment.get("speaker")
        following = (s["start"] for s in transcript["segments"][number + 1 :] if s.get("speaker") == speaker)
        timed = "no_room" not in segment.get("failed", [])  # such an answer has no word times, see the task `words`
        queue = queues.get(speaker) if timed else None
        words = list(_word_times(text, begin, end, queue, next(following, math.inf)))
        spans = list(_parts(text, begin, end))
        knots = _knots(segment, words, letters, spans) if spans else []
        for first, after, penalty in spans:
            core = _core(text, first, after) if words else (first, after)
            start = max(_time(knots, letters[core[0]], bisect_right), latest.get(speaker, 0.0))
            stop = latest[speaker] = max(_time(knots, letters[core[1]], bisect_left), start)
            parts.append(Part(text[first:after], text[last:first], start, stop, penalty, speaker, number))
            last = after
    return parts


def _word_times(
    text: str, begin: int, end: int, queue: deque[dict[str, Any]] | None, until: float
) -> Iterator[tuple[int, int, float, float]]:
    """Places in the text, starts and ends of the words of [begin, end), taken from the queue, of those before the time
    `until`. Words that are not in the text are left out."""
    while queue and queue[0]["start"] + queue[0]["end"] < 2 * until:
        word = queue[0]["word"].strip()
        at = text.find(word, begin, end) if word else -1
        if at < 0 and word and text.find(word, end) >= 0:
            break  # it is in a later segment
        taken = queue.popleft()
        if at >= 0:
            begin = at + len(word)
            yield *_core(text, at, begin), taken["start"], taken["end"]


def _knots(
    segment: dict[str, Any],
    words: Sequence[tuple[int, int, float, float]],
    letters: Sequence[int],
    spans: Sequence[tuple[int, int, float]],
) -> list[tuple[int, float]]:
    """Numbers of letters, and the times after them, in order: the letters of a word share its time evenly, as do those
    between two words. Those of a segment without word times share its `speech`, and a pause lies between two parts."""
    first, *firsts, last = (letters[place] for place in (*(begin for begin, *_ in spans), spans[-1][1]))
    knots = [(first, min([segment["start"], *(word[2] for word in words[:1])]))]
    speech = segment.get("speech", []) if firsts and not words else []
    spoken = list(accumulate(b - a for a, b in speech))
    for (_, stop), (start, _), share in zip(speech, speech[1:], spoken):
        place = first + (last - first) * share / spoken[-1]
        at = min(firsts, key=lambda letter: abs(letter - place))
        knots += [(at, stop), (at, start)]
    for begin, end, start, stop in words:
        knots += [(letters[begin], start), (letters[end], stop)]
    knots.append((last, segment["end"]))
    return list(zip((place for place, _ in knots), accumulate((time for _, time in knots), max)))


def _time(knots: Sequence[tuple[int, float]], place: int, side: Callable[..., int]) -> float:
    """The time after `place` letters; where two words meet, that of the first (bisect_left) or the second one."""
    knot = min(max(side(knots, place, key=lambda knot: knot[0]), 1), len(knots) - 1)
    (before, start), (after, end) = knots[knot - 1 : knot + 1]
    return start + (end - start) * min(1.0, (place - before) / max(1, after - before))


def _core(text: str, begin: int, end: int) -> tuple[int, int]:
    """The place of what is spoken in [begin, end) of the text."""
    match = _CORE.search(text, begin, end)
    return match.span() if match else (begin, end)


def _parts(text: str, begin: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Places [begin, end) of what no line break divides, and the cost of one before it."""
    for match in _PARTS.finditer(text, begin, end):
        first, after = match.span()
        penalty = UNBREAKABLE if _FIRST.match(text, first) else IN_WORD * bool(_PHRASES.match(text, max(first - 1, 0)))
        whole = columns(match.group()) <= WORD
        for piece in [match] if whole else _PIECES.finditer(text, first, after):
            yield *piece.span(), penalty
            penalty = UNBREAKABLE


def _located(transcript: dict[str, Any]) -> tuple[str, list[int]]:
    """The text, and where each segment begins in it. A text that is not that of the segments, as in a transcript from
    elsewhere, is replaced by theirs."""
    text, begins, at = transcript["text"], list[int](), 0
    for segment in transcript["segments"]:
        begins.append(text.find(segment["text"], at))
        if begins[-1] < 0:
            return _located({**transcript, "text": joined_windows(s["text"] for s in transcript["segments"])})
        at = begins[-1] + len(segment["text"])
    return text.translate(_LINE_ENDS), begins
