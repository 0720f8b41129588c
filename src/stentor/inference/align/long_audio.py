"""Long recordings: windows of audio, each aligned with its part of the text.

The model's own transcript of each window is matched with the known text word by word (Levenshtein); the text is cut
where the windows are, and words that match nothing go with their neighbours, in proportion.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from stentor.data.word_units import units
from stentor.inference.align.base import Aligned, Clip, Word
from stentor.inference.align.boundaries import insert_pauses
from stentor.inference.vad import Window, cut
from stentor.metrics.wer import matches
from stentor.text.normalize import bare

LOST = 0.1
"""Least share of the words that match for a long text to be cut at all."""


def by_windows(
    clip: Clip,
    longest: float,
    align: Callable[[Clip, Window, str], Aligned],
    recognize: Callable[[Clip, Window], str],
    transcribe: bool,
    pauses: bool = True,
) -> Aligned:
    """Word times of a clip of any length by a model that takes `longest` seconds at a time.

    `align(clip, window, text)` returns word times from the start of the window, `recognize(clip, window)` the model's
    own transcript. With `pauses` these are inserted between words where there is silence
    (`stentor.inference.align.boundaries.insert_pauses`).
    """
    if not units(clip.text, clip.language):
        texts = [recognize(clip, w) for w in cut(clip.activity, clip.recording.rate, longest)] if transcribe else None
        return Aligned([], None if texts is None else " ".join(filter(None, texts)), reason="no_words")
    if clip.seconds <= longest:
        window = Window(0, clip.samples, 0, clip.samples)
        aligned = align(clip, window, clip.text)
        if transcribe:
            aligned.hypothesis = recognize(clip, window)
    else:
        aligned = _align_long(clip, longest, align, recognize)
    if pauses and aligned.words:
        insert_pauses(aligned.words, clip.activity, clip.seconds)
    return aligned


def _align_long(
    clip: Clip, longest: float, align: Callable[[Clip, Window, str], Aligned], recognize: Callable[[Clip, Window], str]
) -> Aligned:
    rate = clip.recording.rate
    windows = cut(clip.activity, rate, longest)
    hypotheses = []
    for window in windows:
        hypotheses.append(recognize(clip, window))
        clip.on_share(window.end / clip.samples / 2)
    words = units(clip.text, clip.language)
    ends, share = divide(
        [bare(w["word"]) for w in words], [[bare(u["word"]) for u in units(t, clip.language)] for t in hypotheses]
    )
    hypothesis = " ".join(filter(None, hypotheses))
    if share < LOST:
        return Aligned([], hypothesis, reason="mismatch")
    timed: list[Word] = []
    cost, mismatch = 0.0, False
    for window, (begin, end) in zip(windows, pairwise([0, *ends])):
        clip.on_share(0.5 + window.start / clip.samples / 2)
        if end == begin:
            continue
        text = clip.text[words[begin]["span"][0] : words[end - 1]["span"][1]]
        piece = align(clip, window, text)
        if piece.reason in ("no_words", "too_long_text"):
            return Aligned([], hypothesis, reason="mismatch")
        for word in piece.words:
            word.start += window.start / rate
            word.end += window.start / rate
        timed += piece.words
        cost += (piece.cost or 0.0) * len(piece.words)
        mismatch = mismatch or piece.reason == "mismatch"
    cost /= max(len(timed), 1)
    return Aligned(timed, hypothesis, cost, "mismatch" if mismatch and share < 0.5 else None)


def divide(words: Sequence[str], hypotheses: Sequence[Sequence[str]]) -> tuple[list[int], float]:
    """Where the words of a text end in each window: positions, never falling, the last is all of them; and the share
    of the words that match. `hypotheses` are the words that were recognised in each window."""
    recognized = [word for window in hypotheses for word in window]
    pairs = matches(words, recognized)
    ends: list[int] = []
    total = 0
    # (recognised word, word of the text) of each match, with both ends of both.
    anchors = [(-1, -1), *((h, w) for w, h in pairs), (len(recognized), len(words))]
    for window in hypotheses[:-1]:
        total += len(window)
        # The last match before the window's end, and the first one after it.
        k = next(k for k, (h, _) in enumerate(anchors) if h >= total)
        (h0, w0), (h1, w1) = anchors[k - 1], anchors[k]
        # Words between the two that match nothing are shared out as the recognised ones between them are.
        unmatched = h1 - h0 - 1
        share = (total - h0 - 1) / unmatched if unmatched else 0.5
        ends.append(w0 + 1 + round((w1 - w0 - 1) * share))
    ends.append(len(words))
    return ends, len(pairs) / max(len(words), 1)
