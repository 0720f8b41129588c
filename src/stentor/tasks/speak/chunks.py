"""Text chunks: long texts in parts that a model can speak in one go, planned on one estimate of all of it."""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from stentor.data.speaking_rate import weight

LONGEST = 30.0
"""Seconds that are spoken in one go; what takes longer is divided."""
TARGET = 15.0
"""Seconds of a part of a text that is divided."""
MOST = 1.2
"""Maximum duration of a part relative to its target."""
PARAGRAPH, SENTENCE, CLAUSE, WORD, LETTER = -0.3, 0.1, 0.35, 1.0, 3.0
"""Cost of dividing there, in addition to the squared logarithm of a part's duration relative to its target."""
FORCED = 0.02
"""Cost between words or letters if there is no better place within the maximum duration."""
LEAST = 2.0
"""Seconds of a part below which it costs 1 more (or half its target, where that is less): it would be spoken in another
tone, and is no voice for others."""
FINE = 4
"""Clauses are only divided where they are longer than the shortest target by this."""
HEADING = 40
"""Characters below which a line without a full stop is a heading or a verse, and not the line of a paragraph."""

CLOSING = "\"'”’»)\\]」』》）】"
END = re.compile(rf"[.!?…।॥؟۔።။។][{CLOSING}]*\s+|[。！？｡][{CLOSING}]*\s*")
# Thai, Lao, Tibetan, Burmese and Khmer have spaces between clauses only.
COMMA = re.compile(r"[,;:،؛](?=\s)\s+|[—–](?=\s)\s+|[，；：、､]\s*|(?<=[\u0e00-\u109f\u1780-\u17ff])\s+")
# French has spaces before some marks; a Japanese word rarely continues in another script after hiragana.
SPACE = re.compile(r"\s+(?![?!:;»%])|(?<=[ぁ-ん])(?=[一-鿿ァ-ヺ])")
LAST_WORD = re.compile(rf"[^\s({CLOSING[0]}“„«\[¿¡]*$")
PREPOSED, POSTPOSED = "เแโใไເແໂໃໄ", "ะาำๅๆຯະາຳໆฯ"
"""Vowels that are written before their consonant, and what is written after one."""
ABBREVIATIONS = re.compile(
    "prof|rev|hon|pres|gov|capt|gen|sen|rep|col|maj|cmdr|co|corp|inc|est|dept|ave|etc|approx|fig|def|ca|al|eds|vol|"
    "jan|feb|apr|aug|sept|oct|nov|dec|mme|mlle|ing|sra|dra|srta|dott|sig|av|ud|uds|ul|inz|им|ул|тыс|млн|руб|см|др|пр|"
    "ee|uu|bzw|usw|evtl|inkl|vgl|tel|abs|art|no|nos|num|nº"
)
"""Abbreviations that hold a vowel and mostly have something after them; in lower case."""


def chunks(
    text: str,
    seconds: Callable[[str], float],
    threshold: float = LONGEST,
    duration: float = TARGET,
    ramp: Sequence[float] = (),
) -> list[str]:
    """The text in parts of about `duration` seconds, at most a fifth more, or in one where it takes no more than
    `threshold` by `seconds`, the duration rule. The first parts are to last as `ramp` says.

    Parts share out the seconds of all of it by weight. Divided at the ends of paragraphs and sentences where possible,
    else at commas, else between words, else anywhere, as near these lengths as that allows. Nothing but white space is
    lost between parts; one that ends a paragraph ends with a line end.
    """
    text = text.strip()
    if not text:
        return []
    total = seconds(text)
    if total <= threshold or not weight(text):
        return [text]
    rate = total / weight(text)
    finest, most = min([*ramp, duration]) / FINE / rate, MOST * duration / rate
    places = [(0, PARAGRAPH), *_places(text, finest, most), (len(text), PARAGRAPH)]
    atoms = [text[start:end] for (start, _), (end, _) in itertools.pairwise(places)]
    times = list(itertools.accumulate((weight(atom) * rate for atom in atoms), initial=0.0))
    cuts = _best([*ramp, duration], MOST * duration, times, [cost for _, cost in places])
    parts = [text[places[i][0] : places[j][0]] for i, j in itertools.pairwise(cuts)]
    return [part.strip() + ("\n" if "\n" in part[len(part.rstrip()) :] else "") for part in parts if part.strip()]


def _best(targets: list[float], most: float, times: list[float], costs: list[float]) -> list[int]:
    """Indices of `times` (the seconds at each place) at which dividing costs least, the first and the last included.
    The last of `targets`, the lengths of the parts, is for all that follow."""
    # Of each place, by the number of parts before it as far as the targets go: cost, place before, parts before that.
    best: list[dict[int, tuple[float, int, int]]] = [{} for _ in times]
    best[0][0] = (0.0, 0, 0)
    for i, states in enumerate(best):
        for parts, (cost, _, _) in states.items():
            target, number = targets[parts], min(parts + 1, len(targets) - 1)
            for j in range(i + 1, len(times)):
                length = times[j] - times[i]
                if length > most and j > i + 1:
                    break
                total = cost + math.log(max(length, 1e-3) / target) ** 2 + costs[j] + (length < min(LEAST, target / 2))
                if number not in best[j] or total < best[j][number][0]:
                    best[j][number] = (total, i, parts)
    place, parts = len(times) - 1, min(best[-1], key=lambda number: best[-1][number][0])
    cuts = [place]
    while place:
        _, place, parts = best[place][parts]
        cuts.append(place)
    return cuts[::-1]


def _places(text: str, finest: float, most: float) -> Iterator[tuple[int, float]]:
    """Where the text may be divided: (start of what comes after, cost); words and letters only within what has more
    weight than `finest`."""
    coarse: dict[int, float] = {}
    cased = any(map(str.isupper, text))
    for cost, boundary in ((CLAUSE, COMMA), (SENTENCE, END)):
        coarse |= {m.end(): cost for m in boundary.finditer(text) if cost == CLAUSE or ends_sentence(text, m, cased)}
    for match in re.finditer(r"\s*\n\s*", text):
        coarse[match.end()] = _line_end(text, match, coarse.get(match.end()))
    start = 0
    for end in [*sorted(coarse.keys() - {len(text)}), len(text)]:
        words = [m.end() for m in SPACE.finditer(text, start, end) if start < m.end() < end]
        yield from _inside(text, [start, *words, end], finest, most)
        if end < len(text):
            yield end, coarse[end]
        start = end


def _inside(text: str, words: list[int], finest: float, most: float) -> Iterator[tuple[int, float]]:
    """Places within a clause, by the places of its words."""
    clause = weight(text[words[0] : words[-1]])
    for start, end in itertools.pairwise(words) if clause > finest else ():
        word = weight(text[start:end])
        for i in range(start + 1, end) if word > finest else ():
            if (
                unicodedata.category(text[i])[0] not in "MPZ"
                and text[i] not in POSTPOSED
                and text[i - 1] not in PREPOSED
            ):
                yield i, LETTER if word <= most else FORCED
        if end < words[-1]:
            yield end, WORD if clause <= most else FORCED


def _line_end(text: str, match: re.Match[str], cost: float | None) -> float:
    """Cost at a line end, which may be the end of a wrapped line."""
    if cost == SENTENCE or match[0].count("\n") > 1:
        return PARAGRAPH
    line, after = text[text.rfind("\n", 0, match.start()) + 1 : match.start()], text[match.end() : match.end() + 1]
    return PARAGRAPH if len(line) < HEADING and not after.islower() and cost is None else cost or WORD


def ends_sentence(text: str, match: re.Match[str], cased: bool = True) -> bool:
    """Whether a match of `END` ends a sentence, as far as that is sure without knowing the language.

    A missed end costs little, but a divided sentence costs much, so these do not end a sentence: abbreviations (a word
    without a vowel, or in `ABBREVIATIONS`), initials, short ordinals, and, in a text with capitals (`cased`),
    anything followed by lower case.
    """
    after = text[match.end() : match.end() + 2].lstrip("\"'“„«(¿¡")[:1]
    if (cased and after.islower()) or re.match("[。！？｡]['”’」』][ぁ-ん]", text[match.start() : match.start() + 3]):
        return False
    if match[0][0] != ".":
        return True
    last = LAST_WORD.search(text, max(0, match.start() - 40), match.start())
    word = unicodedata.normalize("NFKD", last[0].lower().replace("’", "'") if last else "")
    letters = "".join(c for c in word if unicodedata.category(c)[0] != "M")
    if not letters or letters.endswith("."):
        return True
    vowelless = letters.isascii() and letters.isalpha() and not re.search("[aeiouy]", letters)
    inner = "." in letters and re.sub("[.-]", "", letters).isalpha() and len(letters) < 8
    short = len(letters) == 1 or (letters.isdigit() and len(letters) < 3)
    return not (vowelless or inner or short or ABBREVIATIONS.fullmatch(letters.removeprefix("l'")))
