"""Subtitles: SubRip and WebVTT. What is no speech is taken out and counted.

`NAME:` at the beginning of a cue is its speaker where at least two cues have it and half of all cues, or two different
names in capitals; other words and a colon stay in the text. A dash marks a change of speaker: where more than half of
the cues have one, they are two people in turn. A cue in which two people speak has no speaker.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from stentor.text.transcript_formats import ParsedEntries, Remark, TranscriptEntry, lines_of

_CLOCK = re.compile(r"(?:\d{1,4}:)?\d{1,2}:\d{2}(?:[,.]\d{1,3})?(?!\d)")
_VOICE = re.compile(r"<v(?:\.[^ <>]*)? ([^<>]+)>")
_TAG = re.compile(r"</?(?:[ibuc]|v|font|ruby|rt|lang)(?:[ .][^<>]*)?>|<\d[\d:.]*>|\{\\[^{}]*\}")
_BREAK = re.compile(r"(\s?)</(\w+)>\n(?:\{\\[^{}]*\})*<(?!\2\b)\w[^<>\n]*>(?=(\s?))")
"""A line's end between two different tags, and the spaces beside them."""
_SOUNDS = (
    "music|musik|musique|música|musica|muziek|appla|beifall|laugh|lach|gelächter|rire|risa|cheer|sigh|cough|clap|"
    "inaudible|crosstalk|silence|noise|笑|拍手|音楽|音乐|掌声"
)
_NO_SPEECH = re.compile(
    rf"(?<!\S)\[[^][\n]*\](?!\s?:)|【[^】\n]*】|[♪♫♬♩]+|>>+|[(（][^()（）\n]{{0,40}}\b(?:{_SOUNDS})[^()（）\n]{{0,40}}[)）]"
    r"|(?m:^[-–— \t]*[(（][^()（）\n]*[)）][ \t]*$)",
    re.IGNORECASE,
)
"""Marks of sounds: in brackets, in parentheses what is a line of its own or a known sound, notes, `>>`."""
_LABEL = re.compile(r"(?m:^)[-–— \t]*\[?([^\W\d_][^\n:：\][<>]{0,39}?)\]?(?:[ \t]?:(?=\s)|：)[ \t]*")
_NO_NAMES = "note notes nota hinweis achtung attention warning caution example beispiel remember update tip hint step"
_DASH = re.compile(r"(?m:^)[ \t]*[-–—][ \t]*(?=[^\W\d]|[\"'“„«¿¡…])")
_MOST_WORDS = 60
"""Words of a rolling caption that are compared with those before it."""
_GROWN = 8.0
"""Seconds up to which a line that grows word by word is one transcript."""


@dataclass(frozen=True)
class _Cue:
    text: str
    """Lines, without tags."""
    start: float
    end: float
    speakers: tuple[str, ...]
    where: str


_Step = tuple[list[_Cue], list[str]]
"""Cues, and sentences about what was taken out or assumed."""


def subtitles(name: str, text: str) -> ParsedEntries:
    """The cues as transcripts, each line once, and remarks on what was taken out or assumed. A cue that stands there
    twice (for its style) counts once."""
    found: dict[tuple[float, float, str], _Cue] = {}
    spaced = any(before or after for before, _, after in _BREAK.findall(text))  # the file writes spaces itself there
    for cue in _cues(name, text):
        if isinstance(cue, str):
            yield cue
            continue
        plain = html.unescape(_TAG.sub("", _BREAK.sub(r"\1", cue.text) if spaced else cue.text)).strip()
        speakers = tuple(voice.strip() for voice in _VOICE.findall(cue.text))
        found.setdefault((cue.start, cue.end, plain), replace(cue, text=plain, speakers=speakers))
    cues, remarks = list(found.values()), []
    for step in (_spoken, _once, _named, _in_turn):
        cues, said = step(cues)
        remarks += said
    several = 0
    for cue in cues:
        several += len(set(cue.speakers)) > 1
        speaker = cue.speakers[0] if len(set(cue.speakers)) == 1 else None
        yield TranscriptEntry(" ".join(cue.text.split()), None, cue.start, cue.end, None, speaker, cue.where)
    if several:
        remarks.append(f"Two people speak, so that no speaker is noted, subtitles: {several}.")
    yield from (Remark(f"{name}: {remark}") for remark in remarks)


def _cues(name: str, text: str) -> Iterator[_Cue | str]:
    """Blocks with a line of times. In WebVTT only an empty line ends one: YouTube puts lines of one space into them."""
    lines = [*lines_of(text), ""]
    web = name.lower().endswith(".vtt")
    times = [i for i, line in enumerate(lines) if "-->" in line and not line.startswith("NOTE")]
    for at, following in zip(times, [*times[1:], len(lines)]):
        body = lines[at + 1 : following]
        body = body[: body.index("")] if web and "" in body else body
        if following < len(lines) and following == at + 1 + len(body) and body and body[-1].strip().isdigit():
            body.pop()  # the next cue's number
        where, parts = f"{name}:{at + 1}", lines[at].split("-->")
        clocks = [match[0] for part in parts if (match := _CLOCK.match(part.strip()))]
        if len(parts) == len(clocks) == 2:
            yield _Cue("\n".join(body), clock_seconds(clocks[0]), clock_seconds(clocks[1]), (), where)
        else:
            yield f"{where}: these are not times such as 00:00:01,000 --> 00:00:02,500."


def clock_seconds(clock: str) -> float:
    """Seconds of a time such as 1:02:03,5."""
    return sum(float(part) * 60**i for i, part in enumerate(reversed(clock.replace(",", ".").split(":"))))


def _spoken(cues: Sequence[_Cue]) -> _Step:
    """Cues without what is no speech."""
    marks: Counter[str] = Counter()
    kept = []
    for cue in cues:
        marks.update(mark.strip(" \t-–—") for mark in _NO_SPEECH.findall(cue.text))
        lines = (" ".join(line.split()) for line in _NO_SPEECH.sub(" ", cue.text).split("\n"))
        kept.append(replace(cue, text="\n".join(line for line in lines if line.strip("-–— "))))
    empty = sum(not cue.text for cue in kept)
    said = f"Taken out, because it is no speech: {_listed(marks)}; subtitles with nothing else: {empty}."
    return [cue for cue in kept if cue.text], [said] if marks else []


def _once(cues: Sequence[_Cue]) -> _Step:
    """Rolling captions: each line with the time in which it is new, or, where cues only overlap, until the next one."""
    pairs = [(_repeated(a.text, b.text), len(b.text.split())) for a, b in pairwise(cues)]
    crossing = sum(a.end > b.start + 0.25 > a.start for a, b in pairwise(cues))
    rolling = sum(k > 0 for k, _ in pairs) * 2 >= len(pairs) and sum(0 < k < n for k, n in pairs) * 4 >= len(pairs)
    if len(cues) > 2 and rolling:
        new = [cues[0]]
        for cue, (k, count) in zip(cues[1:], pairs, strict=True):
            rest, within = _without(cue.text, k)
            if k < count and within and cue.end - new[-1].start <= _GROWN:
                new[-1] = replace(new[-1], text=f"{new[-1].text} {rest}", end=cue.end)
            elif k < count:
                new.append(replace(cue, text=rest))
        return new, [f"Rolling captions: each line counts once, with its own time ({len(new)} of {len(cues)})."]
    if len(cues) > 3 and crossing * 2 >= len(pairs):
        cut = [replace(a, end=min(a.end, b.start)) if b.start > a.start else a for a, b in pairwise(cues)]
        return [*cut, cues[-1]], [f"Rolling captions: each one ends where the next one begins ({crossing})."]
    return list(cues), []


def _repeated(before: str, text: str) -> int:
    """Words at the beginning of a cue that are the last lines of the one before, or its last three words or more."""
    old, words = before.split(), text.split()[:_MOST_WORDS]
    lines = set(accumulate(len(line.split()) for line in reversed(before.split("\n"))))
    fits = (k for k in range(min(len(old), len(words)), 0, -1) if old[-k:] == words[:k] and (k > 2 or k in lines))
    return next(fits, 0)


def _without(text: str, count: int) -> tuple[str, bool]:
    """Lines without their first words, and whether a line was cut within."""
    lines = [line.split() for line in text.split("\n")]
    while lines and count >= len(lines[0]):
        count -= len(lines.pop(0))
    return "\n".join(" ".join(line) for line in [lines[0][count:], *lines[1:]]) if lines else "", count > 0


def _named(cues: Sequence[_Cue]) -> _Step:
    """Speakers by names before a colon."""
    names = Counter(name for cue in cues for name in _LABEL.findall(cue.text) if _is_name(name))
    begin = sum((label := _LABEL.match(cue.text)) is not None and label[1] in names for cue in cues)
    capitals = {name for name in names if name.upper() == name != name.lower()}
    known = capitals if len(capitals) > 1 or sum(names[n] for n in capitals) * 2 >= len(cues) else set(names)
    if begin < 2 or (begin * 2 < len(cues) and len(capitals) < 2):
        known = set()
    elif begin < len(cues) and max(names.values()) > 1 and not capitals:
        known = {name for name in known if names[name] > 1}
    found = []
    for cue in cues:
        speakers = (*cue.speakers, *(name for name in _LABEL.findall(cue.text) if name in known))
        text = _LABEL.sub(lambda label: "" if label[1] in known else label[0], cue.text)
        found.append(replace(cue, text=text, speakers=speakers))
    taken = Counter({name: n for name, n in names.items() if name in known})
    said = [f"Speakers by the names before a colon: {_listed(taken)}."] if taken else []
    if left := names - taken:
        said.append(f"Before a colon, but left in the texts as no speaker: {_listed(left)}.")
    return [cue for cue in found if cue.text.strip()], said


def _is_name(label: str) -> bool:
    return len(label.split()) < 5 and not label[0].islower() and label.split()[0].casefold() not in _NO_NAMES.split()


def _in_turn(cues: Sequence[_Cue]) -> _Step:
    """Speakers by dashes."""
    dashes = [len(_DASH.findall(cue.text)) for cue in cues]
    alone = sum(count == 1 and _DASH.match(cue.text) is not None for cue, count in zip(cues, dashes))
    found, turn, assumed = [], 0, alone * 2 > len(cues) > 1
    for cue, count in zip(cues, dashes):
        people = count + (count == 1 and not _DASH.match(cue.text))
        names = [f"speaker {(turn + i) % 2 + 1}" for i in range(people)] if people > 1 or assumed else []
        found.append(replace(cue, text=_DASH.sub("", cue.text), speakers=cue.speakers or tuple(names)))
        turn += count
    said = f"A dash marks a change of speaker, subtitles: {sum(map(bool, dashes))}"
    said += "; two people in turn were assumed, speaker 1 and speaker 2." if assumed else "."
    return found, [said] if any(dashes) else []


def _listed(counts: Counter[str]) -> str:
    more = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
    return ", ".join(f"{mark} ({n})" for mark, n in counts.most_common(5)) + more
