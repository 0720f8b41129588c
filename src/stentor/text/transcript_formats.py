"""Transcripts, their encodings, and TextGrids of Praat (other formats: text.subtitles, data.layouts.transcripts).

Each file becomes one `TranscriptEntry` for each transcript, and a sentence with the file's name and line for each
mistake. A stranger may have written it: names in it are only compared with the names of the uploaded files. Subtitles
and TextGrids are not read by pysubs2 and a TextGrid package, because every mistake is reported with its line, speakers
are kept, and a stranger's file costs time in proportion to its length.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple, cast

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.errors import DataError

MOST_PROBLEMS = 20
"""Mistakes of a file that are reported."""
_SILENCE = {"sil", "sp", "spn", "<eps>", "<p:>", "<unk>", "<s>", "</s>"}
"""Marks of aligners for intervals without words."""
_PAUSE = 0.5
"""Seconds between the words of two sentences, where only words are given."""
_TOKEN = re.compile(
    r'"(?P<string>(?:[^"]|"")*+)"|[A-Za-z_?][^"=:\n]*[=:]?|\[[^][\n]*\]|<[^<>\n]*>|![^\n]*'
    r"|(?P<number>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
)
"""Values of a TextGrid, and what is no value: keys, places in lists, flags, comments."""


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


class Remark(NamedTuple):
    """A sentence about what was taken out or assumed."""

    text: str


ParsedEntries = Iterator[TranscriptEntry | Remark | str]
"""Entries, a sentence in place of each that is wrong, and remarks."""
ENCODINGS = {"utf-16": "UTF-16", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16", "cp1252": "Windows-1252"}


def stem(name: str) -> str:
    """A recording's name without folders and without an ending of audio or transcripts."""
    last = PurePosixPath(name.replace("\\", "/")).name
    front, dot, ending = last.rpartition(".")
    known = (*AUDIO_SUFFIXES, ".txt", ".lab", ".json", ".srt", ".vtt", ".textgrid")
    return front if dot and front and f".{ending.lower()}" in known else last


def lines_of(text: str) -> list[str]:
    """Lines as editors count them; other separators of Unicode may stand inside of a text."""
    return re.split(r"\r\n|\r|\n", text)


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text by its first bytes; None for UTF-8, also where single lines of it are damaged."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if head[:40].count(0) * 3 > len(head[:40]):
        return "utf-16-be" if head[0] == 0 else "utf-16-le"
    if re.search(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}", head):
        return None
    runs = [run.decode("cp1252", "replace") for run in re.findall(rb"[\x80-\xff]+", head)]
    signs = "‘’“”–—…«»¿¡€°"
    return "cp1252" if runs and all(len(r) < 4 and all(c.isalpha() or c in signs for c in r) for r in runs) else None


def text_of(name: str, data: bytes) -> tuple[str, list[Remark]]:
    """The text of a file in any encoding that is recognised, with a remark where it was. Raises DataError."""
    if (encoding := encoding_of(data)) in (None, "utf-16"):
        return decoded(name, data), []
    return decoded(name, data.decode(encoding, "replace").encode()), [
        Remark(f"{name}: its text was read as {ENCODINGS[encoding]}, by what it holds.")
    ]


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
    """(line, value) of the strings and numbers of a TextGrid; `xmin =`, `intervals [3]:` and flags are passed over."""
    line, reached = 1, 0
    for token in _TOKEN.finditer(text):
        line, reached = line + text.count("\n", reached, token.start()), token.start()
        if token["string"] is not None:
            yield line, " ".join(token["string"].split("\n")).replace('""', '"')
        elif token["number"]:
            yield line, float(token["number"])
