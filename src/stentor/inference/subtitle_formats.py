"""Subtitle formats: SubRip, WebVTT, Advanced SubStation Alpha, lyrics (LRC) and Whisper's table (TSV).

Characters that a format would read as its own, and cannot escape, are written in full width.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from stentor.inference.options import SubtitleOptions
from stentor.inference.subtitles import Cue, cues

ASS_HEADER = """\
[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, Outline, Alignment, MarginV
Style: Default,Arial,64,&H00FFFFFF,&H00808080,&H00000000,3,2,54

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


@dataclass(frozen=True)
class SubtitleFormat:
    """A way to write subtitles: it takes a transcript and, if not the default, the rules."""

    event: str
    """A subtitle: `n`, `start`, `end`, `label`, `speaker` and `text`."""
    time: Callable[[float], str]
    escape: Callable[[str], str]
    header: str = ""
    line_end: str | None = None
    """Line break; None: the space or nothing of the text."""
    word: Callable[[str, float, float, Cue], str] | None = None
    """A highlighted word: its text, its start, that of the next one and its subtitle."""
    label: str = "{}: "
    """The speaker, where there are several."""
    always_labelled: bool = False
    """Whether the speaker is named in each subtitle, not only where another one begins."""

    def __call__(self, transcript: dict[str, Any], rules: SubtitleOptions | None = None) -> str:
        rules = rules or SubtitleOptions()
        several = len({s["speaker"] for s in transcript["segments"] if s.get("speaker")}) > 1
        events, last = [self.header], None
        for n, cue in enumerate(cues(transcript, rules), 1):
            named = (
                cue.speaker and several and (self.always_labelled or (rules.cues != "words" and cue.speaker != last))
            )
            last, name = cue.speaker, self.escape(cue.speaker or "")
            starts, text = [cue.start, *(part.start for part in cue.parts[1:]), cue.end], ""
            for part, at, after in zip(cue.parts, starts, starts[1:]):
                word = self.escape(part.text)
                text += self.line_end if part.new_line and self.line_end is not None else part.gap
                text += self.word(word, at, after, cue) if self.word and rules.highlight_words else word
            label = self.label.format(name) if named else ""
            start, end = self.time(cue.start), self.time(cue.end)
            events.append(self.event.format(n=n, start=start, end=end, label=label, speaker=name, text=text))
        return "".join(events)


def _clock(form: str, digits: int, seconds: float) -> str:
    whole, part = divmod(round(seconds * 10**digits), 10**digits)
    return form.format(h=whole // 3600, m=whole // 60 % 60, minutes=whole // 60, s=whole % 60, part=part)


def _wide(own: str, text: str) -> str:
    return re.sub(own, lambda match: chr(ord(match.group()) + 0xFEE0), text, flags=re.IGNORECASE)


_VTT_TIME = partial(_clock, "{h:02}:{m:02}:{s:02}.{part:03}", 3)
_LRC_TIME = partial(_clock, "{minutes:02}:{s:02}.{part:02}", 2)
to_srt = SubtitleFormat(
    "{n}\n{start} --> {end}\n{label}{text}\n\n",
    partial(_clock, "{h:02}:{m:02}:{s:02},{part:03}", 3),
    partial(_wide, r"(?<=--)>|<(?=/?[a-z])|\{(?=\\)|\\(?=[nh])"),  # arrows and tags
    line_end="\n",
)
to_vtt = SubtitleFormat(
    "{start} --> {end}\n{label}{text}\n\n",
    _VTT_TIME,
    partial(escape, quote=False),
    "WEBVTT\n\n",
    "\n",
    # A time must lie within its subtitle.
    lambda word, start, _, cue: f"<{_VTT_TIME(start)}>" * (cue.start < start < cue.end) + f"<c>{word}</c>",
    "<v {}>",
    always_labelled=True,
)
to_ass = SubtitleFormat(
    "Dialogue: 0,{start},{end},Default,{speaker},0,0,0,,{text}\n",
    partial(_clock, "{h}:{m:02}:{s:02}.{part:02}", 2),
    partial(_wide, r"[{}\\]"),
    ASS_HEADER,
    r"\N",
    lambda word, start, after, _: f"{{\\k{max(0, round(100 * after) - round(100 * start))}}}{word}",
)
to_lrc = SubtitleFormat(
    "[{start}]{label}{text}\n",
    _LRC_TIME,
    partial(_wide, r"[][<>]"),
    word=lambda word, start, *_: f"<{_LRC_TIME(start)}>{word}",
)
to_tsv = SubtitleFormat(
    "{start}\t{end}\t{label}{text}\n", lambda seconds: str(round(1000 * seconds)), str, "start\tend\ttext\n"
)
