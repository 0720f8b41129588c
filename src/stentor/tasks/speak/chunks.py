"""Text chunks: long texts in parts that a model can speak in one go."""

import re
from collections.abc import Callable

LONGEST = 30.0
"""Seconds that are spoken in one go; what takes longer is divided."""
TARGET, SLACK = 15.0, 1.3
"""Seconds of a part of a text that is divided, and how many times as long one may be."""

# Where a text may be divided, best first: paragraphs, sentences, clauses, words. A mark of Latin punctuation only ends
# something before a space (3.14, a.m., example.com), an abbreviation or an initial ends nothing.
PARAGRAPH = re.compile(r"(?<=\n)\s*(?=\S)")
SENTENCE = re.compile(r"(?<=[.!?…।؟۔]['\"”’)\]])\s+|(?<=[.!?…।؟۔])\s+|(?<=[。！？][」』”’])|(?<=[。！？])(?![」』”’])")
CLAUSE = re.compile(r"(?<=[,;:—–،؛])\s+|(?<=[，；：、])")
WORD = re.compile(r"\s+")
ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"“])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|z\.B|d\.h|No|Nr|Fig|approx|ca|bzw|usw|M|Mme)\.$"
)


def chunks(text: str, seconds: Callable[[str], float], longest: float = LONGEST, target: float = TARGET) -> list[str]:
    """The text in parts of about `target` seconds (by `seconds`, the duration rule), or whole when it takes no more
    than `longest`. Divided at the ends of paragraphs and sentences where possible, else at commas, else between words,
    else anywhere. Nothing but white space is lost between parts."""
    text = text.strip()
    if not text or seconds(text) <= longest:
        return [text] if text else []
    pieces = _pieces(text, seconds, target)
    total = sum(map(seconds, pieces))
    # Parts of about equal length: a short last one would be spoken in another tone.
    even = total / max(1, round(total / target))
    parts: list[str] = []
    part, done, start = "", 0.0, 0.0
    for piece in pieces:
        length = seconds(piece)
        if part and (done + length / 2 > even * (len(parts) + 1) or done + length - start > SLACK * target):
            parts.append(part)
            part, start = "", done
        part += piece
        done += length
    return [part.strip() for part in [*parts, part] if part.strip()]


def _pieces(text: str, seconds: Callable[[str], float], target: float) -> list[str]:
    """The text cut as finely as is needed to have nothing longer than `target`; each with the space after it."""
    pieces = [text]
    for boundary in (PARAGRAPH, SENTENCE, CLAUSE, WORD):
        pieces = [
            part for piece in pieces for part in ([piece] if seconds(piece) <= target else _split(piece, boundary))
        ]
    return [part for piece in pieces for part in _halved(piece, seconds, target)]


def _split(text: str, boundary: re.Pattern[str]) -> list[str]:
    parts, start = [], 0
    for match in boundary.finditer(text):
        before = text[start : match.start()]
        if not before.strip() or (boundary is SENTENCE and ABBREVIATION.search(before)):
            continue
        parts.append(text[start : match.end()])
        start = match.end()
    return [part for part in [*parts, text[start:]] if part]


def _halved(text: str, seconds: Callable[[str], float], target: float) -> list[str]:
    if seconds(text) <= target or len(text) < 2:
        return [text]
    middle = len(text) // 2
    return [*_halved(text[:middle], seconds, target), *_halved(text[middle:], seconds, target)]
