"""Drawings of a model's output for one recording, as in the report, for Gradio pages: the demo Spaces and the studio's
step "Try".

Each function answers an HTML fragment whose texts are escaped. A page shows it with `style()` and `script()` once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.data.audio_base64 import encode_audio
from stentor.report import timeline, word_times
from stentor.report.examples import UNSURE, compare
from stentor.report.pages import macro, source
from stentor.report.sounds import data_url
from stentor.report.spectrogram import png, spectrogram
from stentor.report.svg import SIZE, Span, span, spans_of, step_of, ticks_of

LONGEST = 120.0
"""Seconds of a recording that are drawn; a drawing holds its sound."""
LINE = 8.0
"""Seconds of words that one line shows at most."""
NOTHING = "Nothing was heard."


@dataclass
class Answer:
    """A model's answer for a recording, line by line."""

    lines: list[Any]
    """`word_times.Drawing` or `timeline.Line`."""
    sound: str
    """A data: URL of what is drawn."""
    partly: str
    """Part of the recording that is drawn; empty when all of it is."""


def words(transcript: Sequence[Mapping[str, Any]], samples: np.ndarray, rate: int) -> str:
    """Words with their times below the recording's spectrogram; a word plays when it is clicked. `transcript`: words as
    in one, `{"word", "start", "end", "confidence"}`; `samples` float32 [samples] at `rate` Hz."""
    if not transcript:
        return _nothing()
    samples, seconds, partly = _shown(samples, rate)
    lines = [_word_line(transcript, samples, rate, *span) for span in spans_of(seconds, LINE)]
    return _render("words.html", "answered", Answer(lines, _sound(samples, rate), partly))


def speakers(segments: Sequence[Mapping[str, Any]], samples: np.ndarray, rate: int) -> str:
    """Speaker timeline, one row per speaker; a stretch plays when it is clicked. `segments`: `{"speaker", "start",
    "end"}`; `samples` float32 [samples] at `rate` Hz."""
    if not segments:
        return _nothing()
    samples, seconds, partly = _shown(samples, rate)
    inside = [{**s, "end": min(s["end"], seconds)} for s in segments if s["start"] < seconds]
    compared = timeline.compare(inside, [], None, seconds)
    lines = [timeline.line(compared, *span) for span in spans_of(seconds, timeline.LINE)]
    return _render("timeline.html", "answered", Answer(lines, _sound(samples, rate), partly))


def judged_speakers(
    reference: Sequence[Mapping[str, Any]],
    segments: Sequence[Mapping[str, Any]],
    samples: np.ndarray,
    rate: int,
    name: str = "",
) -> str:
    """The same over the segments of a reference, with what is missed, falsely raised and confused."""
    seconds = len(samples) / rate
    row = {"id": name, "reference": {"duration": seconds}}
    drawing = timeline.draw(row, timeline.compare(reference, segments, None, seconds))
    if seconds <= LONGEST:
        drawing.sound = _sound(samples, rate)
    return _render("timeline.html", "drawing", drawing)


def sound(samples: np.ndarray, rate: int) -> str:
    """A player over the sound's spectrogram. `samples` float32 [samples] at `rate` Hz, at most `LONGEST` seconds of
    which are drawn; it can be heard whole."""
    shown, seconds, _ = _shown(samples, rate)
    ticks = ticks_of(0.0, seconds, step_of(seconds))
    picture = data_url("image/png", png(spectrogram(shown, rate)))
    line = word_times.Drawing(0.0, seconds, ticks, picture=picture)
    return _render("words.html", "answered", Answer([line], _sound(samples, rate), ""))


def differences(
    first: str, second: str, names: tuple[str, str], normalizer: str = "none", language: str | None = None
) -> str:
    """Two texts word by word, the second below the first, with what was inserted, left out and replaced marked. `names`
    say what they are to those who do not see the page."""
    return _render("pairs.html", "words", compare(first, second, normalizer, language), UNSURE, *names)


def style() -> str:
    """The style sheet of all drawings, in the colours of Gradio's theme, light and dark; it reaches nothing else."""
    inner = "".join(macro(page, "style") for page in ("pairs.html", "words.html", "timeline.html"))
    return source("drawn.css").replace("/* DRAWINGS */", inner)


def script() -> str:
    """The JavaScript that lets drawings play, to be run once in a page."""
    return source("drawn.js")


def _render(page: str, name: str, *arguments: Any) -> str:
    return f'<div class="stentor-drawn">{macro(page, name, *arguments)}</div>'


def _nothing() -> str:
    return f'<div class="stentor-drawn"><p class="soft">{NOTHING}</p></div>'


def _shown(samples: np.ndarray, rate: int) -> tuple[np.ndarray, float, str]:
    """The samples that are drawn, their seconds, and a sentence where that is not all."""
    seconds = len(samples) / rate
    if seconds <= LONGEST:
        return samples, seconds, ""
    note = f"The first {LONGEST:.0f} of {seconds:.0f} s are drawn."
    return samples[: round(LONGEST * rate)], LONGEST, note


def _word_line(
    transcript: Sequence[Mapping[str, Any]], samples: np.ndarray, rate: int, begin: float, end: float
) -> word_times.Drawing:
    def boxed(word: Mapping[str, Any]) -> Span:
        sure = word.get("confidence")
        title = f"{word['word']}: {word['start']:.2f}–{word['end']:.2f} s"
        title += "" if sure is None else f", confidence {sure:.2f}"
        kind = "right unsure" if sure is not None and sure < UNSURE else "right"
        return span(word["start"], word["end"], (begin, end), title, kind, word["word"])

    outputs = [boxed(w) for w in transcript if word_times.has_times(w) and w["start"] < end and w["end"] > begin]
    picture = png(spectrogram(samples[round(begin * rate) : round(end * rate)], rate))
    return word_times.Drawing(
        begin,
        end,
        ticks_of(begin, end, 0.5 if end - begin > 2 else 0.2),
        outputs=outputs,
        output_lines=word_times.lines(outputs, 0, SIZE),
        picture=data_url("image/png", picture),
    )


def _sound(samples: np.ndarray, rate: int) -> str:
    return f"data:audio/flac;base64,{encode_audio(samples, rate)['flac']}"
