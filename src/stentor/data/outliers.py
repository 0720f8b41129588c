"""Outliers: records that are likely to be wrong, by rules on their text, their times and the signal."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stentor.data.signal_stats import SignalStats
from stentor.data.word_faults import faults_of, word_faults
from stentor.data.word_times import UNALIGNED, faults
from stentor.text.letters import letters_of

if TYPE_CHECKING:
    from lhotse.cut import Cut

CONTROL_NAMES = re.compile(
    r"<\|[^<>|]{1,40}\|>|</?(?:s|pad|unk|bos|eos|cls|sep|mask|blank|blk|eo[tu]|asr_text|audio|think|endoftext|"
    r"(?:start|end)_of_\w{1,20}|extra_id_\d+|unused\d+)>|\[/?(?:PAD|UNK|BOS|EOS|CLS|SEP|MASK|BLANK|INST|AUDIO)\]"
)
"""Names of control tokens of published models."""
MARKUP = re.compile(
    r"</?(?:p|b|i|u|em|br|font|span|div|strong|sub|sup|a)\b[^<>]*>|&(?:nbsp|amp|lt|gt|quot|apos|#x?\w+);"
)
"""Tags and characters of HTML, which subtitles and scraped texts have."""
FAST_WORDS, SLOW_WORDS = 6.0, 0.5
"""Bounds on words per second, beyond those of any speaker; the slow bound holds from `SLOW_FROM` seconds on."""
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
    "no_text": ("No transcript", "The record has no text, or only white space: nothing can be learned from it."),
    "same_audio": ("The same recording twice", "Two records decode to exactly the same samples."),
    "length": ("Wrong duration", "The manifest and the decoded audio differ by more than 5 % and 0.2 s."),
    "unaligned": ("Unaligned words", "They are from 0 to 0 s, as VoxLM writes them, and are trained without times."),
    "word_times": (
        "Word times that do not fit",
        "Words have no length, are out of order, overlap, lie outside the recording or are not those of the text; "
        "training does not use such times.",
    ),
    "control_tokens": ("Control tokens in the text", "They are trained as text, letter by letter: remove them."),
    "markup": ("HTML in the text", "Tags and names of characters are trained as text: remove or replace them."),
    "clipped": ("Clipped", f"More than {CLIPPED:.1%} of the samples are at full scale."),
    "quiet": ("Very quiet", f"Even the loud parts stay below {QUIET:g} dBFS."),
    "silence": ("Mostly silence", f"More than {SILENCE:.0%} silent, or {EDGE:g} s of silence at the start or the end."),
    "narrow": ("Telephone bandwidth", "Nothing above 4.5 kHz although the file could hold it: it was upsampled."),
    "outside": ("Characters outside the tokenizer", "The model cannot write a character of the text."),
    "changed": ("Changed letters", "The model has no such letter and is trained to write another one."),
    "unfit": ("Unfit for the model", "Training drops the record: it exceeds a limit or the model lacks its language."),
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
    control_names: list[str] = field(default_factory=list)
    """Names of control tokens in its text."""
    unfit: str | None = None
    """Reason and sentence for which training drops it."""

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
    def word_faults(self) -> list[tuple[str, str]]:
        """See `stentor.data.word_times.word_faults`."""
        if self.cut is not None:
            return word_faults(self.cut, self.seconds)
        return faults_of(self.times, faults(self.times, 0.0, self.seconds), self.text, self.language)

    @property
    def seconds(self) -> float:
        return self.sound.seconds or self.declared

    @property
    def rate(self) -> float | None:
        """Words per second, or characters per second of scripts without spaces."""
        if not self.text or not self.seconds:
            return None
        return (len(letters(self.text)) if unspaced(self.text) else len(self.text.split())) / self.seconds


def find_outliers(row: CheckedRecord, changed: Mapping[str, str]) -> Iterator[tuple[str, float, str]]:
    """(kind, severity, detail) of each fault of one decoded record; `changed` is what a model writes for letters."""
    sound, text = row.sound, row.text or ""
    if row.rate:
        wide = unspaced(text)
        fast, slow = (FAST_LETTERS, SLOW_LETTERS) if wide else (FAST_WORDS, SLOW_WORDS)
        amount = f"{len(letters(text))} characters" if wide else plural(len(text.split()), "word")
        if row.rate > fast:
            yield "too_fast", row.rate, f"{amount} in {row.seconds:.1f} s"
        elif row.rate < slow and row.seconds > SLOW_FROM:
            yield "too_slow", 1 / row.rate, f"{amount} in {row.seconds:.1f} s"
    elif not text.strip():
        yield "no_text", row.seconds, f"no text for {row.seconds:.1f} s"
    difference = abs(sound.seconds - row.declared)
    if difference > max(0.2, 0.05 * row.declared):
        yield "length", difference, f"{row.declared:.2f} s in the manifest, {sound.seconds:.2f} s decoded"
    yield from _text_outliers(row, changed)
    if sound.clipped > CLIPPED:
        yield "clipped", sound.clipped, f"{sound.clipped:.2%} of the samples"
    if sound.level < QUIET:
        yield "quiet", -sound.level, f"{sound.level:.0f} dBFS"
    if sound.silence > SILENCE or max(sound.lead, sound.trail) > EDGE:
        detail = f"{sound.silence:.0%} silent, {sound.lead:.1f} s before and {sound.trail:.1f} s after"
        yield "silence", sound.silence + sound.lead + sound.trail, detail
    if sound.high < -60:
        yield "narrow", -sound.high, f"{sound.high:.0f} dB above 4.5 kHz in a file at {sound.rate} Hz"


def _text_outliers(row: CheckedRecord, changed: Mapping[str, str]) -> Iterator[tuple[str, float, str]]:
    for kind in ("unaligned", "word_times"):
        if wrong := [(w, fault) for w, fault in row.word_faults if (fault == UNALIGNED) == (kind == "unaligned")]:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            yield kind, float(len(wrong)), ", ".join(f"{w!r} {fault}" for w, fault in wrong[:3]) + more
    if row.control_names:
        yield "control_tokens", float(len(row.control_names)), " ".join(row.control_names)
    if markup := MARKUP.findall(row.text or ""):
        yield "markup", float(len(markup)), " ".join(markup)
    if row.unfit:
        yield "unfit", 0.0, row.unfit
    found = sorted(letters_of(row.text or "") & changed.keys())
    if strange := [c for c in found if not changed[c]]:
        yield "outside", float(len(strange)), " ".join(strange)
    if others := [f"{c} -> {changed[c]}" for c in found if changed[c]]:
        yield "changed", float(len(others)), ", ".join(others)


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
