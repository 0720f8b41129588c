"""Seams of windows that overlap, where speech without a pause had to be cut: each word of the shared audio once.

Words that both windows have at the same time are found, and the text changes over at the one that is nearest to the
middle of the shared audio. Times are those of the model, or estimated from the place of a word in its window's text.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from stentor.inference.vad import Window
from stentor.text.normalize import bare
from stentor.text.written_words import written_words

OVERLAP, SHARE = 2.0, 0.088
"""Maximum seconds of audio that two windows share, and its maximum share of the longest window."""
NEAR = 0.2
"""Maximum seconds between the two times of one word. Times that are estimated may differ by the length of the shared
audio."""
CHANGE = 0.85
"""Place of the change where the windows have no word in common, as a share of the shared audio. The end of a window is
written correctly more often than its beginning. Measured: 75 errors instead of 93 for a change in the middle."""


class PlacedWord(NamedTuple):
    """A word of a window's text."""

    bare: str
    at: int
    """Its first character in the text."""
    middle: float
    """Seconds of the recording, as `end`."""
    end: float


def join_windows(
    answers: Sequence[tuple[Window, dict[str, Any]]], left_out: Sequence[object], rate: int
) -> tuple[list[Window], list[dict[str, Any]], list[str]]:
    """Return windows in order and their outputs without the words that a neighbour has, and a note on seams without a
    common word. Next to a window without text, or one that is `left_out`, all words are kept."""
    windows, outputs = [window for window, _ in answers], [output for _, output in answers]
    joined, words = list(windows), [_placed(*answer, rate) for answer in answers]
    begins, ends, unmatched, seams = [0] * len(words), [len(row) for row in words], list[float](), 0
    for i, (left, right) in enumerate(pairwise(windows)):
        if right.start >= left.end:
            continue
        shared = (right.start / rate, left.end / rate)
        have_text = [bool(words[k]) and not left_out[k] for k in (i, i + 1)]
        change = shared[have_text[0]]
        if all(have_text):
            timed = all("start" in outputs[k]["words"][0] for k in (i, i + 1) if outputs[k]["words"])
            near = NEAR if timed else shared[1] - shared[0]
            ends[i], begins[i + 1], matched = find_seam(words[i], words[i + 1], shared, near)
            change = words[i][ends[i] - 1].end if timed and ends[i] else right.speech_start / rate
            seams += 1
            unmatched += [] if matched else [sum(shared) / 2]
        at = round(min(max(change, shared[0]), shared[1]) * rate)
        joined[i], joined[i + 1] = replace(joined[i], speech_end=at), replace(right, speech_start=at)
    note = f"""Speech without a pause was cut at {seams} places. The texts on both sides have no word in common at \
{len(unmatched)} of them, first at {min(unmatched, default=0):.1f} s: words may be missing or doubled there."""
    parts = [_part(*row) for row in zip(outputs, words, begins, ends, strict=True)]
    joined = [replace(window, speech=window.part(window.speech_start, window.speech_end).speech) for window in joined]
    return joined, parts, [note] if unmatched else []


def find_seam(
    left: Sequence[PlacedWord], right: Sequence[PlacedWord], shared: tuple[float, float], near: float
) -> tuple[int, int, bool]:
    """Find where the text of one window changes over to that of the next, which have the seconds `shared` in common:
    within the run of equal words that agree best in time (at most `near` seconds apart), or else at `CHANGE`. Return
    the numbers of words to keep of the left one and to skip of the right one, and whether there are equal words."""
    low, high = shared
    ending = [i for i, word in enumerate(left) if word.bare and word.middle > low - near]
    beginning = [k for k, word in enumerate(right) if word.bare and word.middle < high + near]
    runs: dict[tuple[int, int], tuple[float, list[tuple[int, int]]]] = {}
    for a, i in enumerate(ending):
        for b, k in enumerate(beginning):
            apart = abs(left[i].middle - right[k].middle) / near
            if apart < 1 and left[i].bare == right[k].bare:
                score, pairs = runs.get((a - 1, b - 1), (0.0, []))
                runs[a, b] = (score + 1 - apart, [*pairs, (i, k)])
    if runs:
        _, pairs = max(runs.values(), key=lambda run: run[0])
        i, k = min(pairs, key=lambda pair: abs(left[pair[0]].middle - (low + high) / 2))
        return i + 1, k + 1, True
    change = low + CHANGE * (high - low)
    kept, skipped = (sum(word.middle < change for word in row) for row in (left, right))
    return kept, skipped, False


def _placed(window: Window, output: dict[str, Any], rate: int) -> list[PlacedWord]:
    text, offset, placed, end = output["text"], window.start / rate, list[PlacedWord](), 0
    seconds = (window.end - window.start) / rate / max(1, len(text))
    timed = bool(output["words"]) and "start" in output["words"][0]
    words: list[dict[str, Any]] = output["words"] if timed else [{"word": word} for word in written_words(text)]
    for word in words:
        at = max(end, text.find(word["word"], end))
        end = at + len(word["word"])
        start, stop = (word["start"], word["end"]) if timed else (at * seconds, end * seconds)
        placed.append(PlacedWord(bare(word["word"]), at, offset + (start + stop) / 2, offset + stop))
    return placed


def _part(output: dict[str, Any], words: Sequence[PlacedWord], begin: int, end: int) -> dict[str, Any]:
    """Words [begin, end) of an output, with what stands around them in its text."""
    if (begin, end) == (0, len(words)):
        return output
    text, end = output["text"], max(begin, end)
    places = [0, *(word.at for word in words[1:]), len(text)]
    first, last = places[begin], places[end]
    part = {**output, "text": text[first:last].strip(), "words": output["words"][begin:end]}
    if tokens := output.get("tokens"):
        lead = max(0, "".join(token["token"] for token in tokens).find(text))
        stops = accumulate((len(token["token"]) for token in tokens), initial=-lead)
        part["tokens"] = [
            token
            for token, stop in zip(tokens, list(stops)[1:], strict=True)
            if first < stop and stop - len(token["token"].lstrip()) < last
        ]
        part["log_prob"] = round(sum(t["logprob"] for t in part["tokens"]) / max(1, len(part["tokens"])), 4)
    return part
