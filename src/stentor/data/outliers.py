"""Outliers: records that are likely to be wrong, by rules on their text, their times and the signal."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stentor.data.cut import words_of
from stentor.data.signal_stats import SignalStats

if TYPE_CHECKING:
    from lhotse.cut import Cut

FAST_WORDS, SLOW_WORDS = 6.0, 0.5
"""Words per second that are implausible in speech; the slow bound holds from `SLOW_FROM` seconds on."""
FAST_LETTERS, SLOW_LETTERS = 12.0, 0.5
"""The same in characters per second, for scripts that are written without spaces."""
SLOW_FROM = 4.0
CLIPPED = 0.001
QUIET = -45.0
SILENCE, EDGE = 0.75, 2.0

KINDS = {
    "unusable": ("Unusable", "The record cannot be used at all; training would drop it."),
    "too_fast": (
        "More words than fit",
        f"More than {FAST_WORDS:g} words a second ({FAST_LETTERS:g} characters where words are not spaced): the text "
        "belongs to a longer recording, or the recording is cut short.",
    ),
    "too_slow": (
        "Fewer words than expected",
        f"Less than one word in {1 / SLOW_WORDS:g} seconds: a part of what is said is not written down, or the "
        "recording is mostly silence.",
    ),
    "no_text": ("No transcript", "The record has no text, or only white space, while others have one."),
    "same_audio": ("The same recording twice", "Two records decode to exactly the same samples."),
    "length": ("Wrong duration", "The manifest and the decoded audio differ by more than 5 % and 0.2 s."),
    "word_times": (
        "Word times that do not fit",
        "Words end after the recording, overlap, or are not those of the text.",
    ),
    "clipped": ("Clipped", f"More than {CLIPPED:.1%} of the samples stand at full scale."),
    "quiet": ("Very quiet", f"Even the loud parts stay below {QUIET:g} dBFS."),
    "silence": ("Mostly silence", f"More than {SILENCE:.0%} silent, or {EDGE:g} s of silence at the start or the end."),
    "narrow": ("Telephone bandwidth", "Nothing above 4.5 kHz although the file could hold it: it was upsampled."),
    "outside": ("Characters outside the tokenizer", "The model cannot write a character of the text."),
}
"""Title and explanation of each kind of outlier."""


@dataclass
class CheckedRecord:
    """One record with its text, its times and its measures."""

    id: str
    set: str
    cut: Cut | None = None
    text: str | None = None
    speaker: str | None = None
    language: str | None = None
    declared: float = 0.0
    sound: SignalStats = field(default_factory=SignalStats)
    times: list[dict[str, Any]] = field(default_factory=list)
    """Word times of a record of one speaker that has no cut."""

    @property
    def speakers(self) -> dict[str | None, float]:
        """Seconds of each speaker; of the whole record when there is one or none is named."""
        if self.speaker or self.cut is None:
            return {self.speaker: self.seconds}
        seconds: dict[str | None, float] = defaultdict(float)
        for segment in self.cut.supervisions:
            seconds[segment.speaker] += segment.duration
        return seconds if set(seconds) - {None} else {None: self.seconds}

    @property
    def words(self) -> list[dict[str, Any]]:
        """Word times; empty when there are none."""
        return self.times if self.cut is None else words_of(self.cut)

    @property
    def seconds(self) -> float:
        return self.sound.seconds or self.declared

    @property
    def rate(self) -> float | None:
        """Words per second, or characters per second of scripts without spaces."""
        if not self.text or not self.seconds:
            return None
        return (len(letters(self.text)) if unspaced(self.text) else len(self.text.split())) / self.seconds


def find_outliers(row: CheckedRecord, texts_expected: bool, outside: set[str]) -> Iterator[tuple[str, float, str]]:
    """(kind, how bad, detail) of all that is wrong with one decoded record."""
    sound, text = row.sound, row.text or ""
    if row.rate:
        wide = unspaced(text)
        fast, slow = (FAST_LETTERS, SLOW_LETTERS) if wide else (FAST_WORDS, SLOW_WORDS)
        amount = f"{len(letters(text))} characters" if wide else plural(len(text.split()), "word")
        if row.rate > fast:
            yield "too_fast", row.rate, f"{amount} in {row.seconds:.1f} s"
        elif row.rate < slow and row.seconds > SLOW_FROM:
            yield "too_slow", 1 / row.rate, f"{amount} in {row.seconds:.1f} s"
    elif texts_expected and not text.strip():
        yield "no_text", row.seconds, f"no text for {row.seconds:.1f} s"
    difference = abs(sound.seconds - row.declared)
    if difference > max(0.2, 0.05 * row.declared):
        yield "length", difference, f"{row.declared:.2f} s in the manifest, {sound.seconds:.2f} s decoded"
    if problem := _word_problem(row):
        yield "word_times", 0.0, problem
    if sound.clipped > CLIPPED:
        yield "clipped", sound.clipped, f"{sound.clipped:.2%} of the samples"
    if sound.level < QUIET:
        yield "quiet", -sound.level, f"{sound.level:.0f} dBFS"
    if sound.silence > SILENCE or max(sound.lead, sound.trail) > EDGE:
        detail = f"{sound.silence:.0%} silent, {sound.lead:.1f} s before and {sound.trail:.1f} s after"
        yield "silence", sound.silence + sound.lead + sound.trail, detail
    if sound.high < -60:
        yield "narrow", -sound.high, f"{sound.high:.0f} dB above 4.5 kHz in a file at {sound.rate} Hz"
    if strange := sorted(set(text) & outside):
        yield "outside", float(len(strange)), " ".join(strange)


def _word_problem(row: CheckedRecord) -> str | None:
    if not (words := row.words):
        return None
    single = row.cut is None or len(row.cut.supervisions) == 1
    last = max(words, key=lambda w: w["end"])
    if last["end"] > row.seconds + 0.05:
        return f"'{last['word']}' ends at {last['end']:.2f} s of {row.seconds:.2f} s"
    for a, b in pairwise(words):
        if b["start"] < a["end"] - 0.05 and single:
            return f"'{a['word']}' ({a['end']:.2f} s) and '{b['word']}' ({b['start']:.2f} s) overlap"
    count = len((row.text or "").split())
    if row.text and abs(len(words) - count) > 0.2 * count:
        return f"{plural(len(words), 'word')} with times, {count} in the text"
    return None


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def letters(text: str) -> list[str]:
    return [c for c in text if unicodedata.category(c)[0] in "LN"]


def unspaced(text: str) -> bool:
    """Whether most letters belong to scripts that are written without spaces between words."""
    first = letters(text)[:50]
    names: Iterable[str] = (unicodedata.name(c, "") for c in first)
    wide = sum(n.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")) for n in names)
    return wide > len(first) / 2
