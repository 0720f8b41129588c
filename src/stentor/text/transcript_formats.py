"""Formats of transcripts: lines, subtitles (SubRip, WebVTT) and Praat's TextGrids (tables: stentor.data.layouts).

Each file becomes one `TranscriptEntry` for each transcript, and a sentence with the file's name and line for each
mistake. A stranger may have written it: names in it are only compared with the names of the uploaded files. Subtitles
and TextGrids are read here and not by pysubs2 and a TextGrid package, because every mistake is reported with its line,
speakers of WebVTT are kept, and a stranger's file costs time in proportion to its length.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import cast

from stentor.errors import DataError

MOST_PROBLEMS = 20
"""Mistakes of a file that are reported."""
_SILENCE = {"sil", "sp", "spn", "<eps>", "<p:>", "<unk>", "<s>", "</s>"}
"""Marks of aligners for intervals without words."""
_PAUSE = 0.5
"""Seconds between the words of two sentences, where only words are given."""
_CLOCK = re.compile(r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})(?:[,.](\d{1,3}))?(?!\d)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_STRING = re.compile(r'(?:[^"]+|"")*')
"""The rest of a string up to its closing mark; two marks are one that it holds."""
_PASSED = re.compile(r'[A-Za-z_?][^"=:]*[=:]?|(?:\[[^][]*\]?:?)+|(?:<[^<>]*>?)+|!.*|[^\w"[<!?+-]+')
"""Parts of a TextGrid that are not values: keys, places in lists, flags, comments."""
_VOICE = re.compile(r"<v(?:\.[^ <>]*)? ([^<>]+)>")
_TAG = re.compile(r"</?(?:[ibuc]|v|font|ruby|rt|lang)(?:[ .][^<>]*)?>|<\d[\d:.]*>|\{\\[^{}]*\}")
AUDIO = ("wav", "flac", "mp3", "ogg", "opus", "m4a", "mp4", "webm")
"""Endings that are taken off when names are compared."""


@dataclass(frozen=True)
class TranscriptEntry:
    """One transcript."""

    text: str
    file: str | None = None
    """Name of the recording without folders and ending; None where the format does not say."""
    start: float | None = None
    """Seconds; None for the whole recording."""
    end: float | None = None
    language: str | None = None
    speaker: str | None = None
    where: str = ""
    """File and line, for messages."""


ParsedEntries = Iterator[TranscriptEntry | str]
"""Entries, and a sentence in place of each that is wrong."""


def stem(name: str) -> str:
    """A recording's name without folders and without an ending of audio or transcripts."""
    last = PurePosixPath(name.replace("\\", "/")).name
    front, dot, ending = last.rpartition(".")
    known = (*AUDIO, "txt", "lab", "json", "srt", "vtt", "textgrid")
    return front if dot and front and ending.lower() in known else last


def key(name: str) -> str:
    """Form of names for comparison: the stem without case, in composed characters (some systems decompose them)."""
    return unicodedata.normalize("NFC", stem(name)).casefold()


def lines_of(text: str) -> list[str]:
    """Lines as editors count them; other separators of Unicode may stand inside of a text."""
    return re.split(r"\r\n|\r|\n", text)


def decoded(name: str, data: bytes) -> str:
    """The text of a file in UTF-8, or UTF-16 with its mark, which Praat and spreadsheets write. Raises DataError with
    the line that is neither."""
    code = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(code).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{name}:{line}: this is not UTF-8 text; save the file as UTF-8.") from None
    if "\0" in text:
        raise DataError(f"{name}:{text[: text.index(chr(0))].count(chr(10)) + 1}: this is not a text file.")
    return text


def plain_lines(name: str, text: str, stems: set[str]) -> ParsedEntries:
    """A line for each recording; `name<tab>text`, `name|text` (LJSpeech) or `name text` (Kaldi) where every line has
    it, with a name that ends like an audio file or holds no space, or, before a space, that is a recording's."""
    lines = [(n, line.strip()) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    for mark in ("\t", "|", " "):
        parts = [line.partition(mark) for _, line in lines]
        firsts = [first.strip() for first, _, _ in parts]
        if mark == " ":
            named = all(key(first) in stems for first in firsts)
        else:
            named = all(
                separator and first and " " not in stem(first) for first, (_, separator, _) in zip(firsts, parts)
            )
        if lines and named:
            for (n, _), first, (_, _, after) in zip(lines, firsts, parts, strict=True):
                # LJSpeech has the normalised text in a third column.
                sentence = after if mark == " " else after.rpartition(mark)[2] or after
                yield TranscriptEntry(sentence, stem(first), where=f"{name}:{n}")
            return
    for n, line in lines:
        yield TranscriptEntry(line, where=f"{name}:{n}")


def subtitles(name: str, text: str) -> ParsedEntries:
    """SubRip and WebVTT: blocks with a line of times; tags (`<i>`, `<v Ann>`, `{\\an8}`) are taken out, a voice is the
    speaker. A cue that stands there twice (for its style) counts once."""
    lines = [*lines_of(text), ""]
    web = name.lower().endswith(".vtt")
    index, seen = 0, set()
    while index < len(lines):
        if "-->" not in lines[index]:
            index += 1
            continue
        where, times = f"{name}:{index + 1}", lines[index].split("-->")
        clocks = [_CLOCK.match(part.strip()) for part in times[:2]]
        cue = []
        index += 1
        while index < len(lines) and lines[index].strip() and "-->" not in lines[index]:
            cue.append(lines[index])
            index += 1
        if index < len(lines) and "-->" in lines[index] and cue and cue[-1].strip().isdigit():
            cue.pop()  # the next cue's number, without an empty line in between
        if not all(clocks) or len(times) != 2:
            yield f"{where}: these are not times such as 00:00:01,000 --> 00:00:02,500."
            continue
        start, end = (_seconds(clock) for clock in clocks if clock)
        joined = " ".join(cue)
        voice = _VOICE.search(joined)
        plain = _TAG.sub("", joined)
        plain = html.unescape(plain) if web else plain
        if (start, end, plain) not in seen:
            seen.add((start, end, plain))
            yield TranscriptEntry(plain, None, start, end, None, voice.group(1).strip() if voice else None, where)


def _seconds(clock: re.Match[str]) -> float:
    hours, minutes, seconds, fraction = clock.groups()
    part = int(fraction) / 10 ** len(fraction) if fraction else 0.0
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + part


def textgrid(name: str, text: str) -> ParsedEntries:
    """Praat TextGrids, long and short form: the intervals of the first tier that holds sentences.

    The tier of words has the most intervals: of several interval tiers named alike for what they hold, `text`,
    `sentence`, `utterance`, `transcript` and the like come before the others, and otherwise the one with the fewest
    intervals that hold text. Where intervals hold single words, they are joined up to the next pause. A speaker is not
    read.
    """
    tokens = list(_tokens(text))
    if not any(value == "TextGrid" for _, value in tokens[:4]):
        yield f"{name}:1: this is not a Praat TextGrid."
        return
    tiers: list[tuple[str, list[TranscriptEntry]]] = []
    index = 0
    while index < len(tokens):
        if tokens[index][1] != "IntervalTier" or not isinstance(tokens[index][1], str):
            index += 1
            continue
        head = tokens[index : index + 5]  # class, name, xmin, xmax, size
        if len(head) < 5 or not isinstance(head[4][1], float):
            yield f"{name}:{tokens[index][0]}: this tier has no size."
            return
        count, intervals = int(head[4][1]), []
        index += 5
        for i in range(count):
            cell = tokens[index : index + 3]
            if [type(v) for _, v in cell] != [float, float, str]:
                line = cell[0][0] if cell else tokens[-1][0]
                yield f"{name}:{line}: interval {i + 1} of the tier {head[1][1]!s:.40} needs xmin, xmax and text."
                return
            start, end, label = cast(tuple[float, float, str], tuple(v for _, v in cell))
            if label.strip() and label.strip().lower() not in _SILENCE:
                intervals.append(TranscriptEntry(label, None, start, end, where=f"{name}:{cell[0][0]}"))
            index += 3
        tiers.append((str(head[1][1]).lower(), intervals))
    filled = [tier for tier in tiers if tier[1]]
    if not filled:
        return
    known = re.compile(r"text|sent|utt|transcr|phrase|segment|orthog")
    chosen = min(filled, key=lambda tier: (not known.search(tier[0]), len(tier[1])))[1]
    yield from _sentences(chosen) if all(" " not in e.text.strip() for e in chosen) else chosen


def _sentences(words: list[TranscriptEntry]) -> Iterator[TranscriptEntry]:
    """Words joined with those that follow within `_PAUSE`."""
    run = [words[0]]
    for word in [*words[1:], None]:
        if word is not None and word.start - run[-1].end < _PAUSE:  # type: ignore[operator]
            run.append(word)
            continue
        yield replace(run[0], text=" ".join(w.text for w in run), end=run[-1].end)
        run = [word] if word is not None else []


def _tokens(text: str) -> Iterator[tuple[int, str | float]]:
    """(line, value) of the strings and numbers of a TextGrid; `xmin =`, `intervals [3]:` and flags are passed over.

    Each character is looked at once, whatever a file holds.
    """
    inside: list[str] | None = None
    began = 0
    for number, line in enumerate(lines_of(text), 1):
        column = 0
        while column < len(line):
            if inside is not None:
                token = _STRING.match(line, column)
                inside.append(token.group() if token else "")
                column = token.end() + 1 if token else column + 1
                if column <= len(line):  # a closing mark, or else the string continues in the next line
                    yield began, " ".join(inside).replace('""', '"')
                    inside = None
            elif line[column] == '"':
                inside, began, column = [], number, column + 1
                if column == len(line):
                    inside.append("")
            elif token := _NUMBER.match(line, column):
                yield number, float(token.group())
                column = token.end()
            else:
                token = _PASSED.match(line, column)
                column = token.end() if token else column + 1


TIMED: dict[str, Callable[[str, str], ParsedEntries]] = {"srt": subtitles, "vtt": subtitles, "textgrid": textgrid}
"""Readers of (name, text) by the ending of a name."""


def read_entries(parsed: ParsedEntries) -> list[TranscriptEntry]:
    """All entries. Raises DataError for those that are wrong."""
    entries = list(parsed)
    if problems := [m for m in entries if isinstance(m, str)]:
        raise DataError("\n".join(problems[:MOST_PROBLEMS]))
    return [e for e in entries if isinstance(e, TranscriptEntry)]


def text_lines(name: str, data: bytes) -> list[str]:
    """The lines of a text file that are not empty, or the texts of subtitles and of a TextGrid. Raises DataError."""
    text = decoded(name, data)
    read = TIMED.get(name.rpartition(".")[2].lower())
    lines = [entry.text for entry in read_entries(read(name, text))] if read else lines_of(text)
    return [line for line in (" ".join(line.split()) for line in lines) if line]
