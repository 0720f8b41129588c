"""A long recording and its text, cut into windows with the words that belong to each.

What a model writes down for each window by itself is matched with the known text word by word (Levenshtein); the text
is cut where the windows are, and words that match nothing go with their neighbours, in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stentor.inference.align.base import Aligned, Clip, Word
from stentor.inference.align.boundaries import part
from stentor.inference.vad import Window, cut
from stentor.metrics.wer import matches
from stentor.tasks.words import units

LOST = 0.1
"""Share of the words that must be found again for a long text to be cut at all."""


def by_windows(
    clip: Clip,
    longest: float,
    align: Callable[[Clip, Window, str], Aligned],
    listen: Callable[[Clip, Window], str],
    transcribe: bool,
    pauses: bool = True,
) -> Aligned:
    """Word times of a clip of any length by a model that takes `longest` seconds at a time.

    `align(clip, window, text)` answers word times from the start of the window, `listen(clip, window)` what the model
    hears there. With `pauses` boundaries are parted where there is silence (`stentor.inference.align.boundaries.part`).
    """
    words = units(clip.text, clip.language)
    if not words:
        return Aligned([], heard=_all_heard(clip, longest, listen) if transcribe else None, reason="no_words")
    rate = clip.recording.rate
    if clip.seconds <= longest:
        whole = Window(0, clip.samples, 0, clip.samples)
        found = align(clip, whole, clip.text)
        if transcribe:
            found.heard = listen(clip, whole)
    else:
        found = _long(clip, longest, align, listen, rate)
    if pauses and found.words:
        part(found.words, clip.activity, clip.seconds)
    return found


def _all_heard(clip: Clip, longest: float, listen: Callable[[Clip, Window], str]) -> str:
    windows = cut(clip.activity, clip.recording.rate, longest)
    return " ".join(text for window in windows if (text := listen(clip, window)))


def _long(
    clip: Clip,
    longest: float,
    align: Callable[[Clip, Window, str], Aligned],
    listen: Callable[[Clip, Window], str],
    rate: int,
) -> Aligned:
    windows = cut(clip.activity, rate, longest)
    heard = [listen(clip, window) for window in windows]
    words = units(clip.text, clip.language)
    written = [[_bare(u["word"]) for u in units(text, clip.language)] for text in heard]
    ends, share = divide([_bare(w["word"]) for w in words], written)
    text = " ".join(h for h in heard if h)
    if share < LOST:
        return Aligned([], heard=text, reason="mismatch")
    found: list[Word] = []
    worse, worst = 0.0, False
    begin = 0
    for window, end in zip(windows, ends):
        if end > begin:
            a, b = words[begin]["span"][0], words[end - 1]["span"][1]
            piece = align(clip, window, clip.text[a:b])
            if piece.reason in ("no_words", "too_long_text"):
                return Aligned([], heard=text, reason="mismatch")
            for word in piece.words:
                word.start += window.start / rate
                word.end += window.start / rate
            found += piece.words
            worse += (piece.worse or 0.0) * len(piece.words)
            worst = worst or piece.reason == "mismatch"
        begin = end
    worse /= max(len(found), 1)
    return Aligned(found, heard=text, worse=worse, reason="mismatch" if worst and share < 0.5 else None)


def divide(words: Sequence[str], heard: Sequence[Sequence[str]]) -> tuple[list[int], float]:
    """Where the words of a text end in each window: positions, never falling, the last is all of them; and the share
    of the words that were heard.

    `heard` are the words that were heard in each window.
    """
    flat = [word for window in heard for word in window]
    pairs = matches(words, flat)
    ends: list[int] = []
    total = 0
    # Anchors: heard words before each place in the text, with both ends of both.
    anchors = [(-1, -1), *((h, w) for w, h in pairs), (len(flat), len(words))]
    for window in heard[:-1]:
        total += len(window)
        # The last match before the window's end, and the first one after it.
        k = next(k for k, (h, _) in enumerate(anchors) if h >= total)
        (h0, w0), (h1, w1) = anchors[k - 1], anchors[k]
        between = w1 - w0 - 1  # words of the text that match nothing, between the two
        unheard = h1 - h0 - 1
        inside = total - h0 - 1  # of what was heard between the two, so much lies in this window
        share = inside / unheard if unheard else 0.5
        ends.append(w0 + 1 + round(between * share))
    ends.append(len(words))
    return ends, len(pairs) / max(len(words), 1)


def _bare(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())
